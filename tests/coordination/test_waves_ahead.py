"""A full wave is made ready while another runs, and begins before the spouts are told of that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.waves.driving import (
    SPREAD,
    Do,
    Driven,
    LateWaves,
    ListLog,
    Record,
    forget_all,
    seen,
    seen_log,
)
from waterspout.coordination.events import Event, WaveFinished, WaveStarted
from waterspout.errors import WorkerLostError
from waterspout.topology import Spout, TopologyBuilder
from waterspout.waves.engine import Wave, WaveDone, WaveFailed

SIZE = 20


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()


class Noted(LateWaves):
    """Notes in `seen("order")` which wave begins."""

    def start(self, wave: Wave) -> None:
        seen("order").append(("begins", wave.header.number))
        super().start(wave)


class Numbers(Spout):
    """Numbers with themselves as ids; notes what it is told in `seen("order")`."""

    output_fields = ("n",)

    def __init__(self, total: int) -> None:
        self._total, self._next = total, 0

    def next_tuple(self):
        if self._next < self._total:
            self._next += 1
            self.collector.emit([self._next], msg_id=self._next)

    def ack(self, msg_id):
        seen("order").append(("ack", msg_id))

    def fail(self, msg_id):
        seen("order").append(("fail", msg_id))


def driven_numbers(total: int, bolt: Any = None, **options: Any) -> Driven:
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(total))
    builder.set_bolt("bolt", bolt or Record("out"), 2).shuffle_grouping("numbers")
    options = {"engine": Noted(), "wave_max_tuples": SIZE, "wave_collapse_tuples": SPREAD} | options
    return Driven(builder.create_topology("t"), **options)


def test_a_full_wave_begins_before_the_spouts_are_told_of_the_one_before():
    driven = driven_numbers(5 * SIZE).until_idle()

    order = seen("order")
    assert order.index(("begins", 3)) < order.index(("ack", SIZE + 1))
    assert sorted(order[n][1] for n in range(len(order)) if order[n][0] == "ack") == [
        *range(1, 5 * SIZE + 1)
    ]
    assert [values for _, values in sorted(seen("out"), key=lambda each: each[1])] == [
        (n,) for n in range(1, 5 * SIZE + 1)
    ]
    assert driven.counts.acked == 5 * SIZE


def test_a_wave_that_is_not_full_begins_when_the_spouts_were_told():
    driven_numbers(SIZE + 3, max_spout_pending=3).until_idle()

    order = seen("order")
    for number in (2, 3, 4):
        before = order[: order.index(("begins", number))]
        assert len([each for each in before if each[0] == "ack"]) == 3 * (number - 1)


def test_no_more_is_collected_than_one_wave_ahead():
    driven = driven_numbers(100 * SIZE, engine=Noted(looks=50))

    driven.step(40)

    assert driven.loop.spouts.pending == 2 * SIZE


def test_waves_are_told_to_listeners_one_after_the_other():
    driven = driven_numbers(5 * SIZE)
    told: list[tuple[str, int]] = []

    def note(event: Event) -> None:
        match event:
            case WaveStarted(wave=wave):
                told.append(("started", wave))
            case WaveFinished(progress=progress):
                told.append(("finished", progress.wave))

    driven.loop.events.subscribe(note)
    driven.until_idle()

    waves = len(told) // 2
    assert waves >= 5
    assert told == [(what, n) for n in range(1, waves + 1) for what in ("started", "finished")]


def test_what_is_never_acked_times_out_though_no_moment_passes_without_a_wave():
    def keep_the_first(bolt, tuple):
        if tuple["n"] != 1:
            bolt.collector.ack(tuple)

    driven = driven_numbers(10**6, Do(keep_the_first), message_timeout_secs=5)
    driven.until(lambda: ("fail", 1) in seen("order"), steps=3000)

    failed = seen("order").index(("fail", 1))
    begun = [each for each in seen("order")[:failed] if each[0] == "begins"]
    assert len(begun) > 50
    assert [each for each in seen("order") if each[0] == "fail"] == [("fail", 1)]


class Dying(Noted):
    """The worker dies under one value."""

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        ended = super().poll(wait_s)
        if isinstance(ended, WaveFailed):
            return WaveFailed(WorkerLostError("gone"))
        return ended


def test_a_wave_that_is_ready_waits_until_the_one_that_kills_was_looked_into():
    def die_of(bolt, tuple):
        if tuple["n"] == SIZE + 7:
            raise KeyboardInterrupt  # as Spark would see a lost worker: not the bolt's own error
        seen("out").append(tuple["n"])
        bolt.collector.ack(tuple)

    class DyingOf(Dying):
        def poll(self, wait_s):
            try:
                return super().poll(wait_s)
            except KeyboardInterrupt:
                return WaveFailed(WorkerLostError("gone"))

    driven = driven_numbers(5 * SIZE, Do(die_of), engine=DyingOf(), max_replays=0)
    driven.until_idle()

    told = [each for each in seen("order") if each[0] != "begins"]
    assert sorted(n for what, n in told) == [*range(1, 5 * SIZE + 1)]
    assert [letter.values for letter in driven.letters.all()] == [(SIZE + 7,)]
    assert set(seen("out")) == {*range(1, 5 * SIZE + 1)} - {SIZE + 7}


class Echoing(Numbers):
    """Gives one number first, and emits another one when that is acked."""

    def next_tuple(self):
        if self._next != 1 or ("begins", 1) in seen("order"):
            super().next_tuple()

    def ack(self, msg_id):
        super().ack(msg_id)
        if msg_id == 1:
            self.collector.emit([1000], msg_id=1000)


def test_what_a_spout_emits_beside_a_wave_that_is_ready_goes_with_it():
    builder = TopologyBuilder()
    builder.set_spout("numbers", Echoing(SIZE + 1))
    builder.set_bolt("bolt", Record("out")).shuffle_grouping("numbers")
    driven = Driven(builder.create_topology("t"), engine=Noted(), wave_max_tuples=SIZE)
    driven.until_idle()

    assert [wave["tuples"] for wave in driven.heard.waves] == [1, SIZE + 1]
    assert [values for _, values in seen("out")] == [(n,) for n in [*range(1, SIZE + 2), 1000]]


@pytest.mark.parametrize("ackers", [0, 1])
def test_the_loop_is_not_idle_while_a_wave_is_ready(ackers):
    driven = driven_numbers(3 * SIZE, ackers=ackers)
    while len(driven.heard.waves) < 1:
        driven.step()
        driven.clock.pass_by(0.01)
    while driven.loop.spouts.collected:
        driven.step()

    assert not driven.loop.is_idle
    assert not driven.loop.standing().is_drained

    driven.until_idle()

    assert len(seen("out")) == 3 * SIZE


@pytest.mark.parametrize(("limit", "early"), [(None, True), (SIZE, False), (SIZE + 9, False)])
def test_a_log_is_read_on_before_its_acks_unless_they_make_room_in_it(limit, early):
    seen_log("log").update({0: list(range(5 * SIZE))})
    builder = TopologyBuilder()
    builder.set_spout("log", ListLog("log"))
    builder.set_bolt("bolt", Record("out")).shuffle_grouping("log")
    waves: list[int] = []
    options = {} if limit is None else {"max_spout_pending": limit}
    driven = Driven(builder.create_topology("t"), engine=Noted(), wave_max_tuples=SIZE, **options)
    finish = driven.loop.spouts.finish_wave
    driven.loop.spouts.finish_wave = lambda *given: (
        waves.append(driven.loop.waves),
        finish(*given),
    )
    driven.until_idle()

    assert sorted(values[0] for _, values in seen("out")) == [*range(5 * SIZE)]
    assert waves[:4] == ([2, 3, 4, 5] if early else [1, 2, 3, 4])

    driven.loop.close()

    assert driven.positions == {"log": {"0": 5 * SIZE}}
