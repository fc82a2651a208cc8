"""Bolts of a batch, run shard by shard in this process: their calls, and their half-way state."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import ClassVar

import pytest

from waterspout import BasicBolt, Config, FailedException
from waterspout.errors import EmitError, NotPicklableError
from waterspout.testing._batch_bolts import LocalBatches, LostWorker
from waterspout.topology import Direct
from waterspout.transactional import (
    BatchBolt,
    BatchContext,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from waterspout.transactional import _runtime as runtime
from waterspout.waves.bolts import Worker
from waterspout.waves.frames import Frame, pack
from waterspout.waves.shape import collapsed, spread
from waterspout.waves.shards import BUSY, COMPUTED, COUNTED, DRIVER, Row, ShardInput, run_stage

SHAPES = pytest.mark.parametrize("collapse", [0, 2000], ids=["spread", "collapsed"])

LOG: list[tuple] = []


@pytest.fixture(autouse=True)
def _empty_log():
    LOG.clear()


def run(builder, collapse=0, **more):
    config = Config(wave_collapse_tuples=collapse, **more.pop("conf", {}))
    local = LocalBatches(builder.build_topology(), config, **more)
    try:
        local.finish()
    finally:
        local.close()
    return local


def numbers(count, take, partitions=1, name="t", parallelism=1):
    rows = [list(range(p, count, partitions)) for p in range(partitions)]
    spout = MemoryTransactionalSpout(rows, "n", take)
    return TransactionalTopologyBuilder(name, "spout", spout, parallelism)


class Noted(BatchBolt):
    """Notes every call with its task and the identity of the object."""

    output_fields = ("tx", "n")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        assert not hasattr(self, "seen"), "an object is used for one batch"
        self.seen = []
        self.task = context.this_task_id
        self.name = context.this_component_id
        LOG.append(("prepare", self.name, self.task, str(id)))

    def execute(self, tuple):
        assert tuple[0] == self.id
        self.seen.append(tuple["n"])
        self.collector.emit([self.id, tuple["n"]])

    def finish_batch(self):
        LOG.append(("finish", self.name, self.task, str(self.id), sorted(self.seen)))


class NotedCommitter(Noted, Committer):
    pass


@SHAPES
@pytest.mark.parametrize("kind", [Noted, NotedCommitter])
def test_there_is_one_object_for_each_task_and_attempt_and_each_finishes_once(kind, collapse):
    builder = numbers(5, 3)
    builder.set_bolt("b", kind(), 3).fields_grouping("spout", "n")

    run(builder, collapse)

    expected = [(task, attempt) for attempt in ("1:0", "2:0") for task in (2, 3, 4)]
    assert sorted((e[2], e[3]) for e in LOG if e[0] == "prepare") == sorted(expected)
    assert sorted((e[2], e[3]) for e in LOG if e[0] == "finish") == sorted(expected)
    by_batch = {}
    for entry in LOG:
        if entry[0] == "finish":
            by_batch.setdefault(entry[3], []).extend(entry[4])
    assert {a: sorted(ns) for a, ns in by_batch.items()} == {"1:0": [0, 1, 2], "2:0": [3, 4]}


@SHAPES
def test_every_task_finishes_also_without_a_tuple(collapse):
    builder = numbers(1, 1)
    builder.set_bolt("a", Noted(), 4).global_grouping("spout")
    builder.set_bolt("b", NotedCommitter(), 4).global_grouping("a")
    builder.set_bolt("c", Noted(), 2).global_grouping("b")

    run(builder, collapse)

    finished = Counter(entry[1] for entry in LOG if entry[0] == "finish")
    assert finished == {"a": 4, "b": 4, "c": 2}


class Basic(BasicBolt):
    output_fields = ("tx", "n")

    def prepare(self, conf, context):
        self.seen = 0

    def execute(self, tuple, collector):
        self.seen += 1
        collector.emit([tuple[0], tuple["n"] * 10])


@SHAPES
def test_a_basic_bolt_works_before_and_behind_a_committer(collapse):
    builder = numbers(4, 4)
    builder.set_bolt("before", Basic(), 2).shuffle_grouping("spout")
    builder.set_bolt("commit", NotedCommitter()).global_grouping("before")
    builder.set_bolt("behind", Basic(), 2).shuffle_grouping("commit")
    builder.set_bolt("last", Noted()).global_grouping("behind")

    run(builder, collapse)

    finished = [(entry[1], entry[4]) for entry in LOG if entry[0] == "finish"]
    assert finished == [("commit", [0, 10, 20, 30]), ("last", [0, 100, 200, 300])]


class Streams(BatchBolt):
    streams: ClassVar = {"even": ("tx", "n"), "odd": ("tx", "n"), "to": Direct("tx", "n")}

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.tasks = context.component_tasks("direct")

    def execute(self, tuple):
        n = tuple["n"]
        self.collector.emit([self.id, n], stream="odd" if n % 2 else "even")
        self.collector.emit_direct(self.tasks[n % 2], [self.id, n], stream="to")


@SHAPES
def test_several_streams_and_direct_ones_reach_their_tasks(collapse):
    builder = numbers(6, 6)
    builder.set_bolt("split", Streams(), 2).shuffle_grouping("spout")
    builder.set_bolt("even", Noted()).global_grouping("split", stream="even")
    builder.set_bolt("direct", NotedCommitter(), 2).direct_grouping("split", stream="to")

    run(builder, collapse)

    finished = {entry[1:3]: entry[4] for entry in LOG if entry[0] == "finish"}
    tasks = sorted(task for name, task in finished if name == "direct")
    assert finished == {
        ("even", 4): [0, 2, 4],
        ("direct", tasks[0]): [0, 2, 4],
        ("direct", tasks[1]): [1, 3, 5],
    }


@SHAPES
@pytest.mark.parametrize(
    "grouping", ["shuffle", "none", "local_or_shuffle", "all", "global", "fields", "partial_key"]
)
def test_every_grouping_brings_every_tuple(grouping, collapse):
    builder = numbers(20, 10, partitions=2, parallelism=2)
    bolt = builder.set_bolt("b", NotedCommitter(), 3)
    fields = ["n"] if grouping in ("fields", "partial_key") else []
    getattr(bolt, f"{grouping}_grouping")("spout", *fields)

    run(builder, collapse)

    seen = Counter(n for entry in LOG if entry[0] == "finish" for n in entry[4])
    assert seen == Counter(dict.fromkeys(range(20), 3 if grouping == "all" else 1))


class Halfway(BatchBolt, Committer):
    """Keeps tuples, its collector, its context and a method of its own between the phases."""

    output_fields = ("tx", "n")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context
        self.tuples = []
        self.also = self.collector
        self.call = self.add
        self.sum = 0

    def add(self, n):
        self.sum += n

    def execute(self, tuple):
        assert self.context.resolved == {}
        self.tuples.append(tuple)
        self.call(tuple["n"])

    def finish_batch(self):
        assert self.collector is self.also
        assert isinstance(self.context, BatchContext)
        where = (self.context.this_component_id, self.context.this_task_index)
        self.call(1000)
        origins = {(t.source_component, t.source_stream, t.fields) for t in self.tuples}
        LOG.append((where, self.sum, sorted(t["n"] for t in self.tuples), origins))
        self.collector.emit([self.id, self.sum])


@SHAPES
def test_a_half_done_bolt_keeps_its_tuples_collector_context_and_methods(collapse):
    builder = numbers(3, 3)
    builder.set_bolt("half", Halfway()).global_grouping("spout")
    builder.set_bolt("after", Noted()).global_grouping("half")

    run(builder, collapse)

    origins = {("spout", "default", ("tx", "n"))}
    assert LOG[0] == (("half", 0), 1003, [0, 1, 2], origins)
    assert LOG[-1][-1] == [1003]


class Reduced(BatchBolt, Committer):
    """Leaves a connection behind when it is pickled, and opens another where it is used."""

    output_fields = ("tx",)

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.connection = None
        self.seen = []

    def __getstate__(self):
        return {**self.__dict__, "connection": None}

    def execute(self, tuple):
        self.connection = self.connection or threading.Lock()
        self.seen.append(tuple["n"])

    def finish_batch(self):
        LOG.append((self.connection, self.seen))


def test_a_bolt_says_by_getstate_what_is_left_behind_between_the_phases():
    builder = numbers(2, 2)
    builder.set_bolt("b", Reduced()).global_grouping("spout")

    run(builder)

    assert LOG == [(None, [0, 1])]


class Locked(BatchBolt):
    output_fields = ("tx",)

    def execute(self, tuple):
        self.connection = threading.Lock()


def test_an_attribute_that_cannot_be_pickled_between_the_phases_is_named():
    builder = numbers(1, 1)
    builder.set_committer_bolt("b", Locked()).global_grouping("spout")

    with pytest.raises(NotPicklableError, match=r"bolt 'b' between the phases.*connection"):
        run(builder, conf={"max_retries": 0})


def test_a_bolt_that_finishes_in_processing_need_not_be_picklable():
    builder = numbers(1, 1)
    builder.set_bolt("b", Locked()).global_grouping("spout")

    run(builder)


class FailsAt(Noted):
    """Fails each batch once, at one place."""

    def __init__(self, where):
        self.where = where

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.fail("prepare")

    def fail(self, where):
        if where == self.where and self.id.attempt_id == 0:
            raise FailedException(f"in {where}")

    def execute(self, tuple):
        super().execute(tuple)
        self.fail("execute")

    def finish_batch(self):
        self.fail("finish_batch")
        super().finish_batch()


class FailingCommitter(FailsAt, Committer):
    pass


@SHAPES
@pytest.mark.parametrize("kind", [FailsAt, FailingCommitter])
@pytest.mark.parametrize("where", ["prepare", "execute", "finish_batch"])
def test_a_failed_exception_replays_the_batch_and_stops_later_stages(kind, where, collapse):
    builder = numbers(4, 2)
    builder.set_bolt("fails", kind(where)).global_grouping("spout")
    builder.set_bolt("after", NotedCommitter(), 2).fields_grouping("fails", "n")

    run(builder, collapse, conf={"max_retries": 0})

    finished = [(e[1], e[3], e[4]) for e in LOG if e[0] == "finish" and e[4]]
    assert [entry for entry in finished if entry[0] == "fails"] == [
        ("fails", "1:1", [0, 1]),
        ("fails", "2:1", [2, 3]),
    ]
    after = Counter(n for name, attempt, ns in finished if name == "after" for n in ns)
    assert after == {0: 1, 1: 1, 2: 1, 3: 1}
    assert not any(e[0] == "finish" and e[1] == "after" and e[3].endswith(":0") for e in LOG)


def test_the_reason_of_a_failure_is_told(caplog):
    builder = numbers(1, 1)
    builder.set_bolt("b", FailingCommitter("finish_batch")).global_grouping("spout")

    with caplog.at_level(logging.WARNING):
        run(builder)

    assert "batch 1:0 failed and is replayed: in finish_batch" in caplog.text


class Raises(Noted):
    def execute(self, tuple):
        raise ZeroDivisionError("no such luck")


def test_any_other_error_stops_the_run_after_some_retries():
    builder = numbers(1, 1)
    builder.set_bolt("b", Raises()).global_grouping("spout")

    with pytest.raises(ZeroDivisionError, match="no such luck"):
        run(builder, conf={"max_retries": 2})

    assert [entry[3] for entry in LOG] == ["1:0", "1:1", "1:2"]


class Foreign(Noted):
    def execute(self, tuple):
        self.collector.emit([TransactionAttempt(9, 9), tuple["n"]])


def test_a_tuple_of_another_attempt_stops_the_run():
    builder = numbers(1, 1)
    builder.set_bolt("b", Foreign()).global_grouping("spout")

    with pytest.raises(EmitError, match="must be the transaction attempt 1:"):
        run(builder, conf={"max_retries": 0})


def test_the_first_txid_is_1_and_its_first_attempt_0():
    builder = numbers(1, 1)
    builder.set_bolt("b", Noted()).global_grouping("spout")

    run(builder)

    assert LOG[0] == ("prepare", "b", 2, "1:0")


class Options(Noted):
    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        LOG.append((conf["mine"], conf["topology.max.spout.pending"]))


def test_a_bolt_gets_the_run_s_options_and_over_them_its_own():
    builder = numbers(1, 1)
    bolt = builder.set_bolt("b", Options()).global_grouping("spout")
    bolt.add_configuration("mine", 7)

    run(builder, conf={"max_spout_pending": 3})

    assert LOG[1] == (7, 3)


def test_a_reported_error_is_logged_and_fails_nothing(caplog):
    class Reports(Noted):
        def execute(self, tuple):
            self.collector.report_error(ValueError("odd"))

    builder = numbers(1, 1)
    builder.set_bolt("b", Reports()).global_grouping("spout")

    with caplog.at_level(logging.WARNING):
        run(builder)

    assert "b: ValueError: odd" in caplog.text


class Dies(Noted, Committer):
    """Its worker dies twice, after the write."""

    deaths = 2

    def finish_batch(self):
        super().finish_batch()
        if Dies.deaths:
            Dies.deaths -= 1
            raise LostWorker


def test_a_part_whose_worker_dies_is_run_again_under_the_same_attempt():
    Dies.deaths = 2
    builder = numbers(1, 1)
    builder.set_bolt("b", Dies()).global_grouping("spout")

    run(builder)

    finished = [entry for entry in LOG if entry[0] == "finish"]
    assert finished == [("finish", "b", 2, "1:0", [0])] * 3


def shard_rows(order, staged_by=None):
    """Run a bolt over frames that came in this order; return what it sends on."""
    builder = numbers(1, 1, parallelism=3)
    builder.set_bolt("b", Noted()).shuffle_grouping("spout")
    builder.set_bolt("c", Noted(), 3).shuffle_grouping("b")
    topology = builder.build_topology()
    shape = spread(topology.outline(), 2)
    header = runtime.BatchHeader(
        attempt=TransactionAttempt(1, 0), commit=False, spout_id="spout",
        late=frozenset(), conf={},
        components={s.id: pack(s.component) for s in topology.components.values()},
    )  # fmt: skip
    stage = next(n for n, s in enumerate(shape.stages) if "b" in s.components)
    frames = [
        Frame(source, "default", topology.tasks["b"][0], [(header.attempt, source * 10 + i)
              for i in range(4)])
        for source in order
    ]  # fmt: skip
    rows = [ShardInput([frame]).row(stage, 0) for frame in frames]
    return list(run_stage(shape, header, stage, rows, Worker()))


def test_a_task_that_is_run_again_sends_the_same_however_its_input_comes():
    one, other = shard_rows([1, 2, 3]), shard_rows([3, 1, 2])

    def sent(rows):  # but for what has times in it, and goes to nobody's input
        return [row for row in rows if row.stage not in (COUNTED, BUSY)]

    assert sent(one) == sent(other)
    (mine,), (theirs,) = runtime.counted(one), runtime.counted(other)
    assert (mine.emitted, mine.transferred) == (theirs.emitted, theirs.transferred)
    assert mine.executed == theirs.executed == 12


@pytest.mark.parametrize(
    ("collapse", "learned", "stages"),
    [
        (2_000, [], 2),
        (2_000, [(2_000, None)], 1),
        (2_000, [(2_001, None)], 2),
        (2_000, [(100_000, 0.05)], 1),
        (2_000, [(100_000, 0.5)], 2),
        (2_000, [(100_000, 0.5), (100_000, 0.05)], 2),
        (2_000, [(100_000, 0.5), *[(100_000, 0.05)] * 9], 1),
        (0, [(10, 0.001)], 2),
        # On two workers: with two tasks each has one, of eight each took four times as long.
        (2_000, [(100_000, 0.2, 2)], 2),
        (2_000, [(100_000, 0.2, 8)], 1),
        (2_000, [(100_000, 0.6, 8)], 2),
        (2_000, [(100_000, 0.2, 1)], 2),
    ],
)
def test_a_batch_is_one_task_if_its_bolts_have_little_to_do(collapse, learned, stages):
    builder = numbers(1, 1, parallelism=2)
    builder.set_bolt("b", NotedCommitter()).global_grouping("spout")
    phases = runtime.Phases(builder.build_topology(), Config(wave_collapse_tuples=collapse), 2)

    for one in learned:
        phases.processed(*one)

    attempt, metadata = TransactionAttempt(1, 0), {"spout": []}
    assert len(phases.processing(attempt, metadata).shape.stages) == stages


@pytest.mark.parametrize(
    ("busy", "computed", "extra_s"),
    [
        ([], [], 0.0),
        ([3_000_000], [20_000], 0.02),  # it waits: that takes as long in the driver
        ([1_000_000, 3_000_000, 500_000], [1000, 2000, 3000], 1.506),  # they wait one by one
    ],
)
def test_what_side_by_side_is_quicker_is_slower_in_the_driver(busy, computed, extra_s):
    rows = [Row(BUSY, 0, each, b"") for each in busy]
    rows += [Row(COMPUTED, 0, each, b"") for each in computed]
    rows.append(Row(DRIVER, 0, 77, b""))

    assert runtime.extra_here_s(rows) == pytest.approx(extra_s)


def test_each_shard_of_a_commit_tells_how_long_it_worked_and_computed():
    builder = numbers(1, 1, parallelism=2)
    builder.set_bolt("b", NotedCommitter(), 2).shuffle_grouping("spout")
    phases = runtime.Phases(builder.build_topology(), Config(), 2)
    processing = phases.processing(TransactionAttempt(1, 0), {"spout": []})
    first = runtime.first_rows(processing.shape, "spout", {})
    left = [row for row in runtime.run_here(processing, first, Worker()) if row.stage >= 0]

    done = runtime.run_here(phases.commit(processing, {}, None), left, Worker())

    told = [row.stage for row in done]
    shards = processing.shape.stages[-1].shards
    assert (told.count(BUSY), told.count(COMPUTED)) == (shards, shards)


def test_a_collapsed_batch_is_one_shard():
    builder = numbers(1, 1, parallelism=3)
    builder.set_bolt("b", NotedCommitter(), 4).shuffle_grouping("spout")
    topology = builder.build_topology()

    shape = collapsed(topology.outline())

    assert [(row.stage, row.shard) for row in runtime.first_rows(shape, "spout", {})] == [(0, 0)]
    assert runtime.commit_stages(shape, topology.late) == [0]


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_a_batch_begins_with_one_row_for_each_shard_of_its_first_stage(tasks):
    builder = numbers(1, 1, parallelism=tasks)
    builder.set_bolt("b", NotedCommitter(), 5).global_grouping("spout")
    shape = spread(builder.build_topology().outline(), 4)

    assert [(row.stage, row.shard) for row in runtime.first_rows(shape, "spout", {})] == [
        (0, shard) for shard in range(tasks)
    ]
    assert [stage.shards for stage in shape.stages] == [tasks, 4]

    run(builder, workers=4)

    assert sum(entry[0] == "finish" for entry in LOG) == 5


def test_there_is_nothing_to_do_in_a_commit_without_committers():
    builder = numbers(1, 1)
    builder.set_bolt("b", Noted()).shuffle_grouping("spout")
    topology = builder.build_topology()

    assert runtime.commit_stages(spread(topology.outline(), 2), topology.late) == []
    run(builder)
    assert LOG[-1][0] == "finish"
