"""`check_emitter` finds spouts that break their contract, and says where."""

from __future__ import annotations

import itertools
import random

import pytest

from waterspout.errors import NotPicklableError
from waterspout.testing import check_emitter
from waterspout.transactional import (
    BatchCoordinator,
    BatchEmitter,
    MemoryTransactionalSpout,
    OpaqueEmitter,
    OpaqueMemoryTransactionalSpout,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedTransactionalSpout,
    PartitionEmitter,
    TransactionalSpout,
)

ROWS = [["a", "b", "c", "d", "e"], ["x", "y", "z"]]


@pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
def test_the_memory_spouts_pass(kind):
    found = check_emitter(kind(ROWS, "word", 2), batches=2)

    assert found == [[("a",), ("b",), ("x",), ("y",)], [("c",), ("d",), ("z",)]]


class Partitioned(PartitionedTransactionalSpout):
    output_fields = ("tx", "word")

    def __init__(self, emitter):
        self.emitter = emitter

    def get_coordinator(self, conf, context):
        return Two()

    def get_emitter(self, conf, context):
        return self.emitter()


class Two(PartitionCoordinator):
    def num_partitions(self):
        return 2


class Good(PartitionEmitter):
    def next_metadata(self, txid, partition, last):
        start = 0 if last is None else last["end"]
        end = min(start + 2, len(ROWS[partition]))
        return {"start": start, "end": end} if end > start else None

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for word in self.words(partition, metadata):
            collector.emit([attempt, word])

    def words(self, partition, metadata):
        return ROWS[partition][metadata["start"] : metadata["end"]]


def span(metadata):
    return metadata["start"], metadata["end"]


def test_a_good_emitter_passes():
    found = check_emitter(Partitioned(Good), span=span)

    assert [len(batch) for batch in found] == [4, 3, 1]


class Shuffled(Good):
    def words(self, partition, metadata):
        words = super().words(partition, metadata)
        return sorted(words, key=lambda _: random.random()) * (partition or random.randrange(9))


class ByAttempt(Good):
    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for word in self.words(partition, metadata):
            again = attempt.attempt_id and partition
            collector.emit([attempt, word + "!" if again else word])


class Fewer(Good):
    def emit_partition_batch(self, attempt, collector, partition, metadata):
        words = self.words(partition, metadata)
        for word in words[: 1 if attempt.attempt_id else 2]:
            collector.emit([attempt, word])


class Stuck(Good):
    def next_metadata(self, txid, partition, last):
        return {"start": 0, "end": 2}


class Gap(Good):
    def next_metadata(self, txid, partition, last):
        found = super().next_metadata(txid, partition, last)
        if found is None or partition == 0 or txid == 1:
            return found
        return {"start": found["start"] + 1, "end": found["end"] + 1}


class NotJson(Good):
    def next_metadata(self, txid, partition, last):
        return {"start": {1}, "end": 2}


@pytest.mark.parametrize(
    ("emitter", "why"),
    [
        (ByAttempt, "batch 1, partition 1, emitted again: tuple 0 was ('x',) on stream 'default' "
                    "and is ('x!',) on stream 'default'"),
        (Fewer, "batch 1, partition 0, emitted again: there were 2 tuples and there are 1"),
        (Stuck, "batch 2, partition 0: its metadata {'start': 0, 'end': 2} is that of the batch "
                "before; it must go on where that one ended"),
        (Gap, "batch 2, partition 1: it begins at 3, but the batch before ended at 2"),
        (NotJson, "batch 1: spout 'spout' gave metadata that is not JSON: Object of type set is "
                  "not JSON serializable. Use numbers, text, lists, dicts and None."),
    ],
    ids=["by attempt", "fewer", "stuck", "gap", "not json"],
)  # fmt: skip
def test_a_broken_emitter_is_found_with_batch_and_partition(emitter, why):
    with pytest.raises(AssertionError) as found:
        check_emitter(Partitioned(emitter), span=span)

    assert str(found.value) == why


def test_an_emitter_that_draws_lots_is_found():
    random.seed(1)

    with pytest.raises(AssertionError, match=r"batch \d, partition \d, emitted"):
        check_emitter(Partitioned(Shuffled))


class Remembering(Partitioned):
    """Counts its emits in the spout object, which a pickled copy does not share."""

    def __init__(self):
        super().__init__(Good)
        self.words = [["a"], ["b"]]

    def get_emitter(self, conf, context):
        return Own(self.words)

    def get_coordinator(self, conf, context):
        self.words[1][0] = "c"  # where the driver is, and nowhere else
        return Two()


class Own(Good):
    def __init__(self, rows):
        self.rows = rows

    def next_metadata(self, txid, partition, last):
        return {"start": 0, "end": 1} if last is None else None

    def words(self, partition, metadata):
        return self.rows[partition]


def test_what_only_the_driver_s_object_knows_is_found():
    with pytest.raises(AssertionError) as found:
        check_emitter(Remembering())

    assert str(found.value) == (
        "batch 1, partition 1, emitted by a pickled copy of the spout: tuple 0 was ('c',) on "
        "stream 'default' and is ('b',) on stream 'default'"
    )


def test_a_spout_that_cannot_be_pickled_is_refused():
    spout = MemoryTransactionalSpout(ROWS, "word", 2)
    spout.numbers = (n for n in itertools.count())

    with pytest.raises(NotPicklableError, match="numbers"):
        check_emitter(spout)


class Opaque(OpaquePartitionedTransactionalSpout):
    output_fields = ("tx", "word")

    def __init__(self, drifts):
        self.drifts = drifts

    def get_coordinator(self, conf, context):
        return Two()

    def get_emitter(self, conf, context):
        return StormOpaque(self.drifts)


class StormOpaque(OpaqueEmitter):
    def __init__(self, drifts):
        self.drifts = drifts

    def num_partitions(self):
        return 2

    def emit_partition_batch(self, attempt, collector, partition, last):
        start = 0 if last is None else last[1]
        take = 1 if self.drifts and attempt.attempt_id else 2
        words = ROWS[partition][start : start + take]
        for word in words:
            collector.emit([attempt, word])
        return (start, start + len(words))


def test_a_storm_shaped_opaque_emitter_is_taken_at_its_first_answer():
    found = check_emitter(Opaque(drifts=True), span=tuple)

    assert found == check_emitter(Opaque(drifts=False), span=tuple)
    assert [len(batch) for batch in found] == [4, 3, 1]


class Whole(TransactionalSpout):
    output_fields = ("tx", "n")

    def __init__(self, shares=True):
        self.shares = shares

    def get_coordinator(self, conf, context):
        return Tens()

    def get_emitter(self, conf, context):
        tasks = len(context.component_tasks(context.this_component_id))
        return Numbers(context.this_task_index, tasks if self.shares else 1)


class Tens(BatchCoordinator):
    def initialize_transaction(self, txid, previous):
        return [0 if previous is None else previous[1], 10 * txid]


class Numbers(BatchEmitter):
    def __init__(self, index, tasks):
        self.index, self.tasks = index, tasks

    def emit_batch(self, attempt, metadata, collector):
        for n in range(*metadata):
            if n % self.tasks == self.index % self.tasks:
                collector.emit([attempt, n])


def test_a_spout_with_its_own_coordinator_is_checked_too():
    found = check_emitter(Whole(), batches=3, tasks=3, span=tuple)

    assert [sorted(n for (n,) in batch) for batch in found] == [
        list(range(10)), list(range(10, 20)), list(range(20, 30)),
    ]  # fmt: skip


def test_tasks_that_all_emit_everything_are_found():
    with pytest.raises(AssertionError, match="batch 1: 2 tasks emit 20 tuples, a single one 10"):
        check_emitter(Whole(shares=False))


def test_values_are_checked_as_in_a_run():
    class NoAttempt(Good):
        def emit_partition_batch(self, attempt, collector, partition, metadata):
            collector.emit(["a", "b"])

    with pytest.raises(ValueError, match="must be the transaction attempt 1:0"):
        check_emitter(Partitioned(NoAttempt))
