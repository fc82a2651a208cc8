"""The command line called in this process, in a folder of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from waterspout.cli import main

WORD_COUNT = """
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology

topology = TridentTopology("words")
words = topology.new_stream("in", FileSpout("data")).each("value", Split(), "word")
counts = SQLiteState.opaque("counts.db", table="word_counts")
words.group_by("word").persistent_aggregate(counts, Count(), "count")
"""
CORE_WORD_COUNT = """
from waterspout import BasicBolt, TopologyBuilder
from waterspout.testing import FeederSpout

class Split(BasicBolt):
    output_fields = ("word",)
    def execute(self, tuple, collector):
        for word in tuple["sentence"].split():
            collector.emit([word])

builder = TopologyBuilder()
builder.set_spout("sentences", FeederSpout("sentence", replay=True))
builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
topology = builder.create_topology("words")
"""


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """An empty folder with a source in it; the current one, and without a home as yet."""
    path = tmp_path / "place"
    (path / "data").mkdir(parents=True)
    (path / "data" / "a.txt").write_text("to be or not to be\n")
    monkeypatch.chdir(path)
    monkeypatch.setenv("WATERSPOUT_HOME", str(path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return path


@pytest.fixture
def cli(place, capsys) -> Iterator[Callable[..., Outcome]]:
    """Run a command; the modules that it loads are forgotten afterwards."""
    before = set(sys.modules)

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        return Outcome(code, *capsys.readouterr())

    yield run
    for name, module in list(sys.modules.items()):
        if name not in before and str(getattr(module, "__file__", "")).startswith(str(place)):
            del sys.modules[name]


@pytest.fixture
def write(place) -> Callable[[str], str]:
    """Write a topology file and return its name."""

    def write_file(source: str, name: str = "words.py") -> str:
        (place / name).write_text(source)
        return name

    return write_file


@pytest.fixture
def shared_spark(spark, monkeypatch):
    """The session of all tests, which a command must not stop, though it may think it its own."""
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return every file below a folder with its size and time, to see that none has changed."""
    found = {}
    for directory, _, files in os.walk(folder):
        for name in files:
            stat = os.stat(os.path.join(directory, name))
            found[os.path.join(directory, name)] = (stat.st_size, stat.st_mtime_ns)
        found[directory] = (0, 0)
    return found
