"""Spouts of every kind on real Spark: read where they should be, replayed as they say."""

from __future__ import annotations

import json
import os
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.soaking import soaked
from tests.trident.support import capture, finish, put, wait_for
from waterspout import Config, FailedException, faults, submit
from waterspout._schema import Schema
from waterspout.errors import RunFailedError
from waterspout.faults import Fault, FaultPlan
from waterspout.spark.reads import read_frame
from waterspout.spark.session import SparkRuntime
from waterspout.spouts import DataFrameSpout, EmittingSpout, SpoutKind
from waterspout.spouts._reads import POSITION, FilesRead, FrameRead, RangeRead, RowsRead
from waterspout.spouts._sources import source_of
from waterspout.spouts.files import FileSpout
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FeederSpout
from waterspout.transactional import (
    BatchCoordinator,
    BatchEmitter,
    MemoryTransactionalSpout,
    OpaqueEmitter,
    OpaqueMemoryTransactionalSpout,
    OpaquePartitionedTransactionalSpout,
    TransactionalSpout,
    TransactionAttempt,
)
from waterspout.transactional._spouts import SourceCoordinator
from waterspout.trident import Count, Filter, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

AT_ONCE = Config(retry_backoff_millis=1, spout_max_batch_size=3)


class Numbers(TransactionalSpout):
    """0, 1, 2... up to a limit; emitters share each range and say where they run."""

    output_fields = ("tx", "n bigint", "pid bigint", "task int")

    def __init__(self, limit, size):
        self.limit, self.size = limit, size

    def get_coordinator(self, conf, context):
        return NumbersCoordinator(self)

    def get_emitter(self, conf, context):
        tasks = len(context.component_tasks(context.this_component_id))
        return NumbersEmitter(context.this_task_index, tasks)


class NumbersCoordinator(BatchCoordinator):
    def __init__(self, spout):
        self.spout = spout
        self.end = 0

    def is_ready(self):
        return self.end < self.spout.limit

    def initialize_transaction(self, txid, previous):
        start = 0 if previous is None else previous[1]
        self.end = min(start + self.spout.size, self.spout.limit)
        return [start, self.end]


class NumbersEmitter(BatchEmitter):
    def __init__(self, index, tasks):
        self.index, self.tasks = index, tasks

    def emit_batch(self, attempt, metadata, collector):
        for n in range(*metadata):
            if n % self.tasks == self.index:
                collector.emit([attempt, n, os.getpid(), self.index])


class Stumbles:
    """Raises once: one attempt at a batch fails, though Spark tries the task again."""

    def __init__(self, folder):
        self.token = str(folder / "stumble")
        (folder / "stumble").touch()

    def __call__(self):
        if os.path.exists(self.token):
            os.unlink(self.token)
            raise FailedException("stumbled")


class Stumble(Filter):
    """Fails the first attempt at the batch with this value."""

    def __init__(self, folder, value):
        self.stumbles, self.value = Stumbles(folder), value

    def is_keep(self, tuple):
        if tuple[0] == self.value:
            self.stumbles()
        return True


class Listed(EmittingSpout):
    """Batch n is three numbers from 3n on."""

    transactional = True
    output_fields = "n bigint"

    def emit_batch(self, batch_id, collector):
        for n in range((batch_id - 1) * 3, min(batch_id * 3, 8)):
            collector.emit([n])


def fed():
    spout = FeederSpout("n", replay=True)
    for n in range(8):
        spout.feed([n], msg_id=n)
    return spout


class Table(DataFrameSpout):
    """The rows of a Parquet folder by ranges of ids; what is there by the newest file's name."""

    schema = "n bigint"

    def __init__(self, folder, step=3):
        self.folder, self.step = folder, step
        self.reads = []

    def next_range(self, txid, previous):
        newest = max((int(path.stem) for path in self.folder.glob("*.parquet")), default=-1)
        start = 0 if previous is None else previous[1]
        end = min(start + self.step, newest + 1)
        return [start, end] if end > start else None

    def read(self, spark, range):
        self.reads.append(range)
        rows = spark.read.schema("n bigint, other string").parquet(str(self.folder))
        return rows.where(rows.n.between(range[0], range[1] - 1))


def write_rows(folder, start, end):
    """Add rows to a table; the file is named by its last id."""
    folder.mkdir(exist_ok=True)
    table = pa.table({"n": range(start, end), "other": ["x"] * (end - start)})
    hidden = folder / f".{end}.tmp"
    pq.write_table(table, hidden)
    os.replace(hidden, folder / f"{end - 1}.parquet")


def table_of(tmp_path):
    write_rows(tmp_path / "table", 0, 5)
    write_rows(tmp_path / "table", 5, 8)
    return Table(tmp_path / "table")


HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
KINDS = {
    "rich spout": lambda tmp_path: (fed(), "n bigint"),
    "batch spout": lambda tmp_path: (Listed(), None),
    "transactional": lambda tmp_path: (Numbers(8, 3), None),
    "partitioned": lambda tmp_path: (MemoryTransactionalSpout(HALVES, "n", 2), None),
    "opaque": lambda tmp_path: (OpaqueMemoryTransactionalSpout(HALVES, "n", 2), None),
    "dataframe": lambda tmp_path: (table_of(tmp_path), None),
}


# In process every kind is tried at every point; here some in each run, all in soak.
IN_EACH_RUN = ("opaque", "dataframe")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[] if k in IN_EACH_RUN else [pytest.mark.soak]) for k in KINDS],
)
def test_a_replayed_batch_of_every_kind_ends_with_every_row_once(spark, tmp_path, kind):
    spout, out = KINDS[kind](tmp_path)
    topology = TridentTopology("kinds")
    numbers = topology.new_stream("numbers", spout, out=out).each("n", Stumble(tmp_path, 4))
    kept = capture(numbers, "n")

    run = finish(topology, spark, AT_ONCE, timeout=150)

    assert kept.rows == [(n,) for n in range(8)]
    assert len(kept.batches) >= 2
    assert run.last_progress["failures"] == 1


def test_emitters_run_on_executors_as_many_as_the_hint_says(spark):
    topology = TridentTopology("emitters")
    numbers = topology.new_stream("numbers", Numbers(25_000, 25_000)).parallelism_hint(2)
    kept = capture(numbers)

    run = finish(topology, spark)

    rows = kept.rows
    assert run.last_progress["input_rows"] == 25_000
    assert sorted(n for n, _, _ in rows) == list(range(25_000))
    assert {task for _, _, task in rows} == {0, 1}
    assert os.getpid() not in {pid for _, pid, _ in rows}


def test_without_a_hint_there_is_one_emitter(spark):
    topology = TridentTopology("emitter")
    kept = capture(topology.new_stream("numbers", Numbers(10, 10)))

    finish(topology, spark)

    assert {task for _, _, task in kept.rows} == {0}


class Fickle(MemoryTransactionalSpout):
    """Its emitter asks for a replay, once."""

    def __init__(self, folder):
        super().__init__([[1, 2]], "n", 2)
        self.stumbles = Stumbles(folder)

    def get_emitter(self, conf, context):
        return FickleEmitter(super().get_emitter(conf, context), self.stumbles)


class FickleEmitter:
    def __init__(self, emitter, stumbles):
        self.emitter, self.stumbles = emitter, stumbles

    def __getattr__(self, name):
        return getattr(self.emitter, name)

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        self.stumbles()
        self.emitter.emit_partition_batch(attempt, collector, partition, metadata)


def test_an_emitter_may_ask_for_a_replay(spark, tmp_path):
    topology = TridentTopology("fickle")
    kept = capture(topology.new_stream("numbers", Fickle(tmp_path)))

    # A crash would end the run at once.
    run = finish(topology, spark, Config(retry_backoff_millis=1, max_retries=0))

    assert kept.rows == [(1,), (2,)]
    assert "stumbled" in run.errors[0]["error"]


def counting(tmp_path, spout, kind="opaque"):
    topology = TridentTopology("counts")
    state = getattr(SQLiteState, kind)(tmp_path / "counts.db", table="counts")
    numbers = topology.new_stream("numbers", spout)
    numbers.group_by("n").persistent_aggregate(state, Count(), out="count")
    return topology


def counted(tmp_path):
    with sqlite3.connect(tmp_path / "counts.db") as db:
        return dict(db.execute("SELECT n, count FROM counts"))


@pytest.mark.parametrize("action", ["kill", soaked("raise")])
def test_a_worker_that_dies_while_it_emits_loses_and_doubles_nothing(spark, tmp_path, action):
    token = tmp_path / "token"
    faults.install(FaultPlan([Fault("processing", action, where={"txid": 2}, token=str(token))]))

    finish(counting(tmp_path, Numbers(9, 3)), spark)

    assert token.exists()
    assert counted(tmp_path) == dict.fromkeys(range(9), 1)


class Lines(OpaquePartitionedTransactionalSpout):
    """As in Storm: all there is now of a file of numbers, which grows whenever somebody asks."""

    output_fields = ("tx", "n bigint")

    def __init__(self, path, limit):
        self.path, self.limit = str(path), limit

    def get_coordinator(self, conf, context):
        return SourceCoordinator()

    def get_emitter(self, conf, context):
        return LinesEmitter(self)


class LinesEmitter(OpaqueEmitter):
    def __init__(self, spout):
        self.spout = spout

    def num_partitions(self):
        return 1

    def emit_partition_batch(self, attempt, collector, partition, last):
        with open(self.spout.path, "r+") as file:
            lines = file.read().splitlines()
            for line in lines[last or 0 :]:
                if int(line) % 3:  # every third line gives no tuple
                    collector.emit([attempt, int(line)])
            if len(lines) < self.spout.limit:
                print(len(lines), file=file)
        with open(f"{self.spout.path}.asked", "a") as file:
            print(os.getpid(), attempt.txid, file=file)
        return len(lines)


class Flags(OpaquePartitionedTransactionalSpout):
    """Two partitions of numbers, of which a file says that it is away; no class of ours beside."""

    output_fields = ("tx", "n bigint")

    def __init__(self, folder):
        self.folder = folder

    def get_coordinator(self, conf, context):
        return None

    def get_emitter(self, conf, context):
        return FlagsEmitter(self.folder)


class FlagsEmitter:
    def __init__(self, folder):
        self.folder = folder

    def num_partitions(self):
        return 3

    def next_metadata(self, txid, partition, last):
        if (self.folder / f"unplanned-{partition}").exists():
            raise TimeoutError("no answer")
        start = 0 if last is None else last + 1
        return start if start < 2 else None

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        if (self.folder / f"unread-{partition}").exists():
            raise ConnectionResetError("by peer")
        collector.emit([attempt, 10 * partition + metadata])


def test_partitions_that_cannot_be_asked_or_read_are_left_out_and_catch_up(spark, tmp_path):
    away = [tmp_path / "unplanned-1", tmp_path / "unread-2"]
    for flag in away:
        flag.touch()
    # A crash would end the run at once.
    config = Config(retry_backoff_millis=1, max_retries=0, idle_poll_millis=10)
    run = submit(counting(tmp_path, Flags(tmp_path)), spark, config)

    try:
        wait_for(lambda: run.snapshot().totals.committed >= 2)
        told = {(p.partition, p.error) for p in run.snapshot().unreachable}
        without = counted(tmp_path)
        for flag in away:
            flag.unlink()
        run.process_all_available(timeout=60)
    finally:
        run.stop()

    assert told == {(1, "TimeoutError: no answer"), (2, "ConnectionResetError: by peer")}
    assert without == {0: 1, 1: 1}
    assert counted(tmp_path) == {0: 1, 1: 1, 10: 1, 11: 1, 20: 1, 21: 1}
    assert run.snapshot().unreachable == ()


@pytest.mark.parametrize("commit_in", ["driver", soaked("tasks")])
def test_all_there_is_now_commits_over_a_growing_source_and_a_lost_worker(
    spark, tmp_path, commit_in, request
):
    if commit_in == "tasks":
        state = RedisState.opaque(request.getfixturevalue("redis_server").url, prefix="growing")
    else:
        state = SQLiteState.opaque(tmp_path / "counts.db", table="counts")
    path = tmp_path / "lines"
    path.write_text("0\n1\n2\n")
    token = tmp_path / "token"
    faults.install(FaultPlan([Fault("processing", "kill", where={"txid": 2}, token=str(token))]))
    topology = TridentTopology("growing")
    numbers = topology.new_stream("numbers", Lines(path, 8))
    counts = numbers.group_by("n").persistent_aggregate(state, Count(), out="count")

    run = finish(topology, spark, Config(commit_in=commit_in))

    assert token.exists()
    assert counts.multi_get([[n] for n in range(9)]) == [None, 1, 1, None, 1, 1, None, 1, None]
    assert run.last_progress["failures"] == 0
    asked = path.with_suffix(".asked").read_text().split()
    assert set(asked[::2]) == {str(os.getpid())}


def test_a_table_by_ranges_of_ids_is_counted_exactly_over_a_restart_with_a_pending_batch(
    spark, tmp_path
):
    folder = tmp_path / "table"
    write_rows(folder, 0, 5)
    token = tmp_path / "token"
    plan = [Fault("write.after", "raise", where={"txid": 2}, token=str(token))]
    faults.install(FaultPlan(plan))
    with pytest.raises(RunFailedError):
        finish(counting(tmp_path, Table(folder)), spark, Config(max_retries=0))
    faults.install(None)
    write_rows(folder, 5, 8)  # there is more by now, but the range of batch 2 is pinned

    again = Table(folder)
    finish(counting(tmp_path, again), spark)

    assert again.reads == [[3, 5], [5, 8]]
    assert counted(tmp_path) == dict.fromkeys(range(8), 1)


def test_new_rows_of_a_table_become_new_batches_of_a_running_topology(spark, tmp_path):
    folder = tmp_path / "table"
    folder.mkdir()
    topology = TridentTopology("grows")
    kept = capture(topology.new_stream("numbers", Table(folder)))
    run = submit(topology, spark, AT_ONCE)
    try:
        run.process_all_available(timeout=60)
        assert kept.rows == []
        write_rows(folder, 0, 2)
        wait_for(lambda: len(kept.rows) == 2)
        write_rows(folder, 2, 4)
        wait_for(lambda: len(kept.rows) == 4)
    finally:
        run.stop()

    assert kept.batches == {1: [(0,), (1,)], 2: [(2,), (3,)]}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda spark, range: spark.range(3), "without the field 'n' of its schema; it has id"),
        (
            lambda spark, range: spark.sql("SELECT 1 AS n"),
            "field 'n' is declared as bigint, but read gave int; write n int in the schema",
        ),
        (lambda spark, range: [1, 2], "read must return a DataFrame; it gave"),
    ],
)
def test_a_frame_that_is_not_what_was_declared_is_refused(spark, read, message):
    ranges = [[0, 3]]
    spout = DataFrameSpout.of(
        "n bigint", lambda txid, last: ranges[0] if last is None else None, read
    )
    topology = TridentTopology("declared")
    capture(topology.new_stream("numbers", spout))

    with pytest.raises(RunFailedError, match=message):
        finish(topology, spark, Config(max_retries=0))


def test_an_opaque_range_is_chosen_anew_for_the_next_attempt(spark, tmp_path):
    ranges = []

    def next_range(txid, previous):
        start = 0 if previous is None else previous[1]
        # The first attempt takes four, the next ones two.
        return [start, start + (2 if ranges else 4)] if start < 6 else None

    def read(spark, range):
        ranges.append(range)
        return spark.range(*range).selectExpr("id AS n", "'unused' AS more")

    topology = TridentTopology("opaque-frames")
    spout = DataFrameSpout.of("n bigint", next_range, read, kind=SpoutKind.OPAQUE)
    kept = capture(topology.new_stream("numbers", spout).each("n", Stumble(tmp_path, 3)), "n")

    finish(topology, spark, AT_ONCE)

    assert ranges[:2] == [[0, 4], [0, 2]]
    assert kept.rows == [(n,) for n in range(6)]


def positions(spark, read):
    frame = read_frame(
        SparkRuntime(spark), read, Config(), attempt=TransactionAttempt(1, 0), with_position=True
    )
    assert frame.columns == [*read.schema.names, POSITION]
    return sorted(tuple(row) for row in frame.collect())


def test_rows_and_numbers_are_known_by_their_index(spark):
    words = Schema.parse("word string")
    rate = Schema.parse("value bigint, timestamp timestamp")

    rows = positions(spark, RowsRead(words, [("b",), ("a",)], start=10))
    numbers = positions(spark, RangeRead(rate, 3, 5, 100.0, 2.0))

    assert rows == [("a", "11"), ("b", "10")]
    assert [(n, place) for n, _, place in numbers] == [(3, "3"), (4, "4")]


@pytest.mark.parametrize("form", ["text", "parquet"])
def test_lines_are_known_by_their_file_and_rows_of_parquet_by_their_number(spark, tmp_path, form):
    path = tmp_path / "in" / "a[1].part"
    if form == "text":
        put(path, "one\ntwo\n")
    else:
        path.parent.mkdir()
        pq.write_table(pa.table({"value": ["one", "two"]}), path)
    read = FilesRead(Schema.parse("value string"), form, [str(path)], 8)

    (one, first), (two, second) = positions(spark, read)

    assert (one, two) == ("one", "two")
    assert "part" in first
    assert "part" in second
    if form == "parquet":
        assert (first[-2:], second[-2:]) == ("#0", "#1")


def test_emitted_rows_are_known_by_partition_metadata_and_number(spark):
    spout = MemoryTransactionalSpout([["a", "b", "c"], ["x"]], "word", 2)
    read = source_of(spout, topology="t", spout_id="words").read([[[0, 1], [1, 2]], [None, [0, 1]]])

    found = positions(spark, read)

    assert [(word, json.loads(place)) for word, place in found] == [
        ("b", {"partition": 0, "metadata": [1, 2], "row": 0}),
        ("c", {"partition": 0, "metadata": [1, 2], "row": 1}),
        ("x", {"partition": 1, "metadata": [0, 1], "row": 0}),
    ]


def test_rows_of_a_frame_are_known_by_their_range_and_nothing_has_the_columns_too(spark):
    schema = Schema.parse("id bigint")
    read = FrameRead(schema, lambda session: session.range(2), "[0, 2]", "spout 'x'")

    assert positions(spark, read) == [(0, "[0, 2]"), (1, "[0, 2]")]
    assert positions(spark, FrameRead(schema, None, "null", "spout 'x'")) == []
    assert positions(spark, FilesRead(schema, "parquet", [], 0)) == []
    nothing = source_of(MemoryTransactionalSpout([[1]], "id", 1), topology="t", spout_id="s")
    assert positions(spark, nothing.read([[[0, 1], None]])) == []


@pytest.mark.soak
def test_the_messages_of_a_queue_are_counted_and_acked_when_their_batch_has_committed(
    spark, rabbitmq, tmp_path
):
    from waterspout.spouts.rabbitmq import RabbitMQSpout

    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"to be", b"or not", b"to be"])
    topology = TridentTopology("queue")
    bodies = topology.new_stream("bodies", RabbitMQSpout(rabbitmq.url, queue))
    kept = capture(bodies.each("body", Stumble(tmp_path, "or not")))

    run = finish(topology, spark, Config(retry_backoff_millis=1))

    assert run.last_progress["failures"] == 1, "the messages went back to the queue, and came again"
    assert kept.rows == [("or not",), ("to be",), ("to be",)]
    assert rabbitmq.waiting(queue) == 0, "all are acked"


def test_files_are_read_as_before(spark, tmp_path):
    put(tmp_path / "in" / "a.txt", "one\ntwo\n")
    topology = TridentTopology("files")
    kept = capture(topology.new_stream("lines", FileSpout(tmp_path / "in")))

    finish(topology, spark, Config(max_spout_pending=2))

    assert kept.rows == [("one",), ("two",)]
