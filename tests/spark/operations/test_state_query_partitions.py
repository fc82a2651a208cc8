"""`state_query` of a state of one's own kind: each partition of the stream asks its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.soaking import soaked
from tests.spark.operations.support import stream_of
from tests.trident.support import capture, finish
from waterspout.state import State, StateFactory
from waterspout.trident import query, updater

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("a", 5), ("b", 6), ("c", 7), ("d", 8)]


class Counts(State):
    """Counts in a file for each partition."""

    def __init__(self, path):
        self._path = path
        self.counts = json.loads(path.read_text()) if path.exists() else {}

    def add(self, words):
        for word in words:
            self.counts[word] = self.counts.get(word, 0) + 1
        self._path.write_text(json.dumps(self.counts))


@dataclass(frozen=True)
class Files(StateFactory):
    folder: str
    driver_only: bool

    def make_state(self, conf, partition_index, num_partitions):
        return Counts(Path(self.folder) / f"{partition_index}-of-{num_partitions}.json")

    def location(self):
        return self.folder


@updater
def count(state, tuples):
    state.add(t["word"] for t in tuples)


@query
def counted(state, tuples) -> list[int]:
    return [state.counts.get(t["word"]) for t in tuples]


@pytest.mark.parametrize("driver_only", [soaked(True), False], ids=["driver", "tasks"])
def test_a_query_finds_what_was_stored_on_its_partition(spark, tmp_path, driver_only):
    topology, stream = stream_of("word string, n bigint", ROWS, size=4)
    folders = [tmp_path / "spread", tmp_path / "one"]
    for folder in folders:
        folder.mkdir()
    factories = [Files(str(folder), driver_only) for folder in folders]
    by_word = stream.partition_by("word").parallelism_hint(3)
    spread = by_word.partition_persist(factories[0], "word", count)
    asked = capture(by_word.state_query(spread, "word", counted, out="so_far"), "n", "so_far")
    one = stream.partition_persist(factories[1], "word", count)
    wide = stream.shuffle().parallelism_hint(4)
    also = capture(wide.state_query(one, "word", counted, out="so_far"), "n", "so_far")

    finish(topology, spark, timeout=200)

    expected = [(n, None if n <= 4 else 1) for _, n in ROWS]
    assert asked.rows == sorted(expected, key=repr)
    assert also.rows == sorted(expected, key=repr)
    assert [path.name for path in folders[1].iterdir()] == ["0-of-1.json"]
    assert {path.name for path in folders[0].iterdir()} <= {f"{i}-of-3.json" for i in range(3)}
