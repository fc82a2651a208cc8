"""Windows on Spark: the documented examples, each place where they can be kept, a killed driver."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.killing import run_child, said
from tests.spark.operations.windows_child import Together
from tests.trident.support import capture, finish, wait_for
from waterspout import Config, submit
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Aggregator, Average, Count, Sum, TridentTopology, expr

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

CHILD = "tests.spark.operations.windows_child"


def stream_of(rows, size=2, fields="price bigint"):
    topology = TridentTopology("windows")
    return topology, topology.new_stream("rows", FixedBatchSpout(fields, size, rows))


def held(kept):
    return [row[0] for rows in kept.batches.values() for row in rows]


def test_tumbling_and_sliding_windows_by_count(spark):
    topology, prices = stream_of([1, 2, 3, 4, 5, 6, 7], size=4)
    totals = capture(prices.tumbling_window(3, "price", Sum(), "total"))
    means = capture(prices.sliding_window(4, 2, "price", Average(), "mean"))

    finish(topology, spark)

    assert totals.batches == {1: [(6,)], 2: [(15,)]}
    assert means.batches == {1: [(1.5,), (2.5,)], 2: [(4.5,)]}


class Hashtags(Aggregator[Counter]):
    """The documented example: the most frequent tags of a window, with its end."""

    def init(self, batch_id, collector):
        self.window = batch_id
        return Counter()

    def aggregate(self, value, tuple, collector):
        value[tuple["tag"]] += 1

    def complete(self, value, collector):
        for tag, n in value.most_common(2):
            collector.emit((self.window.end, tag, n))


def test_an_aggregator_emits_the_top_of_each_window(spark):
    tags = ["a", "b", "a", "c", "c", "c"]
    topology, stream = stream_of(tags, size=6, fields="tag string")
    kept = capture(stream.tumbling_window(3, Hashtags(), out="upto bigint, tag string, n bigint"))

    finish(topology, spark)

    assert kept.rows == [(3, "a", 2), (3, "b", 1), (6, "c", 3)]


@pytest.mark.soak
def test_a_window_by_time_closes_without_new_data(spark):
    topology, prices = stream_of(list(range(10)), size=3)
    tenth = dt.timedelta(milliseconds=100)
    spread = prices.shuffle().parallelism_hint(2)
    kept = capture(spread.tumbling_window(tenth, "price", Together(), "held array<bigint>"))
    counted = capture(prices.tumbling_window(tenth, Count(), out="n"))

    run = submit(topology, spark, Config(retry_backoff_millis=1))
    try:
        run.process_all_available(timeout=60)
        wait_for(lambda: sum(map(len, held(kept))) == 10)
        run.process_all_available(timeout=60)
    finally:
        run.stop()

    assert sorted(number for window in held(kept) for number in window) == list(range(10))
    assert sum(held(counted)) == 10


def test_windows_are_kept_by_tasks_where_they_reach_the_store(spark, tmp_path):
    store = SQLiteState.opaque(tmp_path / "w.db", table="windows", driver_only=False)
    results = SQLiteState.opaque(tmp_path / "w.db", table="results", driver_only=False)
    topology, prices = stream_of(list(range(40)), size=5)
    state = (
        prices.shuffle()
        .parallelism_hint(2)
        .tumbling_window(4, store, "price", Together(), "held array<bigint>")
        .persistent_aggregate(results, "held", Together(), out="all array<array<bigint>>")
    )
    config = Config(commit_in="tasks", retry_backoff_millis=1, home=str(tmp_path / "home"))

    finish(topology, spark, config)

    windows = state.get()
    assert all(len(window) == 4 for window in windows)
    numbers = [number for window in windows for number in window]
    assert len(numbers) == len(set(numbers)) >= 34


@pytest.mark.soak
def test_windows_by_time_are_kept_by_tasks_and_closed_without_data(spark, tmp_path):
    store = SQLiteState.opaque(tmp_path / "w.db", table="windows", driver_only=False)
    results = SQLiteState.opaque(tmp_path / "r.db", table="results", driver_only=False)
    topology, prices = stream_of(list(range(12)), size=6)
    state = (
        prices.shuffle()
        .parallelism_hint(2)
        .tumbling_window(dt.timedelta(seconds=0.3), store, "price", Count(), "n")
        .persistent_aggregate(results, "n", Sum(), out="total")
    )
    config = Config(commit_in="tasks", retry_backoff_millis=1, home=str(tmp_path / "home"))

    run = submit(topology, spark, config)
    try:
        wait_for(lambda: state.get() == 12)
        run.process_all_available(timeout=60)
    finally:
        run.stop()

    assert state.get() == 12


@pytest.mark.soak
def test_rows_too_late_for_windows_that_tasks_write_are_in_the_progress(spark, tmp_path):
    def stored(table):
        return SQLiteState.opaque(tmp_path / f"{table}.db", table=table, driver_only=False)

    topology = TridentTopology("late")
    batches = [25, 27, 3, None, 4, 28, 60, 61, 5]  # in the second no window closes
    rows = topology.new_stream("rows", FixedBatchSpout("at bigint", 3, [[at] for at in batches]))
    ten = dt.timedelta(milliseconds=10)
    closed = rows.tumbling_window(ten, Count(), "n", store=stored("windows"), event_time="at")
    state = closed.persistent_aggregate(stored("results"), "n", Sum(), out="total")
    config = Config(commit_in="tasks", retry_backoff_millis=1, home=str(tmp_path / "home"))

    run = finish(topology, spark, config)

    late = [progress.late_rows.get("window(Count)", 0) for progress in run.recent_progress]
    assert late == [0, 2, 1]
    assert [progress.inputs for progress in run.recent_progress] == [{"rows": 3}] * 3
    assert state.get() == 4


def test_windows_go_on_in_the_next_run(spark, tmp_path):
    config = Config(home=str(tmp_path / "home"), retry_backoff_millis=1)
    (tmp_path / "in").mkdir()

    def run_once():
        from waterspout.spouts.files import FileSpout

        topology = TridentTopology("continued")
        lines = topology.new_stream("lines", FileSpout(tmp_path / "in"))
        windows = lines.tumbling_window(3, "value", Together(), "held array<string>")
        results = SQLiteState.opaque(tmp_path / "r.db", table="results")
        state = windows.persistent_aggregate(
            results, "held", Together(), out="x array<array<string>>"
        )
        by_event = lines.each("value", expr("ascii(value)"), "at bigint").tumbling_window(
            dt.timedelta(milliseconds=2), Count(), "n", event_time="at"
        )
        counts = by_event.persistent_aggregate(
            SQLiteState.opaque(tmp_path / "r.db", table="counts"),
            "n",
            Together(),
            "x array<bigint>",
        )
        finish(topology, spark, config)
        return state.get(), counts.get()

    (tmp_path / "in" / "1.txt").write_text("a\nb\n")
    assert run_once() == (None, [1])
    (tmp_path / "in" / "2.txt").write_text("c\nd\ne\n")
    assert run_once() == ([["a", "b", "c"]], [1, 2])
    (tmp_path / "in" / "3.txt").write_text("f\n")
    assert run_once() == ([["a", "b", "c"], ["d", "e", "f"]], [1, 2, 2])
    assert (tmp_path / "home" / "continued" / "windows.db").exists()


def test_windows_beside_a_state_in_memory_stay_in_memory(spark, tmp_path):
    for _ in range(2):
        topology, prices = stream_of([1, 2, 3])
        state = prices.tumbling_window(2, "price", Sum(), "total").persistent_aggregate(
            MemoryMapState(), "total", Sum(), out="all"
        )

        finish(topology, spark, Config(home=str(tmp_path), retry_backoff_millis=1))

        assert state.get() == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_loses_and_doubles_no_window(tmp_path, connect_server):
    (tmp_path / "in").mkdir()
    numbers = iter(range(10_000))
    for file in range(7):
        rows = [f"{next(numbers)}\n" for _ in range(3 + file % 3)]
        (tmp_path / "in" / f"{file}.txt").write_text("".join(rows))
    total = next(numbers)

    # After the window has been written, and before its result is; then before the mark.
    kills = [("write.after", 3, 1), ("mark.before", 6, 1)]
    for point, txid, nth in kills:
        fault = {"point": point, "action": "kill", "where": {"txid": txid}, "nth": nth}
        assert run_child(CHILD, tmp_path, [fault], connect_server.url) == -9, said(tmp_path)
    assert run_child(CHILD, tmp_path, remote=connect_server.url) == 0, said(tmp_path)

    everything = [str(number) for number in range(total)]
    tumbling = [everything[end - 7 : end] for end in range(7, total + 1, 7)]
    sliding = [everything[max(0, end - 9) : end] for end in range(4, total + 1, 4)]
    assert _results(tmp_path, "tumbling") == tumbling
    assert _results(tmp_path, "sliding") == sliding
    last = (total - 1) // 5 * 5
    assert sorted(_results(tmp_path, "by_event")) == sorted(
        [str(start), "5", str(5 * start + 10)] for start in range(0, last, 5)
    )


def _results(folder: Path, table: str) -> list[list[str]]:
    from waterspout._schema import Schema

    state = SQLiteState.opaque(folder / "results.db", table=table)
    bound = state.bind(Schema(), Schema.parse("all array<array<string>>"))
    reader = bound.make_state(Config(), 0, 1)
    try:
        return reader.multi_get([()])[0]
    finally:
        reader.close()
