"""Spouts under a wave loop: asked in turn, told once, restarted when they raise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.waves.driving import Do, Driven, Fails, Record, forget_all, seen
from waterspout.errors import SpoutCrash
from waterspout.testing import FeederSpout
from waterspout.topology import Spout, TopologyBuilder


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()


class Counting(Spout):
    """Emits 0, 1, 2, ... up to a limit; notes every call. `trouble` lists methods that raise."""

    output_fields = ("n",)

    def __init__(self, name: str, limit: int = 1000) -> None:
        self._name, self._limit = name, limit

    def open(self, conf, context, collector):
        self._note("open", conf.get("my.option"))
        self.collector, self._task, self._next = collector, context.this_task_id, 0

    def next_tuple(self):
        self._raise_in("next_tuple")
        if self._next < self._limit:
            self.collector.emit([self._next], msg_id=(self._task, self._next))
            self._next += 1

    def ack(self, msg_id):
        self._note("ack", msg_id)
        self._raise_in("ack")

    def fail(self, msg_id):
        self._note("fail", msg_id)
        self._raise_in("fail")

    def activate(self):
        self._note("activate", None)

    def deactivate(self):
        self._note("deactivate", None)

    def close(self):
        self._note("close", None)
        self._raise_in("close")

    def _note(self, what: str, about: Any) -> None:
        seen(self._name).append((what, about))

    def _raise_in(self, method: str) -> None:
        trouble = seen(f"{self._name}, trouble")
        if method in trouble:
            trouble.remove(method)
            raise RuntimeError(f"lost in {method}")


class Sleepy(Counting):
    """Sleeps whenever it is asked, on the clock of the loop."""

    sleeps: ClassVar[Callable[[], None]]

    def next_tuple(self):
        seen("story").append(self._name)
        type(self).sleeps()
        super().next_tuple()


def sleepy(*limits: int) -> Driven:
    builder = TopologyBuilder()
    for n, limit in enumerate(limits):
        builder.set_spout(f"source{n}", Sleepy(f"spout{n}", limit))
        builder.set_bolt(f"target{n}", Record(f"target{n}")).shuffle_grouping(f"source{n}")
    driven = Driven(builder.create_topology("t"))
    Sleepy.sleeps = staticmethod(lambda: driven.clock.pass_by(0.1))
    return driven


def test_a_spout_that_sleeps_does_not_hold_up_the_first_wave():
    driven = sleepy(1000)
    began = driven.clock()
    driven.until(lambda: bool(seen("target0")), tick=0)

    # One message, which took one call; it was executed in the round after.
    assert [values for _, values in seen("target0")] == [(0,)]
    assert driven.clock() - began == pytest.approx(0.1)


def test_spouts_that_sleep_are_asked_in_turn():
    driven = sleepy(1000, 1000, 1000)
    driven.until(lambda: len(seen("target0")) == 4, tick=0)

    assert all(abs(len(seen(f"target{n}")) - 4) <= 1 for n in range(3))


def test_spouts_that_sleep_are_empty_when_all_were_asked_since_one_was_told():
    spouts = sleepy(0, 0).loop.spouts

    def look():
        spouts.ask(100)
        return spouts.dry

    assert [look(), look()] == [False, True]
    assert look() is False
    spouts.finish_wave([])  # it may have told the one that was asked just now
    assert [look(), look(), look()] == [False, False, True]
    assert len(seen("story")) == 6


def counting(limit: int = 1000, *, tasks: int = 1, bolt: Any = None, **options: Any) -> Driven:
    builder = TopologyBuilder()
    builder.set_spout("source", Counting("spout", limit), tasks)
    builder.set_bolt("target", bolt or Record("target")).shuffle_grouping("source")
    return Driven(builder.create_topology("t"), **options)


def hold(bolt, tuple):
    """Keep every tuple until `seen('let go')` is not empty."""
    if tuple.is_tick or seen("let go"):
        held, bolt.held = getattr(bolt, "held", []), []
        for each in held:
            bolt.collector.ack(each)
    if not tuple.is_tick:
        bolt.held = [*getattr(bolt, "held", []), tuple]


def test_no_more_than_max_spout_pending_of_each_task_are_on_the_way():
    driven = counting(tasks=3, bolt=Do(hold), max_spout_pending=7)

    driven.step(20)

    assert driven.loop.spouts.pending == 3 * 7
    assert driven.counts.emitted == 3 * 7


def test_max_spout_pending_of_a_component_goes_before_that_of_the_run():
    builder = TopologyBuilder()
    builder.set_spout("one", Counting("one")).set_max_spout_pending(2)
    builder.set_spout("two", Counting("two"))
    target = builder.set_bolt("target", Do(hold))
    target.shuffle_grouping("one").shuffle_grouping("two")
    driven = Driven(builder.create_topology("t"), max_spout_pending=5)
    driven.step(20)

    assert driven.loop.spouts.pending == 2 + 5


def test_max_spout_pending_does_not_limit_untracked_messages():
    driven = counting(500, ackers=0, max_spout_pending=1)
    driven.until_idle()

    assert len(seen("target")) == 500
    assert len([what for what, _ in seen("spout") if what == "ack"]) == 500


def test_the_spout_goes_on_when_messages_are_done():
    driven = counting(100, max_spout_pending=3)
    driven.until_idle()

    assert sorted(values for _, values in seen("target")) == [(n,) for n in range(100)]
    assert driven.counts.acked == 100
    assert max(facts["tuples"] for facts in driven.heard.waves) == 3


def test_acks_go_to_the_task_that_emitted():
    driven = counting(5, tasks=2)
    driven.until_idle()

    acked = sorted(about for what, about in seen("spout") if what == "ack")
    assert acked == [(task, n) for task in (1, 2) for n in range(5)]


def test_a_spout_is_told_when_it_is_put_to_sleep_and_woken():
    driven = counting(10**6, max_spout_pending=2)
    driven.step(3)
    driven.loop.active = False
    driven.until_idle()
    emitted = driven.counts.emitted
    driven.step(5)

    assert driven.counts.emitted == emitted
    assert driven.loop.is_idle

    driven.loop.active = True
    driven.step(3)

    assert driven.counts.emitted > emitted
    calls = [what for what, _ in seen("spout") if what in ("open", "activate", "deactivate")]
    assert calls == ["open", "deactivate", "activate"]


def test_acks_still_come_while_a_topology_is_inactive():
    driven = counting(4, bolt=Do(hold), tick_tuple_freq_secs=1)
    driven.step(3)
    driven.loop.active = False
    driven.step(2)
    assert not driven.loop.is_idle
    driven.clock.pass_by(2)
    driven.step(2)

    assert driven.counts.acked == 4
    assert driven.loop.is_idle


def test_a_spout_that_raises_is_restarted_after_a_pause_that_doubles():
    driven = counting(3, retry_backoff_millis=1000, max_retries=3)
    seen("spout, trouble").extend(["next_tuple"] * 3)
    opened = []
    for _step in range(100):
        driven.step()
        driven.clock.pass_by(0.1)
        opened.append([what for what, _ in seen("spout")].count("open"))

    # The first second, then two, then four.
    starts = [opened.index(n) for n in (1, 2, 3, 4)]
    assert [round((b - a) / 10) for a, b in itertools.pairwise(starts)] == [1, 2, 4]
    assert driven.counts.acked == 3
    assert [(n.component, n.error) for n in driven.heard.errors] == [
        (
            "source",
            "spout 'source' (task 1) raised in next_tuple: RuntimeError: lost in next_tuple",
        )
    ] * 3


def test_a_spout_that_raises_too_often_ends_the_run_with_its_error():
    driven = counting(3, max_retries=2)
    seen("spout, trouble").extend(["next_tuple"] * 3)

    error = driven.until_error()

    assert isinstance(error, SpoutCrash)
    assert isinstance(error.__cause__, RuntimeError)
    assert driven.loop.error is error


def test_a_spout_that_worked_in_between_may_raise_again():
    driven = counting(10**6, max_retries=1, max_spout_pending=5)
    for _ in range(5):
        seen("spout, trouble").append("next_tuple")
        driven.until(lambda: not seen("spout, trouble"))
        acked = driven.counts.acked
        driven.until(lambda: driven.counts.acked > acked + 10)  # noqa: B023

    assert driven.loop.error is None


@pytest.mark.parametrize("method", ["ack", "fail"])
def test_a_spout_that_always_raises_when_it_is_told_ends_the_run(method):
    bolt = Do(lambda bolt, t: getattr(bolt.collector, method)(t))
    driven = counting(10**6, bolt=bolt, max_retries=3, max_spout_pending=1)
    seen("spout, trouble").extend([method] * 1000)

    error = driven.until_error(500)

    assert f"raised in {method}" in str(error)


@pytest.mark.parametrize("method", ["ack", "fail"])
def test_one_wave_in_which_a_spout_raises_is_one_crash(method):
    bolt = Do(lambda bolt, t: getattr(bolt.collector, method)(t))
    driven = counting(8, bolt=bolt, max_retries=3)
    seen("spout, trouble").extend([method] * 1)
    driven.until(lambda: not seen("spout, trouble"))
    seen("spout, trouble").clear()
    driven.until_idle()

    assert [what for what, _ in seen("spout")].count("open") == 2


def test_many_fails_that_raise_in_one_wave_are_one_crash():
    driven = counting(8, bolt=Do(lambda bolt, t: bolt.collector.fail(t)), max_retries=3)
    seen("spout, trouble").extend(["fail"] * 6)

    driven.until(lambda: [what for what, _ in seen("spout")].count("open") == 2, steps=100)

    assert driven.loop.error is None


def test_a_spout_that_cannot_be_opened_is_tried_again():
    builder = TopologyBuilder()
    builder.set_spout("source", Shy("shy"))
    builder.set_bolt("target", Record("target")).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t"), max_retries=3)
    driven.until_idle()

    assert seen("shy") == ["open", "open", "open"]
    assert len(seen("target")) == 2


class Shy(FeederSpout):
    """Opens at the third try."""

    def __init__(self, name: str) -> None:
        super().__init__("n")
        self._name = name
        self.feed([1])
        self.feed([2])

    def open(self, conf, context, collector):
        seen(self._name).append("open")
        if len(seen(self._name)) < 3:
            raise RuntimeError("not yet")
        super().open(conf, context, collector)


def test_an_error_in_close_is_only_reported():
    driven = counting(1)
    driven.until_idle()
    seen("spout, trouble").append("close")

    driven.loop.close()

    assert [note.error for note in driven.heard.errors] == ["RuntimeError: lost in close"]


def test_a_message_on_a_stream_that_nobody_takes_is_acked():
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("alone", feeder)
    driven = Driven(builder.create_topology("t"))
    feeder.feed([1], msg_id="m")
    driven.until_idle(steps=20)

    assert (feeder.tracker.acks, feeder.tracker.fails) == ({"m": 1}, {})


@pytest.mark.parametrize("enabled", [True, False])
def test_messages_time_out_unless_that_is_disabled(enabled):
    driven = counting(2, bolt=Do(hold), message_timeout_secs=30, enable_message_timeouts=enabled)
    driven.step(2)
    for _ in range(100):
        driven.clock.pass_by(1)
        driven.step()

    fails = sorted(about for what, about in seen("spout") if what == "fail")
    assert fails == ([(1, 0), (1, 1)] if enabled else [])
    assert driven.counts.timed_out == (2 if enabled else 0)


def test_an_emission_from_inside_fail_is_a_new_message():
    driven = counting(1, bolt=Fails("out", {7: 1}))
    builder = TopologyBuilder()
    builder.set_spout("source", Again())
    builder.set_bolt("target", Fails("out", {7: 1})).shuffle_grouping("source")
    driven = Driven(builder.create_topology("again"))
    driven.until_idle()

    assert seen("again") == [("fail", 1), ("ack", 2)]


class Again(Spout):
    output_fields = ("n",)

    def open(self, conf, context, collector):
        self.collector = collector
        collector.emit([7], msg_id=1)

    def next_tuple(self):
        """All is emitted elsewhere."""

    def ack(self, msg_id):
        seen("again").append(("ack", msg_id))

    def fail(self, msg_id):
        seen("again").append(("fail", msg_id))
        self.collector.emit([7], msg_id=msg_id + 1)


@pytest.mark.parametrize("method", ["ack", "fail"])
def test_a_spout_that_raises_now_and_then_when_it_is_told_goes_on(method):
    seen("verb").append(method)
    driven = counting(10**6, bolt=Do(end_as_told), max_retries=1, max_spout_pending=5)
    for _ in range(5):
        seen("spout, trouble").append(method)
        driven.until(lambda: not seen("spout, trouble"))
        told = len(seen("spout"))
        driven.until(lambda: len(seen("spout")) > told + 20)  # noqa: B023

    assert driven.loop.error is None


def end_as_told(bolt, tuple):
    getattr(bolt.collector, seen("verb")[-1])(tuple)


def test_no_wave_takes_more_than_it_may():
    driven = counting(100, wave_max_tuples=5)
    driven.until_idle()

    assert max(facts["tuples"] for facts in driven.heard.waves) <= 5
    assert len(seen("target")) == 100


def test_spouts_take_turns_even_in_small_waves():
    driven = counting(10**6, tasks=3, wave_max_tuples=20, ackers=1, max_spout_pending=1000)
    driven.step(60)

    emitted = [about[0] for what, about in seen("spout") if what == "ack"]
    counts = [emitted.count(task) for task in (1, 2, 3)]
    assert min(counts) > 0
    assert max(counts) <= 3 * min(counts) + 64


class ComesBack(Spout):
    """Emits its one message again only some looks after it failed, as a queue does."""

    output_fields = ("n",)

    def open(self, conf, context, collector):
        self.collector, self.looks, self.there = collector, 0, True

    def next_tuple(self):
        self.looks -= 1
        if self.there or self.looks == 0:
            self.there = False
            self.collector.emit([1], msg_id=1)

    def is_drained(self):
        return self.looks <= 0

    def fail(self, msg_id):
        self.looks = 10


def test_a_message_that_is_on_its_way_back_is_waited_for():
    builder = TopologyBuilder()
    builder.set_spout("source", ComesBack())
    builder.set_bolt("bolt", Fails("out", {1: 2})).shuffle_grouping("source")

    driven = Driven(builder.create_topology("t"), max_replays=5).until_idle()

    assert seen("out") == [1]
    assert (driven.counts.failed, driven.counts.acked) == (2, 1)
