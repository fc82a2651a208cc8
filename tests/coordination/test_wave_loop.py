"""The loop: ticks, the budget of a wave, back pressure, and how a run ends."""

from __future__ import annotations

import gc
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waves.driving import (
    COLLAPSED,
    SPREAD,
    Do,
    Driven,
    Fails,
    ListLog,
    Pass,
    Record,
    forget_all,
    seen,
    seen_log,
)
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import ForeignStoreError, LeaseLostError
from waterspout.testing import FeederSpout
from waterspout.topology import Bolt, Spout, TopologyBuilder


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()


def fed(bolt: Any, tasks: int = 1, **options: Any) -> tuple[Driven, FeederSpout]:
    feeder = FeederSpout("n", replay=True)
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", bolt, tasks).shuffle_grouping("source")
    return Driven(builder.create_topology("t"), **options), feeder


def values_of(name: str) -> list[Any]:
    return [values[0] for _, values in seen(name)]


class Clockwork(Bolt):
    """Notes its ticks; never acks one."""

    output_fields = ("n",)

    def execute(self, tuple):
        if tuple.is_tick:
            seen("ticks").append(
                (tuple["rate_secs"], tuple.source_component, tuple.source_stream, tuple.source_task)
            )
            self.collector.emit([1], tuple)
        else:
            self.collector.ack(tuple)


@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
def test_ticks_come_when_their_time_has_come(shape):
    driven, _ = fed(Clockwork(), tick_tuple_freq_secs=10, wave_collapse_tuples=shape)
    came = []
    for _ in range(35):
        driven.step()
        came.append(len(seen("ticks")))
        driven.clock.pass_by(1)

    assert [came[n] for n in (9, 10, 19, 20, 29, 30)] == [0, 1, 1, 2, 2, 3]
    assert set(seen("ticks")) == {(10.0, "__system", "__tick", -1)}


def test_every_task_gets_its_ticks_and_a_component_may_have_its_own_period():
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout("n"))
    builder.set_bolt("often", Clockwork(), 3).shuffle_grouping("source").add_configuration(
        "topology.tick.tuple.freq.secs", 2
    )
    builder.set_bolt("seldom", Clockwork()).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t"), tick_tuple_freq_secs=5)
    for _ in range(11):
        driven.step()
        driven.clock.pass_by(1)

    rates = [rate for rate, *_ in seen("ticks")]
    assert (rates.count(2.0), rates.count(5.0)) == (3 * 5, 2)


def test_without_a_period_there_are_no_ticks():
    driven, _ = fed(Clockwork())
    for _ in range(20):
        driven.step()
        driven.clock.pass_by(100)

    assert seen("ticks") == []
    assert driven.heard.waves == []


def test_what_is_anchored_to_a_tick_is_in_no_tree():
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout("n"))
    builder.set_bolt("clock", Clockwork()).shuffle_grouping("source").add_configuration(
        "topology.tick.tuple.freq.secs", 1
    )
    builder.set_bolt("target", Record("out")).shuffle_grouping("clock")
    driven = Driven(builder.create_topology("t"))
    driven.clock.pass_by(1)
    driven.step(2)

    assert values_of("out") == [1]
    assert len(driven.loop.spouts.tracker) == 0


def test_a_tick_that_raises_fails_nothing():
    def refuse_ticks(bolt, tuple):
        if tuple.is_tick:
            raise ValueError("no ticks, please")
        bolt.collector.ack(tuple)

    driven, feeder = fed(Do(refuse_ticks), tick_tuple_freq_secs=1)
    driven.clock.pass_by(1)
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    assert (feeder.tracker.acks, feeder.tracker.fails) == ({1: 1}, {})
    assert [note.error for note in driven.heard.errors] == ["ValueError: no ticks, please"]


@pytest.fixture
def slow(monkeypatch) -> SimpleNamespace:
    """Time that passes only while bolts work: `slow.by(seconds)`."""
    passed = SimpleNamespace(now=0.0, monotonic=lambda: passed.now)
    for module in ("waves.bolts", "waves.over_waves", "testing._waves"):
        monkeypatch.setattr(f"waterspout.{module}.time", passed)
    times.clear()
    times.append(passed)
    return passed


times: list[SimpleNamespace] = []


class Slow(Bolt):
    """Takes a millisecond for a tuple, of that other time, and notes what it got."""

    def __init__(self, name: str, seconds: float = 0.001) -> None:
        self._name, self._seconds = name, seconds

    def execute(self, tuple):
        times[-1].now += self._seconds
        seen(self._name).append(tuple[0])
        self.collector.ack(tuple)


@pytest.mark.parametrize("ackers", [0, 1])
@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
def test_what_a_wave_does_not_reach_in_its_time_waits_and_keeps_its_order(slow, shape, ackers):
    driven, feeder = fed(
        Slow("out"), wave_budget_secs=0.3, wave_collapse_tuples=shape, ackers=ackers
    )
    for n in range(900):
        feeder.feed([n], msg_id=n)
    driven.until(lambda: bool(driven.heard.waves), tick=0)
    first = driven.heard.waves[0]

    assert 300 <= first["executed"]["bolt"] < 600
    assert first["backlog"] == 900 - first["executed"]["bolt"]

    driven.until_idle()

    assert seen("out") == list(range(900))
    assert feeder.tracker.acks == dict.fromkeys(range(900), 1)
    # Nothing is kept of tuples that were not delivered after all.
    assert driven.heard.waves[-1]["state_bytes"] < 300


def test_the_budget_holds_for_many_small_frames_too(slow):
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("pass", Pass("n"), 30).shuffle_grouping("source")
    builder.set_bolt("slow", Slow("out")).shuffle_grouping("pass")
    driven = Driven(builder.create_topology("t"), wave_budget_secs=0.3)
    for n in range(900):
        feeder.feed([n], msg_id=n)
    driven.until(lambda: bool(driven.heard.waves), tick=0)

    assert driven.heard.waves[0]["executed"]["slow"] < 600

    driven.until_idle()

    assert sorted(seen("out")) == list(range(900))
    assert feeder.tracker.num_acks == 900


def test_a_very_slow_bolt_keeps_to_its_budget(slow):
    driven, feeder = fed(Slow("out", seconds=0.1), wave_budget_secs=1)
    for n in range(100):
        feeder.feed([n], msg_id=n)
    driven.until(lambda: bool(driven.heard.waves), tick=0)

    assert driven.heard.waves[0]["wave_s"] < 3
    assert driven.heard.waves[0]["executed"]["bolt"] >= 10


def test_every_wave_gets_something_done_however_small_its_budget(slow):
    driven, feeder = fed(Slow("out", seconds=10), wave_budget_secs=0.001)
    for n in range(20):
        feeder.feed([n], msg_id=n)
    driven.until_idle(steps=200)

    assert seen("out") == list(range(20))


@pytest.mark.parametrize("ackers", [0, 1])
def test_spouts_pause_above_the_high_mark_and_go_on_under_the_low_one(slow, ackers):
    builder = TopologyBuilder()
    builder.set_spout("endless", Endless())
    builder.set_bolt("slow", Slow("out", 0.02)).shuffle_grouping("endless")
    driven = Driven(
        builder.create_topology("t"),
        wave_budget_secs=0.5,
        ackers=ackers,
        backpressure_high=0.9,
        backpressure_low=0.4,
        message_timeout_secs=10**9,
    )
    history = []
    for _ in range(300):
        before = len(seen("emitted"))
        driven.step()
        driven.clock.pass_by(0.05)
        if driven.heard.waves and len(history) < len(driven.heard.waves):
            history.append((len(seen("emitted")) - before, driven.heard.waves[-1]))
    throttled = [facts["throttled"] for _, facts in history]

    assert any(throttled)
    assert not all(throttled)
    # Bounded: what waits never grows beyond the mark by more than a wave.
    assert max(facts["backlog"] for _, facts in history) <= 1.9 * 1000
    for (_, earlier), (asked, _) in itertools.pairwise(history):
        if earlier["throttled"]:
            assert asked == 0
    assert seen("out") == seen("emitted")[: len(seen("out"))]


class Endless(Spout):
    output_fields = ("n",)

    def next_tuple(self):
        seen("emitted").append(len(seen("emitted")))
        self.collector.emit([seen("emitted")[-1]], msg_id=seen("emitted")[-1])


def test_tuples_on_a_cycle_wait_for_the_next_wave():
    def count_down(bolt, tuple):
        if tuple["n"] > 0:
            bolt.collector.emit([tuple["n"] - 1], tuple)
        bolt.collector.ack(tuple)

    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    loop = builder.set_bolt("loop", Do(count_down, ["n"]), 2)
    loop.shuffle_grouping("source").shuffle_grouping("loop")
    driven = Driven(builder.create_topology("t"))
    feeder.feed([5], msg_id="m")
    driven.until_idle()

    assert [facts["executed"] for facts in driven.heard.waves] == [{"loop": 1}] * 6
    assert [facts["acked"] for facts in driven.heard.waves] == [0] * 5 + [1]
    assert feeder.tracker.acks == {"m": 1}


class Tidy(Bolt):
    """Notes what it is told."""

    def __init__(self, name: str) -> None:
        self._name = name

    def execute(self, tuple):
        self.collector.ack(tuple)

    def cleanup(self):
        seen(self._name).append("cleanup")
        if "raise" in seen(f"{self._name}, trouble"):
            raise OSError("cannot close")


@pytest.mark.parametrize("keep_alive", [True, False])
def test_bolts_that_have_run_are_cleaned_up_at_the_end(keep_alive):
    driven, feeder = fed(Tidy("tidy"), tasks=3, keep_alive=keep_alive)
    feeder.feed([1], msg_id=1)
    feeder.feed([2], msg_id=2)
    driven.until_idle()

    driven.loop.close()

    assert seen("tidy") == ["cleanup", "cleanup"]


def test_an_error_in_cleanup_is_only_reported():
    driven, feeder = fed(Tidy("tidy"))
    seen("tidy, trouble").append("raise")
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    driven.loop.close()

    assert [(n.component, n.error) for n in driven.heard.errors] == [
        ("bolt", "OSError: cannot close")
    ]


def test_an_abandoned_run_ends_at_its_next_step():
    driven, _ = fed(Record("out"))
    error = RuntimeError("stop")
    driven.loop.abandon(error)

    assert driven.until_error() is error


def test_a_driver_that_lost_its_lease_stores_nothing_more():
    shared = SharedMemory()
    seen_log("log").update({0: list("abc")})
    builder = TopologyBuilder()
    builder.set_spout("log", ListLog("log"))
    builder.set_bolt("bolt", Record("out")).shuffle_grouping("log")
    topology = builder.create_topology("t")
    driven = Driven(topology, shared=shared)
    other = MemoryCoordinationStore("t", shared)
    other.acquire(topology.fingerprint())

    error = driven.until_error()
    driven.loop.close()

    assert isinstance(error, LeaseLostError)
    assert other.load().positions == {}


def test_a_spout_may_be_added_and_one_that_is_gone_is_retired_by_name():
    def of_spouts(*names):
        builder = TopologyBuilder()
        for name in names:
            builder.set_spout(name, FeederSpout("a"))
        return builder.create_topology("t")

    shared = SharedMemory()
    Driven(of_spouts("source"), shared=shared).loop.close()
    Driven(of_spouts("source", "more"), shared=shared).loop.close()

    with pytest.raises(ForeignStoreError, match=r"Spout source is not in .*--retire source"):
        Driven(of_spouts("more"), shared=shared)

    Driven(of_spouts("more"), shared=shared, retire=["source"]).loop.close()
    Driven(of_spouts("more"), shared=shared).loop.close()


def test_waves_report_what_they_did():
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("pass", Pass("n")).shuffle_grouping("source")
    builder.set_bolt("last", Fails("out", {2: 99})).shuffle_grouping("pass")
    driven = Driven(builder.create_topology("t"))
    for n in range(4):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    (facts,) = driven.heard.waves
    assert facts["wave"] == 1
    assert facts["tuples"] == 4
    assert facts["executed"] == {"pass": 4, "last": 4}
    assert facts["emitted"] == {"pass": 4}
    assert (facts["acked"], facts["failed"], facts["pending"], facts["backlog"]) == (3, 1, 0, 0)
    assert (facts["stages"], facts["throttled"]) == (1, False)
    (note,) = driven.heard.errors
    assert (note.component, note.task, note.error, note.count) == (
        "last",
        3,
        "ValueError: not 2 yet",
        1,
    )
    assert "Traceback" in note.traceback


def test_one_record_in_many_that_raises_is_the_only_one_repeated():
    driven, feeder = fed(Fails("out", {4321: 99}), tasks=2, max_replays=3)
    for n in range(10_000):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert len(seen("out, tried")) == 10_000 + 3
    assert len(seen("out")) == 9_999
    assert [letter.values for letter in driven.letters.all()] == [(4321,)]


@pytest.mark.soak
def test_nothing_grows_over_a_thousand_waves():
    def now_and_then(bolt, tuple):
        if tuple["n"] % 50 == 7:
            raise ValueError("now and then")
        earlier, bolt.earlier = bolt.__dict__.get("earlier"), tuple
        if earlier is not None:
            bolt.collector.emit([earlier["n"]], [earlier, tuple])
            bolt.collector.ack(earlier)

    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("join", Do(now_and_then, ["n"])).shuffle_grouping("source")
    builder.set_bolt("target", Pass("n"), 2).fields_grouping("join", "n")
    driven = Driven(builder.create_topology("t"), max_replays=3)
    sizes = []
    for n in range(1000):
        feeder.feed([n % 100], msg_id=n % 100)
        driven.step(2)
        driven.heard.waves.clear()
        driven.heard.errors.clear()
        if n in (300, 999):
            gc.collect()
            sizes.append(len(gc.get_objects()))

    assert driven.loop.waves >= 1000
    assert len(driven.loop.spouts.tracker) <= 2
    assert sizes[1] - sizes[0] < 200
