"""What `explain` says that a batch costs is what it costs: jobs and shuffles counted on Spark."""

from __future__ import annotations

import itertools

import pytest
from pyspark.sql import functions as F

from tests.trident.support import Total, capture, finish
from waterspout import Config, faults
from waterspout.faults import Fault, FaultPlan
from waterspout.spark.compiler import Compiler
from waterspout.spark.session import SparkRuntime
from waterspout.spouts._reads import RowsRead
from waterspout.state import MemoryMapState, StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident import (
    CombinerAggregator,
    Count,
    GroupedMultiReducer,
    MapGet,
    Split,
    Sum,
    TridentTopology,
    expr,
)
from waterspout.trident.plan.costs import Case, cost_of
from waterspout.trident.plan.plan import Phase
from waterspout.trident.plan.schedule import Derive, KeepRows, ReadSource
from waterspout.trident.runtime.routing import PARTITION
from waterspout.trident.runtime.states import open_state

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

_numbers = itertools.count(1)
ROWS = [("the cow jumped over the moon", 1), ("the man went", 2), ("four score and", 3)] * 3


class Largest(CombinerAggregator[int]):
    def init(self, tuple):
        return tuple[0]

    def combine(self, left, right):
        return max(left, right)

    def zero(self):
        return -1

    def output_types(self, inputs):
        return ["bigint"]


class Sizes(GroupedMultiReducer[list]):
    """How many tuples each of two streams has in a group."""

    def init(self, collector, group):
        return [0, 0]

    def execute(self, state, stream_index, group, tuple, collector):
        state[stream_index] += 1

    def complete(self, state, group, collector):
        collector.emit(state)


class Reached:
    """States that executors reach, or only the driver, each in a place of its own."""

    def __init__(self, folder, *, by_tasks):
        self._folder = folder
        self._by_tasks = by_tasks
        self._count = 0

    def __call__(self):
        self._count += 1
        return SQLiteState.opaque(
            self._folder / f"{self._count}.db", table="t", driver_only=not self._by_tasks
        )


def double(n) -> int:
    return 2 * n


def is_odd(n):
    return n % 2 == 1


def word_count(topology, rows, state):
    words = rows.each("s", Split(), out="word")
    words.group_by("word").persistent_aggregate(state(), Count(), out="count")


def python_word_count(topology, rows, state):
    words = rows.each("s", lambda s: s.split(), out="words array<string>").each(
        "words", expr("explode(words)"), out="word string"
    )
    words.group_by("word").persistent_aggregate(state(), Count(), out="count")


def grand_total(topology, rows, state):
    rows.persistent_aggregate(state(), "n", Sum(), out="total")


def reduced(topology, rows, state):
    rows.group_by("s").persistent_aggregate(state(), "n", Total(), out="total")


def used_twice(topology, rows, state):
    shared = rows.each("n", double, out="m bigint")
    shared.group_by("s").persistent_aggregate(state(), "m", Sum(), out="total")
    shared.filter("m", is_odd).group_by("m").persistent_aggregate(state(), Count(), out="count")


def joined(topology, rows, state):
    left = rows.group_by("s").aggregate(Count(), out="c")
    right = rows.each("s", expr("length(s)"), out="size int").project(["s", "size"])
    both = topology.join(left, "s", right, "s", out="s, c, size")
    both.group_by("size").persistent_aggregate(state(), Count(), out="count")


def joined_thrice(topology, rows, state):
    parts = [rows.filter("n", expr(f"n <> {i}")).project(["s", "n"]) for i in (1, 2, 3)]
    both = topology.join(parts, ["s", "s", "s"], out="s, a, b, c", how=["inner", "inner", "outer"])
    both.group_by("s").persistent_aggregate(state(), Count(), out="count")


def joined_outer(topology, rows, state):
    left, right = rows.filter("n", expr("n < 3")), rows.filter("n", expr("n > 1"))
    both = topology.join(left, "s", right, "s", out="s, a, b", how="outer")
    both.group_by("s").persistent_aggregate(state(), Count(), out="count")


def merged(topology, rows, state):
    small, large = rows.filter("n", is_odd), rows.filter("n", expr("n > 1"))
    both = topology.merge(small, large)
    both.group_by("s").persistent_aggregate(state(), Count(), out="count")


def combined(topology, rows, state):
    largest = rows.group_by("s").aggregate("n", Largest(), out="most")
    largest.group_by("most").persistent_aggregate(state(), Count(), out="count")


def combined_into_a_state(topology, rows, state):
    rows.group_by(["s", "n"]).persistent_aggregate(state(), "n", Largest(), out="most")


def combined_whole(topology, rows, state):
    rows.aggregate("n", Largest(), out="most").persistent_aggregate(
        state(), "most", Sum(), out="total"
    )


def by_partition(topology, rows, state):
    parts = rows.shuffle().partition_aggregate("n", Total(), out="total").parallelism_hint(3)
    parts.persistent_aggregate(state(), "total", Sum(), out="total")


def by_one_partition(topology, rows, state):
    parts = rows.partition_aggregate("n", Largest(), out="most")
    parts.aggregate("most", Largest(), out="most").group_by("most").persistent_aggregate(
        state(), Count(), out="count"
    )


def grouped_in_one(topology, rows, state):
    few = rows.global_().group_by("s").aggregate("n", Largest(), out="most")
    few.group_by("most").aggregate(Count(), out="c").group_by("c").persistent_aggregate(
        state(), Count(), out="count"
    )


def regrouped(topology, rows, state):
    counts = rows.partition_by("s").group_by(["s", "n"]).aggregate(Count(), out="c")
    more = counts.each("c", expr("c + 1"), out="d bigint")
    more.group_by(["s", "n"]).persistent_aggregate(state(), "d", Sum(), out="total")


def regrouped_twice(topology, rows, state):
    counts = rows.group_by(["s", "n"]).aggregate(Count(), out="c")
    counts.group_by(["n", "s"]).persistent_aggregate(state(), "c", Sum(), out="total")
    counts.group_by("c").persistent_aggregate(state(), Count(), out="times")


def local(topology, rows, state):
    near = rows.local_or_shuffle().parallelism_hint(3).filter("n", is_odd).local_or_shuffle()
    near.group_by("s").persistent_aggregate(state(), Count(), out="count")


def reduced_together(topology, rows, state):
    sides = [rows.filter("n", expr("n > 1")), rows.filter("n", expr("n < 3"))]
    grouped = [side.group_by("s") for side in sides]
    both = topology.multi_reduce(grouped, Sizes(), "a bigint, b bigint").parallelism_hint(3)
    both.group_by("a").persistent_aggregate(state(), Count(), out="count")


def hinted(topology, rows, state):
    rows.each("n", double, out="m bigint").parallelism_hint(3).group_by("m").persistent_aggregate(
        state(), Count(), out="count"
    )


def asked(topology, rows, state):
    counts = rows.group_by("s").persistent_aggregate(state(), Count(), out="count")
    seen = rows.state_query(counts, "s", MapGet(), out="before bigint")
    seen.each("n", double, out="m bigint").filter("m", is_odd)


def asked_static_twice(topology, rows, state):
    known = topology.new_static_state(MemoryMapState(StateKind.OPAQUE, "known"))
    found = rows.state_query(known, "s", MapGet(), out="known bigint")
    found.group_by("s").persistent_aggregate(state(), Count(), out="count")
    found.persistent_aggregate(state(), "n", Sum(), out="total")


def asked_on_partitions(topology, rows, state):
    counts = rows.group_by("s").persistent_aggregate(state(), Count(), out="count")
    spread = rows.shuffle().parallelism_hint(3)
    seen = spread.state_query(counts, "s", MapGet(), out="before bigint")
    seen.partition_aggregate("n", Total(), out="total")


def followed(topology, rows, state):
    counts = rows.group_by("s").persistent_aggregate(state(), Count(), out="count")
    changed = counts.new_values_stream().each("count", double, out="m bigint")
    changed = changed.filter("m", lambda m: m > 0)
    changed.group_by("m").persistent_aggregate(state(), Count(), out="times")


def kept_as_it_is(topology, rows, state):
    counts = rows.group_by("s").persistent_aggregate(state(), Count(), out="count")
    capture(counts.new_values_stream(), "count")


def kept_on_partitions(topology, rows, state):
    counts = rows.group_by("s").persistent_aggregate(state(), Count(), out="count")
    changed = counts.new_values_stream().parallelism_hint(2)
    capture(changed, "count")


def followed_twice(topology, rows, state):
    counts = rows.group_by("s").persistent_aggregate(state(), Count(), out="count")
    changed = counts.new_values_stream().each("count", double, out="m bigint")
    changed.group_by("m").persistent_aggregate(state(), Count(), out="times")
    changed.aggregate("m", Largest(), out="most")


TOPOLOGIES = (
    word_count,
    python_word_count,
    grand_total,
    reduced,
    used_twice,
    joined,
    joined_thrice,
    joined_outer,
    merged,
    combined,
    combined_into_a_state,
    combined_whole,
    by_partition,
    by_one_partition,
    grouped_in_one,
    regrouped,
    regrouped_twice,
    reduced_together,
    hinted,
    local,
    asked,
    asked_static_twice,
    asked_on_partitions,
    followed,
    followed_twice,
    kept_as_it_is,
    kept_on_partitions,
)


WRITTEN_BY_TASKS = (
    word_count,
    reduced,
    used_twice,
    joined,
    combined,
    combined_into_a_state,
    by_partition,
    asked,
    asked_on_partitions,
    followed,
    followed_twice,
)


def jobs_of(spark, topology, txid, phase):
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    return list(tracker.getJobIdsForTag(f"waterspout-{topology.name}-{txid}-0-{phase.value}"))


def stages_of(spark, jobs):
    """How many stages the jobs had that really ran."""
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(s) for j in jobs for s in tracker.getJobInfo(j).stageIds]
    return sum(1 for stage in found if stage is not None and stage.numCompletedTasks > 0)


def counted(spark, topology, txid):
    """Jobs for processing, jobs for commit, and shuffles of a batch."""
    early, late = (jobs_of(spark, topology, txid, phase) for phase in Phase)
    return len(early), len(late), stages_of(spark, early + late) - len(early + late)


def built(build, state, name):
    topology = TridentTopology(name)
    rows = topology.new_stream("rows", FixedBatchSpout("s string, n bigint", len(ROWS), ROWS))
    build(topology, rows, state)
    return topology


@pytest.fixture
def sorting(spark):
    """Joins without broadcasts, so that every one of them shuffles."""
    name = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.conf.get(name)
    spark.conf.set(name, "-1")
    yield spark
    spark.conf.set(name, before)


@pytest.fixture
def not_tiny(monkeypatch):
    """Batches are as if they were larger than one task should read."""
    monkeypatch.setattr(RowsRead, "is_tiny", False)


def run_and_count(spark, folder, build, case):
    by_tasks = case is Case.BY_TASKS
    name = f"{build.__name__}-{next(_numbers)}"  # jobs are found by the topology's name
    topology = built(build, Reached(folder, by_tasks=by_tasks), name)
    conf = Config(retry_backoff_millis=1, commit_in="tasks" if by_tasks else "driver")
    finish(topology, spark, conf, timeout=200)
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions"))
    return counted(spark, topology, 1), cost_of(topology.plan(conf), conf, case, partitions)


def expected(cost):
    return len(cost.jobs(Phase.PROCESSING)), len(cost.jobs(Phase.COMMIT)), len(cost.shuffles)


# Every fifth one in each run, all in soak.
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, id=build.__name__, marks=[pytest.mark.soak] if number % 5 else [])
        for number, build in enumerate(TOPOLOGIES)
    ],
)
def test_a_batch_has_the_jobs_and_shuffles_that_were_predicted(sorting, not_tiny, tmp_path, build):
    found, cost = run_and_count(sorting, tmp_path, build, Case.COLLECTED)

    assert found == expected(cost)


# Those of which one task can read a tiny batch, and some of which it cannot.
@pytest.mark.parametrize("build", [word_count, grand_total, regrouped_twice, used_twice, joined])
def test_a_tiny_batch_has_the_jobs_and_shuffles_that_were_predicted(sorting, tmp_path, build):
    found, cost = run_and_count(sorting, tmp_path, build, Case.TINY)

    assert found == expected(cost)
    assert (not cost.shuffles) == (build in (word_count, grand_total, regrouped_twice))


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, id=build.__name__, marks=[pytest.mark.soak] if number % 3 else [])
        for number, build in enumerate(WRITTEN_BY_TASKS)
    ],
)
def test_a_batch_that_tasks_write_has_the_jobs_and_shuffles_that_were_predicted(
    sorting, tmp_path, build
):
    found, cost = run_and_count(sorting, tmp_path, build, Case.BY_TASKS)

    assert found == expected(cost)


@pytest.mark.parametrize(
    ("build", "more", "exchanges"),
    [(word_count, 0, 1), (word_count, 3, 2), (combined_into_a_state, 0, 1),
     (combined_into_a_state, 3, 1)],
    ids=["native", "native, other partitions", "Python", "Python, other partitions"],
)  # fmt: skip
def test_a_grouped_aggregate_that_tasks_write_is_shuffled_once_and_to_the_states_partitions(
    spark, tmp_path, build, more, exchanges
):
    # Spark shuffles its own aggregates over as many partitions as it is set to.
    spark_has = int(spark.conf.get("spark.sql.shuffle.partitions"))
    conf = Config(commit_in="tasks", state_partitions=spark_has + more)
    topology = built(build, Reached(tmp_path, by_tasks=True), f"{build.__name__}-once")
    plan = topology.plan(conf)
    cost = cost_of(plan, conf, Case.BY_TASKS, spark_has)
    (update,) = plan.updates.values()

    compiler, frames = Compiler(SparkRuntime(spark), plan, conf), {}
    for step in cost.schedule.processing:
        match step:
            case ReadSource():
                frames[step.node] = spark.createDataFrame(ROWS, step.node.schema.ddl())
            case Derive():
                frames[step.node] = compiler.derived(step, frames, TransactionAttempt(1, 0))
            case KeepRows(exchanges=moves):
                frame = compiler.with_partition(update, frames[step.node])
                frame = frame.repartitionById(conf.state_partitions, PARTITION) if moves else frame
    where = frame.select(PARTITION, F.spark_partition_id().alias("task")).distinct().collect()

    executed = frame._jdf.queryExecution().executedPlan().toString()
    assert executed.count("Exchange ") == len(cost.shuffles) == exchanges
    assert ("partial_count" in executed) == (build is word_count)
    assert len(where) > 1
    assert all(owner == task for owner, task in where)


def test_a_task_that_got_several_partitions_of_a_state_writes_each_of_them(spark, tmp_path):
    # Adaptive execution puts small partitions together behind a shuffle of its own.
    settings = {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "5"}
    before = {name: spark.conf.get(name) for name in settings}
    topology = built(word_count, Reached(tmp_path, by_tasks=True), "adaptive")
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        conf = Config(commit_in="tasks", state_partitions=5, retry_backoff_millis=1)
        finish(topology, spark, conf, timeout=200)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)

    words = [word for sentence, _ in ROWS for word in sentence.split()]
    (spec,) = topology.plan(conf).states.values()
    state = open_state(spec, conf, 0, None)
    found = state.multi_get([(word,) for word in sorted(set(words))])
    assert found == [words.count(word) for word in sorted(set(words))]


def test_a_small_side_of_a_join_is_sent_to_all_by_one_more_job(spark, tmp_path):
    (early, late, _), cost = run_and_count(spark, tmp_path, joined, Case.COLLECTED)

    assert cost.broadcasts == 1
    assert early == len(cost.jobs(Phase.PROCESSING)) + cost.broadcasts
    assert late == len(cost.jobs(Phase.COMMIT))


def test_new_values_that_never_leave_the_driver_are_those_of_the_batch_also_after_a_replay(
    spark, tmp_path
):
    # The first state has been written when the second is about to be.
    faults.install(FaultPlan([Fault("write.before", "fail", nth=2, where={"txid": 1})]))
    topology = TridentTopology("kept")
    rows = topology.new_stream("rows", FixedBatchSpout("s string, n bigint", 4, ROWS[:6]))
    state = SQLiteState.opaque(tmp_path / "t.db", table="t")
    counts = rows.group_by("s").persistent_aggregate(state, Count(), out="count")
    counts.parallelism_hint(1)
    kept = capture(counts.new_values_stream(), "count", "s")

    run = finish(topology, spark, Config(retry_backoff_millis=1))

    first, second, third = (s for s, _ in ROWS[:3])
    assert [p["attempt"] for p in run.recent_progress] == [1, 0]
    assert kept.batches == {
        1: [(1, third), (1, second), (2, first)],
        2: [(2, third), (2, second)],
    }
