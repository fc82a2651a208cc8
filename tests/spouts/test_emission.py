"""Emitters as readers of a stream: shares, chunks, positions, and what they may not emit."""

from __future__ import annotations

import json

import pytest

from tests.trident.spout_kinds import (
    FAILURES,
    SOURCES,
    Opaque,
    Partitioned,
    Stumble,
    Whole,
    fill,
    forget,
    run_to_the_end,
)
from tests.trident.support import capture
from waterspout import Config
from waterspout.errors import EmitError
from waterspout.spouts import _emission as emission
from waterspout.spouts._base import SpoutContext
from waterspout.spouts._emission import emitted
from waterspout.spouts._reads import POSITION
from waterspout.spouts._sources import source_of
from waterspout.testing._tables import read_table
from waterspout.transactional import TransactionAttempt
from waterspout.transactional._spouts import (
    OpaqueEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionEmitter,
    SourceCoordinator,
)
from waterspout.trident import TridentTopology

ATTEMPT = TransactionAttempt(7, 2)
CLOSED: list[str] = []


@pytest.fixture(autouse=True)
def _from_the_beginning():
    forget()
    CLOSED.clear()


def read_of(spout, metadata):
    return source_of(spout, topology="t", spout_id="words").read(metadata)


def words(read, index=0, tasks=1):
    batches = list(emitted(read, Config(), ATTEMPT, index, tasks))
    return [word for batch in batches for word in batch.column("word").to_pylist()]


def test_partitions_with_something_are_dealt_to_the_tasks():
    fill("ab", "cd", "ef", "gh")
    read = read_of(Partitioned(), [[None, [0, 2]], [None, None], [None, [0, 1]], [None, [1, 2]]])

    assert read.partitions == [0, 2, 3]
    assert words(read, 0, 2) == ["a", "b", "h"]
    assert words(read, 1, 2) == ["e"]
    assert words(read) == ["a", "b", "e", "h"]


def test_a_spout_without_partitions_shares_its_batch_itself():
    fill("abcde", take=5)
    read = read_of(Whole(), [0, 5])

    assert [words(read, index, 2) for index in range(2)] == [["a", "c", "e"], ["b", "d"]]


def test_rows_leave_in_chunks_in_their_order(monkeypatch):
    monkeypatch.setattr(emission, "CHUNK_ROWS", 3)
    fill("abcdefgh", "xy")
    read = read_of(Partitioned(), [[None, [0, 8]], [None, [0, 2]]])

    batches = list(emitted(read, Config(), ATTEMPT, 0, 1, with_position=True))

    assert [batch.num_rows for batch in batches] == [3, 3, 2, 2]
    places = [json.loads(p) for batch in batches for p in batch.column(POSITION).to_pylist()]
    assert places[7] == {"partition": 0, "metadata": [0, 8], "row": 7}
    assert places[9] == {"partition": 1, "metadata": [0, 2], "row": 1}


def test_the_same_rows_in_process_with_and_without_positions():
    fill("abc", "x")
    read = read_of(Opaque(), [[None, [0, 3]], [None, [0, 1]]])

    plain, placed = read_table(read), read_table(read, with_position=True, tasks=2)

    assert plain.column_names == ["word"]
    assert placed.column_names == ["word", POSITION]
    assert placed.column("word").to_pylist() == plain.column("word").to_pylist() == list("abcx")


def test_a_batch_with_nothing_has_the_columns_all_the_same():
    fill("abc")
    read = read_of(Opaque(), [[[0, 3], None]])

    assert read_table(read, with_position=True).column_names == ["word", POSITION]
    assert read_table(read).num_rows == 0


class Wrong(Partitioned):
    def __init__(self, values):
        self.values = values

    def get_emitter(self, conf, context):
        return WrongEmitter(self.values)


class WrongEmitter(PartitionEmitter):
    def __init__(self, values):
        self.values = values

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        collector.emit([attempt if v == "attempt" else v for v in self.values])

    def close(self):
        CLOSED.append("emitter")


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (["word"], EmitError, r"has 2 fields \(tx, word\) but got 1 values"),
        (["a", "b"], EmitError, "must be the transaction attempt 7:2"),
        (["attempt", 5], TypeError, "spout 'words' gave 5 for field 'word'"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_emitter_closed(values, error, message):
    fill("a")
    read = read_of(Wrong(values), [[None, [0, 1]]])

    with pytest.raises(error, match=message):
        words(read)

    assert CLOSED == ["emitter"]


class Growing(OpaquePartitionedTransactionalSpout):
    """As in Storm: emits all that comes after `last`, and there is more whenever it is asked."""

    output_fields = ("tx", "word string")

    def get_coordinator(self, conf, context):
        return SourceCoordinator()

    def get_emitter(self, conf, context):
        return GrowingEmitter()


class GrowingEmitter(OpaqueEmitter):
    def num_partitions(self):
        return 1

    def emit_partition_batch(self, attempt, collector, partition, last):
        words = SOURCES["the"].partitions[0]
        for word in words[last or 0 :]:
            collector.emit([attempt, word])
        end = len(words)
        if end < 6:
            words.append(chr(ord(words[-1]) + 1))
        return end


def test_a_read_has_what_its_attempt_has_taken_however_often_it_is_read():
    fill("ab")
    source = source_of(Growing(), topology="t", spout_id="words")
    planner = source.open(SpoutContext(Config(), "words", None, {}, 1))

    assert planner.is_ready(None)
    read = source.read(planner.plan(1, None))

    assert [words(read), words(read)] == [["a", "b"], ["a", "b"]]
    assert planner.is_ready([[None, 2]])


def test_a_stream_of_all_there_is_commits_while_its_source_grows():
    fill("ab")
    FAILURES["d"] = 1
    topology = TridentTopology("growing")
    stream = topology.new_stream("words", Growing()).each("word", Stumble())
    kept = capture(stream)

    run_to_the_end(topology)

    assert kept.batches == {1: [("a",), ("b",)], 2: [("c",)], 3: [("d",), ("e",)], 4: [("f",)]}
