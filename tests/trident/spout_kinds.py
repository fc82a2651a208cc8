"""Spouts of every kind for tests, over data that outlives them as a real source does."""

from __future__ import annotations

from collections import Counter

from waterspout import Config, FailedException, Spout
from waterspout.spouts import EmittingSpout
from waterspout.testing import LocalRun
from waterspout.transactional import (
    BatchCoordinator,
    BatchEmitter,
    OpaqueEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedTransactionalSpout,
    PartitionEmitter,
    TransactionalSpout,
)
from waterspout.trident import Filter

AT_ONCE = Config(retry_backoff_millis=0, cancel_wait_secs=0.0)

CALLS: list[tuple] = []
FAILURES: Counter[str] = Counter()
"""How often a tuple with this word still fails its batch."""


def forget() -> None:
    """Begin a test."""
    CALLS.clear()
    FAILURES.clear()
    SOURCES.clear()


def calls(name: str) -> list[tuple]:
    """Return the arguments of the calls of a method, in order."""
    return [call[1:] for call in CALLS if call[0] == name]


class Stumble(Filter):
    """Keeps everything; fails the batch of a tuple as often as FAILURES says."""

    def is_keep(self, tuple):
        if FAILURES[tuple[0]] > 0:
            FAILURES[tuple[0]] -= 1
            raise FailedException(f"stumbled over {tuple[0]}")
        return True


class Source:
    """Partitions that a test fills; `take` of each make a batch."""

    def __init__(self, *partitions, take=2):
        self.partitions = [list(rows) for rows in partitions]
        self.take = take
        self.down = set()
        self.planned = 0
        self.acked = set()

    def after(self, partition, last):
        if partition in self.down:
            return None
        start = 0 if last is None else last[1]
        end = min(len(self.partitions[partition]), start + self.take)
        return [start, end] if end > start else None

    def rows(self, partition, found):
        return self.partitions[partition][found[0] : found[1]]


SOURCES: dict[str, Source] = {}


def fill(*partitions, take=2) -> Source:
    """Make the source that all spouts here read."""
    source = SOURCES["the"] = Source(*partitions, take=take)
    return source


class Whole(TransactionalSpout):
    """Ranges of the first partition, chosen by a coordinator."""

    output_fields = ("tx", "word string")

    def get_coordinator(self, conf, context):
        return WholeCoordinator()

    def get_emitter(self, conf, context):
        return WholeEmitter(context.this_task_index, len(context.component_tasks("words")))


class WholeCoordinator(BatchCoordinator):
    def is_ready(self):
        source = SOURCES["the"]
        return source.planned < len(source.partitions[0])

    def initialize_transaction(self, txid, previous):
        CALLS.append(("initialize_transaction", txid, previous))
        source = SOURCES["the"]
        end = 0 if previous is None else previous[1]
        found = source.after(0, previous) or [end, end]
        source.planned = found[1]
        return found


class WholeEmitter(BatchEmitter):
    def __init__(self, index, tasks):
        self.index, self.tasks = index, tasks

    def emit_batch(self, attempt, metadata, collector):
        CALLS.append(("emit_batch", str(attempt), metadata, self.index))
        for word in SOURCES["the"].rows(0, metadata)[self.index :: self.tasks]:
            collector.emit([attempt, word])


class Partitioned(PartitionedTransactionalSpout):
    """Ranges that are fixed for a txid."""

    output_fields = ("tx", "word string")

    def get_coordinator(self, conf, context):
        return Counting()

    def get_emitter(self, conf, context):
        return RangeEmitter()


class Counting(PartitionCoordinator):
    def num_partitions(self):
        return len(SOURCES["the"].partitions)


class Ranges:
    def next_metadata(self, txid, partition, last):
        return SOURCES["the"].after(partition, last)

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        CALLS.append(("emit_partition_batch", str(attempt), partition, metadata))
        for word in SOURCES["the"].rows(partition, metadata):
            collector.emit([attempt, word])

    def cleanup_before(self, txid):
        CALLS.append(("cleanup_before", txid))


class RangeEmitter(Ranges, PartitionEmitter):
    pass


class Opaque(OpaquePartitionedTransactionalSpout):
    """Ranges that each attempt chooses."""

    output_fields = ("tx", "word string")

    def get_coordinator(self, conf, context):
        return Counting()

    def get_emitter(self, conf, context):
        return OpaqueRangeEmitter()


class OpaqueRangeEmitter(Ranges, OpaqueEmitter):
    def num_partitions(self):
        return len(SOURCES["the"].partitions)


class Batches(EmittingSpout):
    """Batch n is the n-th range of the first partition."""

    output_fields = "word string"

    def open(self, conf, context):
        CALLS.append(("open", context.this_component_id))

    def emit_batch(self, batch_id, collector):
        CALLS.append(("emit_batch", batch_id))
        source = SOURCES["the"]
        for word in source.rows(0, [(batch_id - 1) * source.take, batch_id * source.take]):
            collector.emit([word])

    def ack(self, batch_id):
        CALLS.append(("ack", batch_id))

    def close(self):
        CALLS.append(("close",))


class SteadyBatches(Batches):
    """Gives the same whenever it is asked for the same, and says so."""

    transactional = True


class Messages(Spout):
    """Each word of the first partition is a message; one that failed comes again at the end."""

    output_fields = ("word",)

    def open(self, conf, context, collector):
        CALLS.append(("open", conf.get("topology.max.spout.pending")))
        self.collector = collector
        self.pending = {}
        self.queue = [
            word for word in SOURCES["the"].partitions[0] if word not in SOURCES["the"].acked
        ]

    def next_tuple(self):
        if self.queue:
            word = self.queue.pop(0)
            self.pending[word] = True
            self.collector.emit([word], msg_id=word)

    def ack(self, msg_id):
        CALLS.append(("ack", msg_id))
        SOURCES["the"].acked.add(msg_id)
        del self.pending[msg_id]

    def fail(self, msg_id):
        CALLS.append(("fail", msg_id))
        del self.pending[msg_id]
        self.queue.append(msg_id)

    def activate(self):
        CALLS.append(("activate",))

    def deactivate(self):
        CALLS.append(("deactivate",))

    def close(self):
        CALLS.append(("close",))


def run_to_the_end(topology, config: Config = AT_ONCE, **options) -> LocalRun:
    """Run in process until there is nothing more."""
    run = LocalRun(topology, config, **options)
    try:
        run.finish(max_steps=2_000)
    finally:
        run.close()
    return run
