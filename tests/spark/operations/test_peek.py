"""`peek`: shows each tuple to a function; the stream stays as it is."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import stream_of
from tests.trident.support import capture, finish
from waterspout.testing import run_in_process
from waterspout.trident import Consumer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


class Writes(Consumer):
    """Appends to a file, because the tasks are other processes."""

    def __init__(self, path):
        self._path = str(path)

    def prepare(self, conf, context):
        self._file = open(self._path, "a")  # noqa: SIM115

    def accept(self, tuple):
        self._file.write(f"{tuple['word']}={tuple['n']}\n")

    def cleanup(self):
        self._file.close()


def noting(path):
    def note(word, n):
        with open(path, "a") as file:
            file.write(f"{word}={n}\n")
        return "not looked at"

    return note


ROWS = [("a", 1), ("b", None)]


def words_and_numbers(folder):
    topology, stream = stream_of("word string, n bigint", ROWS)
    kept = capture(stream.peek(noting(str(folder / "plain"))))
    also = capture(stream.peek(Writes(folder / "class")), "n")
    unread = stream.filter("n", lambda n: False).peek(noting(str(folder / "none")))
    return topology, kept, also, capture(unread)


@pytest.mark.parametrize("engine", ["spark", "here"])
def test_the_documented_example(engine, request, tmp_path):
    topology, kept, also, none = words_and_numbers(tmp_path)

    if engine == "spark":
        finish(topology, request.getfixturevalue("spark"))
    else:
        run_in_process(topology)

    assert kept.rows == ROWS
    assert (also.rows, none.rows) == ([(1,), (None,)], [])
    # Each tuple once, whole, whatever is read behind it.
    for name in ("plain", "class"):
        assert sorted((tmp_path / name).read_text().splitlines()) == ["a=1", "b=None"], name
    assert not (tmp_path / "none").exists()
