"""The demo's sentences: the same every time, and as many as were asked for."""

from __future__ import annotations

import pytest

from waterspout.cli.demo_source import DemoSource


@pytest.mark.parametrize("sentences", [40, 1000, 1234])
def test_there_are_as_many_sentences_as_asked_for(tmp_path, sentences):
    source = DemoSource(tmp_path / "sentences", sentences, files=40)

    source.write()

    lines = [source.file(i).read_text().count("\n") for i in range(40)]
    assert sum(lines) == sentences
    assert max(lines) - min(lines) <= 1
    assert [source.sentences_before(i) for i in range(41)] == [sum(lines[:i]) for i in range(41)]


def test_they_are_the_same_every_time(tmp_path):
    one, two = (DemoSource(tmp_path / name, 1000, files=4) for name in "ab")

    one.write()
    two.write()

    assert [one.file(i).read_text() for i in range(4)] == [
        two.file(i).read_text() for i in range(4)
    ]
    assert one.recount().total() == 9 * 1000
