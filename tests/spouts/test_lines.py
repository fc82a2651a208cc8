"""`LinesSpout`: every line once, whatever the ranges."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout.errors import SourceError
from waterspout.spouts.lines import LinesSpout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\r\n\nfour \xc3\xa4\nhalf")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / ".hidden").write_text("no\n")
    (tmp_path / "_SUCCESS").write_text("no\n")
    (tmp_path / "sub").mkdir()
    return tmp_path


def test_files_are_partitions_without_hidden_ones(folder):
    assert LinesSpout(folder).partitions() == ["a.txt", "b.txt"]


def test_the_end_stands_after_the_last_line_break(folder):
    spout = LinesSpout(folder)

    assert [spout.end("a.txt"), spout.end("b.txt")] == [18, 0]


def test_a_long_last_line_without_a_break_is_not_there_yet(tmp_path):
    (tmp_path / "a").write_bytes(b"x\n" + b"y" * 200_000)

    assert LinesSpout(tmp_path).end("a") == 2


def test_offsets_are_the_first_bytes_of_lines(folder):
    assert list(LinesSpout(folder).read("a.txt", 0, 18)) == [
        (0, ["one"]),
        (4, ["two"]),
        (9, [""]),
        (10, ["four ä"]),
    ]


def test_one_message_is_read_again_alone(folder):
    assert list(LinesSpout(folder).read("a.txt", 4, 5)) == [(4, ["two"])]


@given(
    lines=st.lists(st.text(alphabet="ab é", max_size=12), max_size=20),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_any_ranges_give_every_line_once(tmp_path_factory, lines, cuts):
    folder = tmp_path_factory.mktemp("log")
    (folder / "f").write_text("".join(line + "\n" for line in lines))
    spout = LinesSpout(folder)
    end = spout.end("f")
    edges = sorted({0, end, *(cut for cut in cuts if cut < end)})

    found = [message for start, stop in pairwise(edges) for message in spout.read("f", start, stop)]

    assert [values for _, values in found] == [[line] for line in lines]
    assert found == list(spout.read("f", 0, end))


def test_a_wave_of_n_messages_is_about_n_lines(tmp_path):
    (tmp_path / "f").write_text("0123456789\n" * 1000)

    assert LinesSpout(tmp_path).advance("f", 0, 100) == 1100


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(SourceError, match=f"the folder {tmp_path}/none cannot be listed"):
        LinesSpout(tmp_path / "none").partitions()
