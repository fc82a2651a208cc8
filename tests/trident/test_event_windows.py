"""Windows of event time in whole topologies, without Spark: their rules, and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import random
from functools import partial

import pytest

from tests.soaking import repeated
from tests.trident.event_windows_support import Oracle, SessionOracle, all_of
from tests.trident.support import capture
from waterspout import Config
from waterspout.coordination.events import BatchCommitted
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import NumberTooLargeError, TopologyError
from waterspout.metrics import RunStats
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun, MemoryLog, run_in_process
from waterspout.trident import (
    Average,
    CollectSet,
    Columns,
    Count,
    Max,
    Min,
    Sum,
    TridentTopology,
    combiner,
    reducer,
)
from waterspout.trident.plan.verdicts import verdict_of

SECOND = dt.timedelta(seconds=1)
FIELDS = "key string, at bigint, v bigint"


def millis(n):
    return dt.timedelta(milliseconds=n)


def rows_in(batches, fields=FIELDS):
    """A topology whose spout gives just these batches."""
    topology = TridentTopology("events")
    sizes = iter([len(batch) for batch in batches])
    log = MemoryLog(fields, [[row for b in batches for row in b]], take=lambda _: next(sizes, 0))
    return topology, topology.new_stream("rows", log)


def flat(kept):
    return [row for rows in kept.batches.values() for row in rows]


def test_a_window_closes_in_the_batch_in_which_the_watermark_passes_its_end():
    batches = [[("a", 1, 10), ("b", 9, 1)], [("a", 7, 5), ("a", 14, 1)], [("a", 15, 3)]]
    topology, rows = rows_in(batches)
    closed = rows.group_by("key").tumbling_window(
        millis(10), "v", Sum(), "total", event_time="at", lag=millis(5)
    )
    kept = capture(closed)

    run_in_process(topology)

    assert closed.fields == ("key", "window_start", "window_end", "total")
    assert {b: sorted(rows) for b, rows in kept.batches.items() if rows} == {
        3: [("a", 0, 10, 15), ("b", 0, 10, 1)]
    }


def test_late_rows_are_a_stream_and_in_no_window():
    batches = [[("a", 1, 1)], [("a", 25, 2)], [("b", 3, 3), ("a", None, 4), ("a", 19, 5)]]
    topology, rows = rows_in([*batches, [("a", 40, 6)]])
    late = []
    closed = rows.sliding_window(
        millis(20),
        millis(10),
        Count(),
        "n",
        event_time="at",
        late=lambda s: late.append(capture(s)),
    )
    kept = capture(closed)

    run_in_process(topology)

    assert flat(kept) == [(-10, 10, 1), (0, 20, 1), (10, 30, 2), (20, 40, 1)]
    assert sorted(flat(late[0]), key=str) == [("a", None, 4), ("b", 3, 3)]


def test_rows_that_are_too_late_are_counted_and_told(caplog):
    topology, rows = rows_in([[("a", 25, 1)], [("a", 3, 2), ("b", 4, 2), ("b", None, 2)]])
    kept = capture(rows.tumbling_window(millis(10), Count(), "n", event_time="at"))

    with caplog.at_level(logging.WARNING):
        run_in_process(topology)

    assert flat(kept) == []
    assert "window(Count): 3 rows of batch 2 came after their windows had closed" in caplog.text


@pytest.mark.parametrize("taken", [False, True])
def test_rows_that_are_too_late_are_in_the_progress_by_window(taken):
    batches = [[("a", 25, 1)], [("a", 3, 2), ("b", 4, 2), ("b", None, 2)], [("a", 26, 1)]]
    topology, rows = rows_in(batches)
    late = {"late": lambda stream: capture(stream)} if taken else {}
    capture(rows.tumbling_window(millis(10), Count(), "n", event_time="at", **late))
    progress, stats = [], RunStats()

    def listen(event):
        stats(event)
        progress.extend([event.progress] if isinstance(event, BatchCommitted) else [])

    LocalRun(topology, listener=listen).finish()

    assert [each.late_rows for each in progress] == [{}, {"window(Count)": 3}, {}]
    assert stats.totals()["late_rows"] == 3


def test_timestamps_give_windows_of_timestamps():
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    topology, rows = rows_in([[(start + SECOND,)], [(start + 61 * SECOND,)]], fields="at timestamp")
    kept = capture(rows.tumbling_window(60 * SECOND, Count(), "n", event_time="at"))

    run_in_process(topology)

    assert flat(kept) == [(start, start + 60 * SECOND, 1)]


AGGREGATES = {
    "arrow": Columns(
        n=Count(), total=("v", Sum()), mean=("v", Average()), low=("v", Min()), high=("v", Max())
    ),
    "python": Columns(n=Count(), ids=("v", CollectSet())),
    "own": combiner(lambda v: v, lambda a, b: a + b, 0, out="bigint"),
}
FOLDS = {
    "arrow": lambda vs: (len(vs), sum(vs), sum(vs) / len(vs), min(vs), max(vs)),
    "python": lambda vs: (len(vs), sorted(set(vs))),
    "own": lambda vs: (sum(vs),),
}


def drawn(rng):
    """Draw batches of rows that come out of order, some far too late."""
    now, batches, values = -50, [], itertools.count(rng.randrange(50))
    for _ in range(rng.randrange(1, 9)):
        now += rng.choice([0, 5, 20, 100])
        times = [now + rng.randrange(-40, 20) for _ in range(rng.randrange(1, 8))]
        batches.append(
            [(rng.choice(["a", "b", None]), rng.choice([*[t] * 20, None]), next(values) % 97)
             for t in times]
        )  # fmt: skip
    return batches


def drawn_window(rng, fold):
    """Draw a window: how it is written, and its oracle."""
    step, lag = rng.choice([1, 4, 10, 25]), rng.choice([0, 5, 40])
    if rng.random() < 0.4:
        return (
            lambda s: partial(s.session_window, millis(step)),
            lag,
            SessionOracle(step, lag, fold),
        )
    span = step * rng.choice([1, 2, 3]) + rng.choice([0, 1, 2])
    return (
        lambda s: partial(s.sliding_window, millis(span), millis(step)),
        lag,
        Oracle(span, step, lag, fold),
    )


@repeated(10, in_soak=200)
@pytest.mark.parametrize("name", list(AGGREGATES))
def test_drawn_batches_give_the_windows_of_the_oracle(name, count):
    for seed in range(count):
        rng = random.Random(f"{name} {seed}")
        batches = drawn(rng)
        method, lag, oracle = drawn_window(rng, FOLDS[name])
        topology, rows = rows_in(batches)
        late = []
        args, out = (["v"], "total") if name == "own" else ([], None)
        closed = method(rows.group_by("key"))(
            *args,
            AGGREGATES[name],
            out=out,
            event_time="at",
            lag=millis(lag),
            late=lambda s, late=late: late.append(capture(s)),
        )
        kept = capture(closed)

        run_in_process(topology, Config(max_retries=0))

        results, too_late = all_of(oracle, batches)
        assert sorted(flat(kept), key=str) == sorted(results, key=str), f"seed {seed}"
        assert sorted(flat(late[0]), key=str) == sorted(too_late, key=str), f"seed {seed}"


def test_the_store_does_not_grow_with_the_batches(tmp_path):
    batches = [[(f"k{i % 7}", 10 * n + i, 1) for i in range(20)] for n in range(60)]
    topology, rows = rows_in(batches)
    store = SQLiteState.opaque(tmp_path / "w.db", table="windows")
    capture(
        rows.group_by("key").tumbling_window(
            millis(50), Count(), "n", store=store, event_time="at", lag=millis(20)
        )
    )

    run_in_process(topology)

    spec = topology.plan(Config()).states["state1"]
    state = spec.factory.make_state(Config(), 0, 1)
    slots = [key for chunk in state.scan() for key, _ in chunk]
    assert len(slots) <= 6


def test_a_sum_that_outgrows_its_type_fails_the_batch():
    topology, rows = rows_in([[("a", 1, 1 << 62)], [("a", 2, 1 << 62)], [("a", 99, 0)]])
    capture(rows.tumbling_window(millis(50), "v", Sum(), "total", event_time="at"))

    with pytest.raises(NumberTooLargeError, match="total"):
        run_in_process(topology, Config(max_retries=0))


def test_another_pane_is_refused_in_the_first_batch_and_a_coarser_one_goes_on(tmp_path):
    store = SQLiteState.opaque(tmp_path / "w.db", table="windows")
    ledger = SharedMemory()
    batches = [[("a", 1, 0)], [("a", 12, 0)], [("a", 30, 0)]]

    def run(number, length):
        """Let the log grow by a batch, and run to its end."""
        topology, rows = rows_in(batches[:number])
        kept = capture(
            rows.tumbling_window(millis(length), Count(), "n", store=store, event_time="at")
        )
        memory = MemoryCoordinationStore("events", ledger)
        LocalRun(topology, Config(max_retries=0), store=memory).finish()
        return flat(kept)

    assert run(1, 10) == []
    assert run(2, 20) == []
    with pytest.raises(TopologyError, match=r"in steps of 20.*in steps of 10; give the changed"):
        run(3, 10)
    assert run(3, 20) == [(0, 20, 2)]


def test_explain_says_that_partial_results_are_made_in_the_jvm_and_that_it_is_exact():
    topology, rows = rows_in([[("a", 1, 1)]])
    capture(rows.group_by("key").tumbling_window(millis(9), Count(), "n", event_time="at"))

    text = topology.explain()

    plan = topology.plan()
    assert verdict_of(plan, plan.updates["state1"]).exact
    assert "has one watermark for all keys" in text
    lines = text.splitlines()
    (line,) = [i for i, t in enumerate(lines) if "<- " in t and "partial results" in t]
    assert "JVM" in lines[line + 1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.tumbling_window(10, Count(), "n", event_time="at"), "measured in time"),
        (
            lambda s: s.tumbling_window(SECOND, Count(), "n", event_time="key"),
            "'key' is string; make one of it before",
        ),
        (lambda s: s.tumbling_window(SECOND, Count(), "n", event_time="x"), "asks for field 'x'"),
        (lambda s: s.tumbling_window(SECOND, Count(), "n", lag=SECOND), "has no lag"),
        (lambda s: s.session_window(SECOND, Count(), "n"), "session_window goes by event time"),
        (lambda s: s.group_by("key").tumbling_window(SECOND, Count(), "n"), "goes by event time"),
        (
            lambda s: s.tumbling_window(SECOND, Count(), "window_end", event_time="at"),
            "'window_end' is where a window begins or ends",
        ),
        (
            lambda s: s.tumbling_window(
                SECOND, "v", reducer(init=0, out="bigint")(lambda a, v: a), "n", event_time="at"
            ),
            "need a CombinerAggregator",
        ),
        (
            lambda s: s.tumbling_window(SECOND, Count(), "n", event_time="at", late="late"),
            "late is a function of the stream",
        ),
        (
            lambda s: s.tumbling_window(
                SECOND, SQLiteState.transactional("x", table="t"), Count(), "n", event_time="at"
            ),
            "needs an opaque store",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_when_the_topology_is_built(build, message):
    topology = TridentTopology("events")
    stream = topology.new_stream("rows", FixedBatchSpout(FIELDS, 2, []))

    with pytest.raises(TopologyError, match=message):
        build(stream)
