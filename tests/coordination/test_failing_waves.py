"""Waves that fail: run again, run in pieces, until the tuple that kills its worker is alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.waves.driving import Driven, Fails, ListLog, Record, forget_all, seen, seen_log
from waterspout.errors import BoltCrash, WorkerLostError
from waterspout.testing import FeederSpout
from waterspout.testing._waves import InProcessWaves
from waterspout.topology import Bolt, Spout, TopologyBuilder
from waterspout.waves.engine import Wave, WaveDone, WaveFailed


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()


def fed(bolt: Any, **options: Any) -> tuple[Driven, FeederSpout]:
    feeder = FeederSpout("n", replay=True)
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", bolt).shuffle_grouping("source")
    return Driven(builder.create_topology("t"), **options), feeder


def values_of(name: str) -> list[Any]:
    return [values[0] for _, values in seen(name)]


class Troubled(InProcessWaves):
    """Fails waves as long as `trouble` says so, with the error that it returns."""

    def __init__(self, trouble: Callable[[Wave], BaseException | None], **options: Any) -> None:
        super().__init__(2, **options)
        self._trouble = trouble
        self.started: list[tuple[int, int, int]] = []

    def start(self, wave: Wave) -> None:
        self.started.append((wave.header.number, wave.header.attempt, tuples_of(wave)))
        super().start(wave)

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        error = None if self._wave is None else self._trouble(self._wave)
        if error is None:
            return super().poll(wait_s)
        self._wave = None
        return WaveFailed(error)


def frames_of(wave: Wave) -> list[Any]:
    return [frame for given in wave.inputs.values() for frame in given.frames]


def tuples_of(wave: Wave) -> int:
    return sum(map(len, frames_of(wave)))


def times_only(times: int, error: BaseException) -> Callable[[Wave], BaseException | None]:
    left = [error] * times
    return lambda wave: left.pop() if left else None


def test_a_wave_that_fails_is_run_again_after_a_pause_that_doubles():
    engine = Troubled(times_only(3, RuntimeError("lost")))
    driven, feeder = fed(Record("out"), engine=engine, retry_backoff_millis=1000, max_retries=3)
    feeder.feed([1], msg_id=1)
    started = []
    for _ in range(100):
        driven.step()
        started.append(len(engine.started))
        driven.clock.pass_by(0.1)

    first = [started.index(n) for n in (1, 2, 3, 4)]
    assert [round((b - a) / 10) for a, b in itertools.pairwise(first)] == [1, 2, 4]
    assert engine.started == [(1, 0, 1), (1, 1, 1), (1, 2, 1), (1, 3, 1)]
    assert (values_of("out"), feeder.tracker.acks) == ([1], {1: 1})


def test_a_wave_that_fails_too_often_ends_the_run_with_its_error():
    error = RuntimeError("lost")
    driven, feeder = fed(Record("out"), engine=Troubled(times_only(99, error)), max_retries=2)
    feeder.feed([1], msg_id=1)

    assert driven.until_error() is error
    assert driven.loop.error is error
    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {})


def test_every_attempt_of_a_wave_draws_new_ids():
    seeds = []

    def note(wave: Wave) -> BaseException | None:
        seeds.append(wave.header.seed)
        return RuntimeError("lost") if len(seeds) < 3 else None

    driven, feeder = fed(Record("out"), engine=Troubled(note))
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    assert len(set(seeds)) == 3


def test_what_arrives_while_a_wave_waits_to_be_run_again_comes_after_it():
    engine = Troubled(times_only(1, RuntimeError("lost")))
    driven, feeder = fed(Record("out"), engine=engine, retry_backoff_millis=1000)
    feeder.feed([1], msg_id=1)
    driven.step(3)
    feeder.feed([2], msg_id=2)
    driven.until_idle()

    assert values_of("out") == [1, 2]


def test_a_bolt_that_crashes_by_policy_ends_the_run_at_once():
    driven, feeder = fed(Fails("out", {3: 99}), bolt_errors="crash")
    for n in range(5):
        feeder.feed([n], msg_id=n)

    error = driven.until_error()

    assert isinstance(error, BoltCrash)
    told = r"bolt 'bolt' raised ValueError: not 3 yet \(.*driving\.py, line \d+, in execute\)"
    assert re.fullmatch(told, str(error))
    assert seen("out, tried").count(3) == 1
    assert feeder.tracker.acks == {}


def poisoned(*bad: Any) -> Callable[[Wave], BaseException | None]:
    """Kills the worker of any wave that has one of these values."""

    def trouble(wave: Wave) -> BaseException | None:
        inside = [row[0] for frame in frames_of(wave) for row in frame.values]
        return WorkerLostError("a worker died") if set(inside) & set(bad) else None

    return trouble


@pytest.mark.parametrize("position", [0, 6, 31, 63])
def test_a_tuple_that_kills_its_worker_stands_alone_in_the_end(position):
    engine = Troubled(poisoned(position))
    driven, feeder = fed(Record("out"), engine=engine, max_replays=1, max_retries=1)
    for n in range(64):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert sorted(values_of("out")) == [n for n in range(64) if n != position]
    assert feeder.tracker.acks == dict.fromkeys(range(64), 1)
    assert feeder.tracker.fails == {position: 1}
    (letter,) = driven.letters.all()
    assert (letter.values, letter.failures, letter.failed_in) == ((position,), 2, "bolt")
    assert letter.error == "its worker died: a worker died"


@pytest.mark.parametrize("position", [0, 13, 39])
def test_a_message_of_a_log_that_kills_its_worker_stands_alone_in_the_end(position):
    def trouble(wave: Wave) -> BaseException | None:
        ranges = [each for given in wave.inputs.values() for r in given.reads for each in r.ranges]
        offsets = {n for partition, start, end in ranges for n in range(start, end) if partition}
        return WorkerLostError("a worker died") if position in offsets else None

    seen_log("log").update({0: list(range(40)), 1: list(range(100, 140))})
    builder = TopologyBuilder()
    builder.set_spout("log", ListLog("log"))
    builder.set_bolt("bolt", Record("out"), 2).shuffle_grouping("log")
    driven = Driven(
        builder.create_topology("t"), engine=Troubled(trouble), max_replays=1, max_retries=0
    )
    behind = []
    for _ in range(1_000):
        driven.step()
        driven.clock.pass_by(2.0)
        behind.append(driven.positions.get("log", {}).get("1", 0))
        if driven.loop.is_idle:
            break
    (letter,) = driven.letters.all()
    driven.loop.close()

    expected = [*range(40), *(n for n in range(100, 140) if n != 100 + position)]
    assert sorted(values_of("out")) == expected
    assert (letter.values, letter.failures) == ((100 + position,), 2)
    assert letter.error == "its worker died: a worker died"
    # Nothing behind the message was given up while it was not put aside.
    assert set(behind[:-1]) <= {*range(position + 1), 40}
    assert driven.positions == {"log": {"0": 40, "1": 40}}


def test_order_is_kept_when_a_wave_is_run_in_pieces():
    driven, feeder = fed(Record("out"), engine=Troubled(poisoned(20)), max_replays=0)
    for n in range(64):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert values_of("out") == [n for n in range(64) if n != 20]


def test_two_tuples_that_kill_are_both_found_among_others():
    driven, feeder = fed(Record("out"), engine=Troubled(poisoned(3, 50)), max_replays=1)
    for n in range(64):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert sorted(letter.values for letter in driven.letters.all()) == [(3,), (50,)]
    assert len(values_of("out")) == 62


def test_any_number_of_tuples_that_kill_are_found_at_the_default_of_replays():
    killers = [0, 1, 2, 17, 40, 41, 62, 63]
    engine = Troubled(poisoned(*killers))
    driven, feeder = fed(Record("out"), engine=engine)
    for n in range(64):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert values_of("out") == [n for n in range(64) if n not in killers]
    assert feeder.tracker.acks == dict.fromkeys(range(64), 1)
    assert feeder.tracker.fails == dict.fromkeys(killers, 3)
    letters = driven.letters.all()
    assert sorted(letter.values for letter in letters) == [(n,) for n in killers]
    assert {letter.failures for letter in letters} == {4}


def test_a_tuple_that_has_killed_is_run_alone_when_it_comes_again():
    engine = Troubled(poisoned(3))
    driven, feeder = fed(Record("out"), engine=engine, max_replays=2)
    for n in range(8):
        feeder.feed([n], msg_id=n)
    driven.until(lambda: feeder.tracker.is_failed(3))
    for n in range(8, 16):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    sizes = [tuples for _, _, tuples in engine.started]
    # The wave twice; pieces of it; the killer alone, twice; a wave with no tuple at all. Then what
    # has come meanwhile, and the killer: alone, once, and a wave with no tuple.
    assert sizes == [8, 8, 4, 2, 2, 1, 1, 1, 0, 4, 8, 1, 0, 1, 0]
    assert len(driven.letters.all()) == 1


class Slow(Troubled):
    """Waves take a minute each, whether they go through or not."""

    clock: Any = None

    def start(self, wave: Wave) -> None:
        super().start(wave)
        self._left = 6

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        if self._wave is not None:
            self._left -= 1
            self.clock.pass_by(10.0)
            if self._left:
                return None
        return super().poll(wait_s)


def test_no_time_passes_for_innocent_messages_while_a_killer_is_searched_for():
    engine = Slow(poisoned(3))
    driven, feeder = fed(Held(), engine=engine, max_replays=0, message_timeout_secs=100)
    engine.clock = driven.clock
    for n in range(8):
        feeder.feed([n], msg_id=n)
    driven.until(lambda: bool(driven.letters.all()))

    assert len(engine.started) > 8  # of a minute each
    assert [letter.values for letter in driven.letters.all()] == [(3,)]
    # From then on it passes again.
    driven.until(lambda: len(driven.letters.all()) == 8, tick=5.0)
    assert {letter.error for letter in driven.letters.all()[1:]} == {"timed out"}


def test_a_message_does_not_time_out_in_a_wave_at_whose_end_it_is_acked():
    engine = Slow(lambda wave: None)
    driven, feeder = fed(Record("out"), engine=engine, message_timeout_secs=10)
    engine.clock = driven.clock
    for n in range(4):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert (feeder.tracker.acks, feeder.tracker.fails) == (dict.fromkeys(range(4), 1), {})


class Held(Bolt):
    """Neither acks nor fails what it gets."""

    def execute(self, tuple):
        """Nothing."""


def test_a_bolt_whose_preparation_kills_ends_the_run_and_no_message_is_blamed():
    class Bad(InProcessWaves):
        def poll(self, wait_s):
            busy = self._wave is not None and (self._wave.header.probe or tuples_of(self._wave))
            self._wave = None
            return WaveFailed(WorkerLostError("a worker died")) if busy else None

    driven, feeder = fed(Record("out"), engine=Bad())
    for n in range(4):
        feeder.feed([n], msg_id=n)

    assert str(driven.until_error()) == (
        "a worker died. It did so too when it had to take up the bolts only, and no tuple: see "
        "whether prepare() of one kills it, or whether memory is short."
    )
    assert (driven.letters.all(), feeder.tracker.fails) == ([], {})


def test_a_wave_without_tuples_takes_up_every_bolt():
    class Deadly(Bolt):
        def prepare(self, conf, context, collector):
            seen("prepared").append(context.this_component_id)

        def execute(self, tuple):
            """Nothing gets here."""

    feeder = FeederSpout("n", replay=True)
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("first", Deadly()).shuffle_grouping("source")
    builder.set_bolt("second", Deadly()).shuffle_grouping("source")
    engine = Troubled(poisoned(1))
    driven = Driven(builder.create_topology("t"), engine=engine, max_replays=0)
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    assert sorted(seen("prepared")) == ["first", "second"]
    assert len(driven.letters.all()) == 1


def test_workers_that_always_die_end_the_run_and_nothing_is_put_aside():
    driven, feeder = fed(
        Record("out"), engine=Troubled(lambda wave: WorkerLostError("no memory")), max_replays=3
    )
    for n in range(64):
        feeder.feed([n], msg_id=n)

    error = driven.until_error()

    assert isinstance(error, WorkerLostError)
    assert driven.letters.all() == []
    assert feeder.tracker.acks == {}


def test_an_error_that_is_no_lost_worker_is_not_halved():
    engine = Troubled(lambda wave: RuntimeError("a bug"))
    driven, feeder = fed(Record("out"), engine=engine, max_retries=1)
    for n in range(8):
        feeder.feed([n], msg_id=n)
    driven.until_error()

    assert engine.started == [(1, 0, 8), (1, 1, 8)]


def test_messages_that_nobody_takes_are_acked_while_others_are_isolated():
    builder = TopologyBuilder()
    builder.set_spout("source", TwoWays())
    builder.set_bolt("bolt", Record("out")).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t"), engine=Troubled(poisoned("bad")), max_replays=0)
    driven.until_idle(steps=100)

    assert sorted(seen("told")) == [("ack", "bad"), ("ack", "free")]


class TwoWays(Spout):
    streams: ClassVar = {"default": ("value",), "nobody": ("value",)}

    def open(self, conf, context, collector):
        collector.emit(["bad"], msg_id="bad")
        collector.emit(["free"], msg_id="free", stream="nobody")

    def next_tuple(self):
        """All was said."""

    def ack(self, msg_id):
        seen("told").append(("ack", msg_id))

    def fail(self, msg_id):
        seen("told").append(("fail", msg_id))


def test_an_untracked_tuple_that_kills_is_dropped_and_the_run_goes_on():
    driven, feeder = fed(Record("out"), engine=Troubled(poisoned(3)), ackers=0)
    for n in range(8):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert values_of("out") == [0, 1, 2, 4, 5, 6, 7]
    assert [(note.component, note.error) for note in driven.heard.errors] == [
        ("bolt", "a worker died")
    ]


def test_workers_that_die_under_a_wave_without_tuples_end_the_run_with_that():
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("alone", feeder)
    engine = Troubled(lambda wave: WorkerLostError("no memory"))
    driven = Driven(builder.create_topology("t"), engine=engine)
    feeder.feed([1], msg_id=1)

    assert isinstance(driven.until_error(), WorkerLostError)
