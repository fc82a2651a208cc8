"""How batches of the three kinds of spouts are planned in the driver, and emitted."""

from __future__ import annotations

import json

import pytest

from waterspout import Config, FailedException
from waterspout.coordination.events import BatchFailed
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import SourceError, TopologyError
from waterspout.spouts._base import SpoutContext, SpoutKind
from waterspout.spouts._emitters import EmittedSpout
from waterspout.testing._batch_bolts import LocalBatches
from waterspout.transactional import (
    BatchBolt,
    BatchCoordinator,
    BatchEmitter,
    Committer,
    OpaqueEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedTransactionalSpout,
    PartitionEmitter,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)

CALLS: list[tuple] = []


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


class Broker:
    """Partitions that the tests change; one object for driver and workers, as a real one is."""

    def __init__(self, *partitions, take=2):
        self.partitions = [list(rows) for rows in partitions]
        self.take = take
        self.down = set()
        self.errors = {}
        self.asked = []

    def after(self, partition, last, shape=list):
        self.asked.append(last)
        if partition in self.down:
            raise SourceError(f"partition {partition} is down")
        if partition in self.errors:
            raise self.errors[partition]
        start = 0 if last is None else last[1]
        end = min(len(self.partitions[partition]), start + self.take)
        return shape([start, end])


BROKERS: dict[str, Broker] = {}


class Source:
    output_fields = ("tx", "n")

    def __init__(self, broker, emitter, num_partitions=None):
        self.broker = broker
        self.emitter = emitter

    def get_coordinator(self, conf, context):
        return Coordinator(self.broker)

    def get_emitter(self, conf, context):
        return self.emitter(self.broker)


class Partitioned(Source, PartitionedTransactionalSpout):
    pass


class Opaque(Source, OpaquePartitionedTransactionalSpout):
    pass


class Coordinator(PartitionCoordinator):
    def __init__(self, broker):
        self.broker = BROKERS[broker]

    def num_partitions(self):
        return len(self.broker.partitions)

    def close(self):
        CALLS.append(("close coordinator",))


class Reading:
    def __init__(self, broker):
        self.broker = BROKERS[broker]

    def num_partitions(self):
        return len(self.broker.partitions)

    def emit_range(self, attempt, collector, partition, found):
        for n in self.broker.partitions[partition][found[0] : found[1]]:
            collector.emit([attempt, n])

    def cleanup_before(self, txid):
        CALLS.append(("cleanup_before", txid))


class Pinning(Reading, PartitionEmitter):
    def next_metadata(self, txid, partition, last):
        CALLS.append(("next_metadata", txid, partition, last))
        found = self.broker.after(partition, last)
        return found if found[1] > found[0] else None

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        CALLS.append(("emit", str(attempt), partition, metadata))
        self.emit_range(attempt, collector, partition, metadata)


class StormShaped(Reading, PartitionEmitter):
    def emit_partition_batch_new(self, attempt, collector, partition, last):
        CALLS.append(("new", attempt.txid, partition))
        found = self.broker.after(partition, last)
        self.emit_range(attempt, collector, partition, found)
        return found

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        CALLS.append(("emit", str(attempt), partition, metadata))
        self.emit_range(attempt, collector, partition, metadata)


class StormOpaque(Reading, OpaqueEmitter):
    """Returns a tuple, as it may: what is stored of it is a list."""

    def emit_partition_batch(self, attempt, collector, partition, last):
        CALLS.append(("emit", str(attempt), partition, last))
        found = self.broker.after(partition, last, tuple)
        self.emit_range(attempt, collector, partition, found)
        return found


class OpaquePinning(Pinning, OpaqueEmitter):
    pass


def planner(spout, current=1, known=None, conf=None):
    topology = TransactionalTopologyBuilder("t", "spout", spout).build_topology()
    return EmittedSpout(spout, topology.context(1)).open(
        SpoutContext(conf or Config(), "spout", None, known or {}, current)
    )


def ranges(metadata):
    """Metadata without the names of what was taken."""
    return [entry[:2] for entry in metadata]


def broker(*partitions, name="b", **more):
    BROKERS[name] = made = Broker(*partitions, **more)
    return made


def test_kinds_follow_the_classes():
    broker([])
    kinds = [
        EmittedSpout(spout, None).kind
        for spout in (Partitioned("b", Pinning), Opaque("b", OpaquePinning), Whole("b"))
    ]

    assert kinds == [SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE, SpoutKind.TRANSACTIONAL]


def test_metadata_has_for_each_partition_where_it_was_and_what_comes():
    broker([1, 2, 3], [4])
    plan = planner(Partitioned("b", Pinning)).plan

    first = plan(1, None)
    second = plan(2, first)
    third = plan(3, second)

    assert first == [[None, [0, 2]], [None, [0, 1]]]
    assert second == [[[0, 2], [2, 3]], [[0, 1], None]]
    assert third == [[[2, 3], None], [[0, 1], None]]


def test_it_is_ready_if_any_partition_has_something():
    source = broker([], [])
    planned = planner(Partitioned("b", Pinning))

    assert planned.is_ready(None) is False
    source.partitions[1].append(1)
    assert planned.is_ready(None) is True


def test_a_look_is_used_for_the_batch_and_has_its_txid():
    broker([1, 2, 3])
    planned = planner(Partitioned("b", Pinning), current=5, known={4: [[None, None]], 5: "x"})

    assert planned.is_ready([[None, [0, 2]]])
    assert planned.plan(6, [[None, [0, 2]]]) == [[[0, 2], [2, 3]]]
    assert CALLS == [("next_metadata", 6, 0, [0, 2])]


def test_a_look_is_kept_until_its_batch_is_planned():
    source = broker([1, 2, 3])
    planned = planner(Opaque("b", StormOpaque))

    assert planned.is_ready(None)
    assert planned.is_ready(None)

    assert ranges(planned.plan(1, None)) == [[None, [0, 2]]]
    assert source.asked == [None]


def test_a_look_is_not_used_for_another_batch():
    source = broker([1, 2, 3])
    planned = planner(Opaque("b", OpaquePinning))

    assert planned.is_ready(None)
    source.take = 1
    assert planned.plan(1, None) == [[None, [0, 2]]]
    assert planned.plan(1, None) == [[None, [0, 1]]]


def test_new_partitions_join_with_the_next_batch():
    source = broker([1, 2, 3])
    planned = planner(Partitioned("b", Pinning))
    first = planned.plan(1, None)
    source.partitions.append([7])

    assert planned.plan(2, first) == [[[0, 2], [2, 3]], [None, [0, 1]]]


def test_a_partition_that_is_not_counted_for_a_while_keeps_its_position():
    source = broker([1, 2, 3], [4, 5, 6])
    planned = planner(Opaque("b", OpaquePinning))
    first = planned.plan(1, None)
    gone = source.partitions.pop()
    second = planned.plan(2, first)
    source.partitions.append(gone)

    assert second == [[[0, 2], [2, 3]], [[0, 2], None]]
    assert planned.plan(3, second) == [[[2, 3], None], [[0, 2], [2, 3]]]


@pytest.mark.parametrize("emitter", [OpaquePinning, StormOpaque])
def test_an_opaque_partition_that_is_down_gives_nothing_and_keeps_its_position(emitter):
    source = broker([1, 2, 3], [4, 5, 6])
    planned = planner(Opaque("b", emitter))
    first = planned.plan(1, None)
    source.down = {1}
    second = planned.plan(2, first)
    source.down = set()

    assert ranges(second) == [[[0, 2], [2, 3]], [[0, 2], None]]
    assert ranges(planned.plan(3, second)) == [[[2, 3], None], [[0, 2], [2, 3]]]


def test_a_transactional_partition_that_is_down_halts_the_spout():
    broker([1], [2]).down = {1}
    planned = planner(Partitioned("b", Pinning))

    with pytest.raises(SourceError):
        planned.plan(1, None)


@pytest.mark.parametrize(
    "metadata", [{1, 2}, b"x", object(), float("nan"), [float("inf")], {(1, 2): 3}],
    ids=["set", "bytes", "object", "nan", "infinity", "tuple as key"],
)  # fmt: skip
def test_metadata_that_is_not_json_is_refused(metadata):
    broker([1])

    class Odd(Pinning):
        def next_metadata(self, txid, partition, last):
            return metadata

    with pytest.raises(TopologyError, match="spout 'spout' gave metadata that is not JSON"):
        planner(Partitioned("b", Odd)).plan(1, None)


@pytest.mark.parametrize(("spout", "emitter"), [(Partitioned, StormShaped), (Opaque, StormOpaque)])
def test_tuples_without_metadata_are_refused(spout, emitter):
    broker([1])

    class Forgetful(emitter):
        def emit_partition_batch_new(self, *arguments):
            super().emit_partition_batch_new(*arguments)

        def emit_partition_batch(self, *arguments):
            super().emit_partition_batch(*arguments)

    with pytest.raises(TopologyError, match="emitted 1 tuples and returned None"):
        planner(spout("b", Forgetful)).is_ready(None)


def test_an_emitter_must_have_one_of_the_two_methods():
    broker([1])

    class Neither(Reading, PartitionEmitter):
        def emit_partition_batch(self, *arguments):
            pass

    with pytest.raises(TopologyError, match="Neither has neither next_metadata nor"):
        planner(Partitioned("b", Neither)).plan(1, None)


def test_the_spout_is_told_what_is_behind_and_closed():
    broker([1])
    planned = planner(Partitioned("b", Pinning))

    planned.succeeded(7, None)
    planned.close()

    assert CALLS == [("cleanup_before", 7), ("close coordinator",)]


class Collect(BatchBolt, Committer):
    """Emits what a batch held; fails the attempts that it is told to."""

    output_fields = ("tx", "ns")

    def __init__(self, *fails):
        self.fails = fails

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.ns = []

    def execute(self, tuple):
        self.ns.append(tuple["n"])

    def finish_batch(self):
        if str(self.id) in self.fails:
            raise FailedException("as told")
        self.collector.emit([self.id, sorted(self.ns)])


def local(spout, *fails, tasks=1, shared=None, listener=None, **conf):
    builder = TransactionalTopologyBuilder("t", "spout", spout, tasks)
    builder.set_bolt("collect", Collect(*fails)).global_grouping("spout")
    store = None if shared is None else MemoryCoordinationStore("t", shared)
    return LocalBatches(builder.build_topology(), Config(**conf), store=store, listener=listener)


def batches(run):
    return [(str(attempt), ns) for attempt, ns in run.emitted("collect")]


@pytest.mark.parametrize(
    ("spout", "emitter"),
    [
        (Partitioned, Pinning),
        (Partitioned, StormShaped),
        (Opaque, OpaquePinning),
        (Opaque, StormOpaque),
    ],
)
@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("pending", [1, 3])
def test_all_shapes_of_emitters_give_every_row_once(spout, emitter, tasks, pending):
    broker([1, 2, 3, 4, 5], [10], [20, 21, 22])
    run = local(spout("b", emitter), "1:0", "2:1", tasks=tasks, max_spout_pending=pending)

    run.finish()

    assert [ns for _, ns in batches(run)] == [[1, 2, 10, 20, 21], [3, 4, 22], [5]]


def test_a_storm_shaped_emitter_is_read_once_for_its_metadata_and_once_for_its_tuples():
    broker([1, 2])
    run = local(Partitioned("b", StormShaped))

    run.finish()

    of_batch_1 = [call for call in CALLS if call[0] == "emit" or call[1:2] == (1,)]
    assert of_batch_1 == [("new", 1, 0), ("emit", "1:0", 0, [0, 2]), ("cleanup_before", 1)]


def test_a_replay_of_a_transactional_batch_gets_its_stored_metadata():
    source = broker([1, 2, 3])
    run = local(Partitioned("b", Pinning), "1:0", "1:1")
    run.step()
    source.take = 1

    run.finish()

    assert batches(run) == [("1:2", [1, 2]), ("2:0", [3])]
    emitted = [call for call in CALLS if call[0] == "emit"]
    assert [call[1:] for call in emitted[:3]] == [(f"1:{a}", 0, [0, 2]) for a in range(3)]


def test_a_replay_of_an_opaque_batch_is_planned_anew():
    source = broker([1, 2, 3])
    run = local(Opaque("b", OpaquePinning), "1:0")
    run.step()
    source.take = 1

    run.finish()

    assert batches(run) == [("1:1", [1]), ("2:0", [2]), ("3:0", [3])]


class AllThereIs(StormOpaque):
    """Emits all there is now; the source grows whenever it is asked."""

    def emit_partition_batch(self, attempt, collector, partition, last):
        rows = self.broker.partitions[partition]
        found = (0 if last is None else last[1], len(rows))
        CALLS.append(("emit", str(attempt), partition, last))
        self.emit_range(attempt, collector, partition, found)
        if len(rows) < self.broker.take:
            rows.append(rows[-1] + 1)
        return found


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("pending", [1, 3])
def test_an_opaque_emitter_that_emits_all_there_is_commits_over_a_source_that_grows(tasks, pending):
    broker([1, 2], [11], take=9)
    failures = []

    def look(event):
        if isinstance(event, BatchFailed):
            failures.append(str(event.attempt))

    run = local(
        Opaque("b", AllThereIs), "2:0", tasks=tasks, max_spout_pending=pending, listener=look
    )

    run.finish()

    ns = [n for _, batch in batches(run) for n in batch]
    assert sorted(ns) == [*range(1, 10), *range(11, 20)]
    assert batches(run)[0] == ("1:0", [1, 2, 11])
    assert failures == ["2:0"]


def test_an_opaque_emitter_in_storm_s_form_is_asked_once_for_an_attempt():
    broker([1, 2])
    lost = iter([True, False])
    builder = TransactionalTopologyBuilder("t", "spout", Opaque("b", StormOpaque))
    builder.set_bolt("collect", Collect()).global_grouping("spout")

    run = LocalBatches(builder.build_topology(), loses_result=lambda: next(lost, False))
    run.finish()

    # The shard that emits is run twice, and the emitter asked once for it.
    assert batches(run) == [("1:0", [1, 2])]
    assert [call[1:] for call in CALLS if call[0] == "emit"][:2] == [
        ("1:0", 0, None),
        ("2:0", 0, [0, 2]),
    ]


def test_what_is_taken_is_kept_until_its_batch_has_committed_and_no_longer():
    broker([1, 2, 3, 4, 5, 6])
    planned = planner(Opaque("b", StormOpaque))
    first = planned.plan(1, None)
    second = planned.plan(2, first)
    again = planned.plan(1, None)

    with pytest.raises(SourceError, match="what was taken for this attempt is given up"):
        planned.taken(first)
    with pytest.raises(SourceError, match="what was taken for this attempt is given up"):
        planned.taken(second)
    assert list(planned.taken(again)) == [0]
    planned.succeeded(1, again)
    with pytest.raises(SourceError, match="spout 'spout'"):
        planned.taken(again)


class Even(StormShaped):
    """Leaves out odd numbers: whole ranges may hold no other."""

    def emit_range(self, attempt, collector, partition, found):
        for n in self.broker.partitions[partition][found[0] : found[1]]:
            if n % 2 == 0:
                collector.emit([attempt, n])


class OpaqueEven(StormOpaque):
    emit_range = Even.emit_range


ALL_SHAPES = [(Partitioned, Even), (Opaque, OpaqueEven)]


@pytest.mark.parametrize(("spout", "emitter"), ALL_SHAPES)
@pytest.mark.parametrize("odd", [2, 3, 19, 20, 61])
def test_what_is_behind_a_range_without_tuples_is_read(spout, emitter, odd):
    broker([2] + odd * [1] + [4], odd * [1], [])
    run = local(spout("b", emitter), "1:0", max_spout_pending=2)

    run.finish()

    assert [n for _, ns in batches(run) for n in ns] == [2, 4]


@pytest.mark.parametrize(("spout", "emitter"), ALL_SHAPES)
def test_a_position_that_moves_on_without_tuples_is_stored_now_and_then(spout, emitter):
    broker(100 * [1] + [2])
    run = local(spout("b", emitter))

    run.finish()

    assert [ns for _, ns in batches(run)] == [[], [], [], [], [], [2]]


@pytest.mark.parametrize(("spout", "emitter"), ALL_SHAPES)
def test_a_range_without_tuples_at_the_end_is_read_once_and_begins_no_batch(spout, emitter):
    source = broker([2, 4, 1, 1, 1])
    run = local(spout("b", emitter))
    run.finish()
    source.asked.clear()

    run.finish()
    asked = list(source.asked)
    source.partitions[0] += [1, 6]
    run.finish()

    assert asked == [[5, 5]] * len(asked)
    assert [ns for _, ns in batches(run)] == [[2, 4], [6]]


@pytest.mark.parametrize(("spout", "emitter"), ALL_SHAPES)
def test_a_batch_of_a_range_without_tuples_says_that_it_holds_none(spout, emitter):
    broker(20 * [1], [])
    planned = planner(spout("b", emitter))

    assert planned.is_ready(None)
    empty = planned.plan(1, None)

    assert empty[0][:2] == [[16, 18], [18, 20]]
    assert empty[1][:2] == [None, None]
    if spout is Opaque:
        assert planned.holds_data(empty) is False


def test_a_failing_look_at_a_transactional_source_does_not_end_the_run():
    source = broker([1])

    class Unsteady(Pinning):
        def next_metadata(self, txid, partition, last):
            if self.broker.down:
                raise FailedException("not now")
            return super().next_metadata(txid, partition, last)

    run = local(Partitioned("b", Unsteady), max_retries=0)
    source.down = {0}
    for _ in range(10):
        run.step()
    source.down = set()

    run.finish()

    assert batches(run) == [("1:0", [1])]


class Whole(TransactionalSpout):
    """Its metadata is the rows of the batch."""

    output_fields = ("tx", "n")

    def __init__(self, broker):
        self.broker = broker

    def get_coordinator(self, conf, context):
        return Initializing(BROKERS[self.broker])

    def get_emitter(self, conf, context):
        return Share(context.this_task_index, len(context.tasks["spout"]))


class Initializing(BatchCoordinator):
    def __init__(self, broker):
        self.broker = broker

    def is_ready(self):
        return bool(self.broker.partitions[0])

    def initialize_transaction(self, txid, previous):
        CALLS.append(("initialize", txid, previous))
        rows = self.broker.partitions[0]
        return [rows.pop(0) for _ in range(min(2, len(rows)))]


class Share(BatchEmitter):
    def __init__(self, index, tasks):
        self.index, self.tasks = index, tasks

    def emit_batch(self, attempt, metadata, collector):
        for n in metadata[self.index :: self.tasks]:
            collector.emit([attempt, n])


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_transaction_is_initialized_once_however_often_it_is_tried(tasks):
    broker([1, 2, 3, 4, 5])
    run = local(Whole("b"), "1:0", "2:0", "2:1", tasks=tasks, max_spout_pending=2)

    run.finish()

    assert [ns for _, ns in batches(run)] == [[1, 2], [3, 4], [5]]
    assert CALLS == [
        ("initialize", 1, None),
        ("initialize", 2, [1, 2]),
        ("initialize", 3, [3, 4]),
    ]


def test_a_transaction_is_not_initialized_again_after_a_restart():
    broker([1, 2, 3, 4, 5])
    shared = SharedMemory()
    first = local(Whole("b"), shared=shared, max_spout_pending=2)
    first.step()  # two batches are stored; the driver ends before anything has committed
    assert sorted(first.loop.ledger.emitted) == [1, 2]
    first.close()
    assert json.loads(shared.document)["current"] == 1

    second = local(Whole("b"), shared=shared, max_spout_pending=2)
    second.finish()

    assert batches(second) == [("1:1", [1, 2]), ("2:1", [3, 4]), ("3:0", [5])]
    assert [call[1] for call in CALLS] == [1, 2, 3]
