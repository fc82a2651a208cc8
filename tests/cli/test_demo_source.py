"""The demo's sentences: the same every time, and as many as were asked for."""

from __future__ import annotations

import pytest

from waterspout.cli.demo_source import count_words, write_sentences


@pytest.mark.parametrize("sentences", [40, 1000, 1234])
def test_there_are_as_many_sentences_as_asked_for(tmp_path, sentences):
    write_sentences(tmp_path / "sentences", sentences, files=40)

    lines = [file.read_text().count("\n") for file in (tmp_path / "sentences").iterdir()]
    assert len(lines) == 40
    assert sum(lines) == sentences
    assert max(lines) - min(lines) <= 1


def test_they_are_the_same_every_time(tmp_path):
    for name in "ab":
        write_sentences(tmp_path / name, 1000, files=4)

    one, two = (sorted((tmp_path / name).iterdir()) for name in "ab")
    assert [file.name for file in one] == [file.name for file in two]
    assert [file.read_text() for file in one] == [file.read_text() for file in two]
    assert count_words(*one).total() == 9 * 1000
