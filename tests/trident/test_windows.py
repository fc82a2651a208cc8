"""Windows in whole topologies, without Spark: how they are written, and how time passes in them."""

from __future__ import annotations

import datetime as dt
import itertools

import pytest

from tests.trident import spout_kinds
from tests.trident.support import capture
from tests.trident.windows_support import Ids, Listed, Spans, settings
from waterspout import Config, FailedException, faults
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import TopologyError
from waterspout.spouts._base import SpoutContext, SpoutKind
from waterspout.spouts.files import FileSpout
from waterspout.spouts.rate import RateSpout
from waterspout.state import MemoryMapState, StateFactory
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun, MemoryLog, run_in_process
from waterspout.trident import Average, Count, Sum, TridentTopology
from waterspout.trident.plan.verdicts import verdict_of
from waterspout.trident.windowing.config import (
    SlidingCountWindow,
    SlidingDurationWindow,
    TumblingCountWindow,
    TumblingDurationWindow,
)

SECOND = dt.timedelta(seconds=1)


def stream_of(rows, size=2, fields="id bigint"):
    topology = TridentTopology("windowed")
    return topology, topology.new_stream("rows", FixedBatchSpout(fields, size, rows))


def flat(kept):
    """What was kept, in the order of the batches, and in one of its own within a batch."""
    return [row[0] for rows in kept.batches.values() for row in rows]


def test_results_come_with_the_batch_that_completes_the_window():
    topology, rows = stream_of(range(7))
    kept = capture(rows.tumbling_window(3, "id", Sum(), "total"))

    run_in_process(topology)

    assert kept.batches == {2: [(0 + 1 + 2,)], 3: [(3 + 4 + 5,)]}


@pytest.mark.parametrize(
    "write",
    [
        lambda s, store: s.window(
            TumblingCountWindow.of(2), store, "id", Listed(), "l array<bigint>"
        ),
        lambda s, store: s.window(
            TumblingCountWindow.of(2), Listed(), store=store, out="l array<bigint>"
        ),
        lambda s, store: s.window(TumblingCountWindow.of(2), "id", Listed(), "l array<bigint>"),
        lambda s, store: s.tumbling_window(2, store, "id", Listed(), "l array<bigint>"),
        lambda s, store: s.tumbling_window(2, ["id"], Ids(), store=store, out="l array<bigint>"),
        lambda s, store: s.sliding_window(2, 2, store, "id", Listed(), "l array<bigint>"),
        lambda s, store: s.window(
            SlidingCountWindow.of(2, 2), store, None, Listed(), "l array<bigint>"
        ),
    ],
)  # fmt: skip
def test_every_way_to_write_a_window_gives_the_same(write):
    topology, rows = stream_of(range(5))
    kept = capture(write(rows, MemoryMapState()))

    run_in_process(topology)

    assert flat(kept) == [[0, 1], [2, 3]]


def test_the_first_windows_of_a_sliding_one_are_shorter():
    topology, rows = stream_of(range(6), size=6)
    kept = capture(rows.sliding_window(4, 2, "id", Listed(), "l array<bigint>"))

    run_in_process(topology)

    assert sorted(flat(kept), key=len) == [[0, 1], [0, 1, 2, 3], [2, 3, 4, 5]]


def test_a_combiner_with_a_last_step_is_finished():
    topology, rows = stream_of([1, 2, 6])
    kept = capture(rows.tumbling_window(3, "id", Average(), "mean"))

    run_in_process(topology)

    assert kept.rows == [(3.0,)]


def test_an_aggregator_emits_any_number_of_rows():
    topology, rows = stream_of(["a", "b"], fields="word string")
    kept = capture(rows.tumbling_window(2, "word", Spans(), "seen string"))

    run_in_process(topology)

    assert kept.rows == [("['a', 'b']",), ("WindowSpan(partition=0, start=0, end=2)",)]


def test_only_the_chosen_fields_go_into_the_window():
    topology, rows = stream_of([("a", 1), ("b", 2)], fields="word string, n bigint")
    kept = capture(rows.tumbling_window(2, "n", Listed(), "l array<bigint>"))

    run_in_process(topology)

    assert kept.rows == [([1, 2],)]


def test_the_results_are_a_stream_like_any_other():
    topology, rows = stream_of([3, 4, 5, 1, 2, 9, 9])
    state = (
        rows.tumbling_window(2, "id", Sum(), "total")
        .each("total", lambda total: total % 2, out="odd bigint")
        .group_by("odd")
        .persistent_aggregate(MemoryMapState(), Count(), out="n")
    )

    run_in_process(topology)

    assert (state.get(0), state.get(1)) == (1, 2)


def test_windows_of_windows():
    topology, rows = stream_of(range(8))
    pairs = rows.tumbling_window(2, "id", Sum(), "pair")
    kept = capture(pairs.tumbling_window(2, "pair", Listed(), "l array<bigint>"))

    run_in_process(topology)

    assert flat(kept) == [[1, 5], [9, 13]]


def test_several_windows_over_one_stream_have_stores_of_their_own():
    topology, rows = stream_of(range(6))
    twos = capture(rows.tumbling_window(2, "id", Listed(), "l array<bigint>"))
    threes = capture(rows.tumbling_window(3, "id", Listed(), "l array<bigint>"))

    run_in_process(topology)

    assert flat(twos) == [[0, 1], [2, 3], [4, 5]]
    assert flat(threes) == [[0, 1, 2], [3, 4, 5]]


def test_each_partition_has_windows_of_its_own():
    topology, rows = stream_of(range(40), size=5)
    kept = capture(rows.parallelism_hint(2).tumbling_window(4, "id", Listed(), "l array<bigint>"))

    run_in_process(topology)

    assert topology.plan().states["state1"].partitions == 2
    held = [number for window in flat(kept) for number in window]
    assert len(held) == len(set(held)) >= 34
    assert all(len(window) == 4 for window in flat(kept))


def test_a_window_is_named_exactly_once_behind_any_spout_that_can_replay():
    for kind in (SpoutKind.OPAQUE, SpoutKind.TRANSACTIONAL):
        topology = TridentTopology("windowed")
        rows = topology.new_stream("log", MemoryLog("id bigint", [[(1,)]], kind=kind))
        rows.tumbling_window(2, "id", Count(), "n")

        plan = topology.plan()

        assert verdict_of(plan, plan.updates["state1"]).exact


def test_what_follows_from_a_window_by_count_needs_an_opaque_state():
    topology, rows = stream_of(range(4))
    windows = rows.tumbling_window(2, "id", Count(), "n")
    windows.persistent_aggregate(MemoryMapState.transactional(), "n", Sum(), out="total")

    plan = topology.plan()

    verdict = verdict_of(plan, plan.updates["state2"])
    assert not verdict.exact
    assert "window(Count) in state1 is by count: it goes by the order of tuples" in verdict.why


KINDS = {
    "whole": (spout_kinds.Whole, None),
    "partitioned": (spout_kinds.Partitioned, None),
    "opaque": (spout_kinds.Opaque, None),
    "batches": (spout_kinds.Batches, None),
    "steady batches": (spout_kinds.SteadyBatches, None),
    "messages": (spout_kinds.Messages, "word string"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_windows_close_and_then_rest_behind_spouts_of_every_kind(kind):
    spout_kinds.forget()
    spout_kinds.fill(["a", "b", "c"])
    spout, fields = KINDS[kind]
    topology = TridentTopology("rests")
    words = topology.new_stream("words", spout(), out=fields)
    second = TumblingDurationWindow.of(SECOND)
    kept = capture(words.window(second, "word", Listed(), "l array<string>"))
    now = [1000.0]
    run = LocalRun(topology, settings(), wall=lambda: now[0])
    run.finish()
    with_data = run.loop.ledger.current

    for _ in range(20):
        now[0] += 1.0
        run.finish()

    assert sorted(word for words in flat(kept) for word in words) == ["a", "b", "c"]
    assert run.loop.ledger.current == with_data + 1
    run.close()


@pytest.mark.parametrize(
    "spout",
    [
        FixedBatchSpout("id bigint", 2, [1, 2]),
        RateSpout(rows_per_second=1000.0, limit=2, clock=itertools.count().__next__),
        MemoryLog("id bigint", [[(1,)], []]),
    ],
    ids=lambda spout: type(spout).__name__,
)
def test_a_spout_tells_of_a_batch_whether_it_holds_tuples(spout):
    planner = spout.open(SpoutContext(Config(), "s", None, {}, 1))
    assert planner.is_ready(None)

    full = planner.plan(1, None)
    empty = planner.plan(2, full)

    assert (planner.holds_data(full), planner.holds_data(empty)) == (True, False)


def test_a_file_spout_tells_of_a_batch_whether_it_holds_files(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    spout = FileSpout(tmp_path / "in")
    planner = spout.open(SpoutContext(Config(), "s", tmp_path, {}, 1))
    assert planner.is_ready(None)

    full = planner.plan(1, None)

    assert (planner.holds_data(full), planner.holds_data(planner.plan(2, full))) == (True, False)
    planner.close()


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (MemoryMapState.transactional(), "needs an opaque store, and this one is transactional"),
        (MemoryMapState.non_transactional(), "this one is non-transactional"),
        (SQLiteState.transactional("x.db", table="t"), "this one is transactional"),
    ],
)
def test_a_store_that_cannot_give_back_what_was_before_is_refused(store, said):
    _, rows = stream_of([1])

    with pytest.raises(TopologyError, match=said):
        rows.tumbling_window(2, "id", Count(), store=store, out="n")


def test_a_store_that_is_no_recipe_is_refused():
    _, rows = stream_of([1])

    with pytest.raises(TopologyError, match="give it the recipe of an opaque one"):
        rows.tumbling_window(2, "id", Count(), store="windows.db", out="n")


class OwnKind(StateFactory):
    def make_state(self, conf, partition_index, num_partitions):
        raise AssertionError


def test_a_store_of_the_users_own_kind_is_refused():
    _, rows = stream_of([1])

    with pytest.raises(TopologyError, match="of your own kind"):
        rows.tumbling_window(2, OwnKind(), "id", Count(), "n")


def test_two_windows_in_one_table_are_refused():
    store = MemoryMapState()
    _, rows = stream_of([1])
    rows.tumbling_window(2, store, "id", Count(), "n")

    with pytest.raises(TopologyError, match="Use another table"):
        rows.tumbling_window(3, store, "id", Count(), "n")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda s: s.tumbling_window(2, "word", Count(), "n"), "asks for field 'word'"),
        (lambda s: s.tumbling_window(2, "id", Listed(), "l"), "type of its output field 'l'"),
        (lambda s: s.window(5, "id", Count(), "n"), r"TumblingCountWindow\.of"),
        (lambda s: s.tumbling_window(2, "id", Count()), "what its result is called"),
        (lambda s: s.sliding_window(2, SECOND, "id", Count(), "n"), "by count or by time"),
        (lambda s: s.sliding_window(2, 3, "id", Count(), "n"), "slide of a window is more"),
        (lambda s: s.tumbling_window(0, "id", Count(), "n"), "positive number"),
        (lambda s: s.tumbling_window(2, "id", object(), "n"), "object"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_built(build, said):
    _, rows = stream_of([1])

    with pytest.raises(TopologyError, match=said):
        build(rows)


class Timed:
    """A topology over a log that grows, driven with a clock of its own."""

    def __init__(self, config, store=None, kind=SpoutKind.TRANSACTIONAL, home=None):
        self.rows: list[tuple[int]] = []
        self.now = 1000.0
        self._config, self._store, self._kind = config, store or MemoryMapState(), kind
        self._ledger = SharedMemory()
        self._home = home
        self.kept = None
        self.start()

    def start(self):
        topology = TridentTopology("timed")
        self.log = MemoryLog("id bigint", [self.rows], kind=self._kind, take=100)
        stream = topology.new_stream("log", self.log)
        made = stream.window(self._config, self._store, "id", Listed(), "l array<bigint>")
        self.kept = capture(made)
        store = MemoryCoordinationStore("timed", self._ledger)
        if self._home is not None:
            store = EmbeddedStore(self._home, "timed", lease_s=30)
        self.run = LocalRun(topology, settings(), store=store, wall=lambda: self.now)

    def feed(self, *ids):
        self.rows += [(i,) for i in ids]
        self.run.finish()

    def at(self, now, *ids):
        """Let time pass, feed, and return the windows that closed by it."""
        before = len(flat(self.kept))
        self.now = now
        self.feed(*ids)
        return flat(self.kept)[before:]

    @property
    def batches(self):
        return self.run.loop.ledger.current - 1


def test_a_window_closes_though_nothing_comes_any_more():
    timed = Timed(TumblingDurationWindow.of(10 * SECOND))

    assert timed.at(1003.0, 1, 2) == []
    assert timed.at(1009.0) == []
    assert timed.at(1010.0) == [[1, 2]]


def test_no_more_batches_are_started_than_close_a_window():
    timed = Timed(SlidingDurationWindow.of(10 * SECOND, 5 * SECOND))
    timed.at(1003.0, 1)

    made = [(now, timed.at(float(now)), timed.batches) for now in range(1004, 1040)]

    closing = [(now, windows) for now, windows, _ in made if windows]
    assert closing == [(1005, [[1]]), (1010, [[1]])]
    assert timed.batches == 3


def test_ends_that_have_passed_are_made_up_for_by_one_batch():
    timed = Timed(SlidingDurationWindow.of(10 * SECOND, 5 * SECOND))
    timed.at(1003.0, 1)

    assert timed.at(9_999_999.0) == [[1], [1]]
    assert timed.batches == 2


def test_a_run_is_idle_between_two_ends():
    timed = Timed(TumblingDurationWindow.of(10 * SECOND))
    timed.at(1003.0, 1)

    assert timed.run.loop.is_idle
    timed.now = 1010.0
    timed.run.loop.step()
    assert not timed.run.loop.is_idle
    timed.run.finish()
    assert timed.run.loop.is_idle


def test_a_topology_without_windows_by_time_has_no_clock():
    topology, rows = stream_of(range(4))
    capture(rows.tumbling_window(2, "id", Count(), "n"))

    run = run_in_process(topology)

    assert set(run.loop.ledger.committed_metadata) == {"rows"}


def test_a_wall_clock_that_is_set_back_puts_nothing_into_an_older_window():
    timed = Timed(TumblingDurationWindow.of(10 * SECOND))
    timed.at(1012.0, 1)

    assert timed.at(1005.0, 2) == []
    assert timed.at(1019.0) == []
    assert timed.at(1020.0) == [[1, 2]]


def test_the_clock_goes_on_from_the_last_batch_after_a_restart():
    timed = Timed(TumblingDurationWindow.of(10 * SECOND))
    timed.at(1012.0, 1)
    timed.run.close()
    timed.now = 900.0
    timed.start()

    assert timed.at(901.0, 2) == []
    assert timed.at(1020.0) == [[1, 2]]


def test_a_window_that_ended_while_nothing_ran_is_closed_by_the_next_run():
    timed = Timed(TumblingDurationWindow.of(10 * SECOND))
    timed.at(1003.0, 1)
    timed.run.close()
    timed.now = 5000.0
    timed.start()
    timed.run.finish()

    assert flat(timed.kept) == [[1]]


def test_a_replay_has_the_time_of_its_first_attempt():
    timed = Timed(TumblingDurationWindow.of(10 * SECOND))
    timed.at(1003.0, 1)
    failed = []

    def fail_once(name, context):
        if name == "write.before" and not failed:
            failed.append(timed.now)
            timed.now = 1011.0
            raise FailedException("once")

    faults.install(fail_once)
    try:
        timed.at(1009.0, 2)
    finally:
        faults.install(None)

    assert failed == [1009.0]
    assert timed.run.loop.ledger.current - 1 == 3
    assert flat(timed.kept) == [[1, 2]]


def test_a_batch_that_only_closes_a_window_may_get_tuples_in_its_replay():
    timed = Timed(TumblingDurationWindow.of(10 * SECOND), kind=SpoutKind.OPAQUE)
    timed.at(1003.0, 1)
    failed = []

    def feed_and_fail(name, context):
        if name == "write.before" and not failed:
            failed.append(name)
            timed.rows.append((2,))
            raise FailedException("once")

    faults.install(feed_and_fail)
    try:
        assert timed.at(1010.0) == [[1]]
    finally:
        faults.install(None)

    assert timed.batches == 2
    assert timed.at(1020.0) == [[2]]


def test_the_windows_of_a_run_that_was_stopped_are_in_the_file(tmp_path):
    store = SQLiteState.opaque(tmp_path / "w.db", table="seconds")
    timed = Timed(TumblingDurationWindow.of(10 * SECOND), store=store, home=tmp_path)
    timed.at(1003.0, 1, 2)
    timed.run.close()
    timed.start()

    assert timed.at(1004.0, 3) == []
    assert timed.at(1010.0) == [[1, 2, 3]]
    timed.run.close()


def test_a_counted_window_goes_on_after_a_restart(tmp_path):
    store = SQLiteState.opaque(tmp_path / "w.db", table="threes")
    timed = Timed(TumblingCountWindow.of(3), store=store, home=tmp_path)
    timed.at(0.0, 1, 2)
    timed.run.close()
    timed.start()

    assert timed.at(0.0, 3, 4) == [[1, 2, 3]]
    timed.run.close()


def test_windows_without_a_store_leave_no_file_in_a_test(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    topology, rows = stream_of(range(4))
    kept = capture(rows.tumbling_window(2, "id", Count(), "n"))

    run_in_process(topology, Config(home=str(tmp_path / "home")))

    assert len(kept.rows) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fields", [(), ([],)], ids=["all-fields", "no-field"])
def test_tuples_can_be_counted_without_naming_a_field(fields):
    topology, rows = stream_of(range(5))
    kept = capture(rows.tumbling_window(2, *fields, Count(), out="n"))

    run_in_process(topology)

    assert kept.rows == [(2,), (2,)]
