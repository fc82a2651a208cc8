"""A run and its threads: nobody sleeps while somebody waits."""

from __future__ import annotations

import queue
import time
from contextlib import suppress

import pytest

from tests.waves.driving import Do, Driven
from waterspout import Config, TopologyBuilder, runs
from waterspout.coordination.events import EventBus, RunEnded
from waterspout.coordination.progress import BatchTotals
from waterspout.coordination.recording import Recorder
from waterspout.coordination.run import Run
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.errors import RunFailedError
from waterspout.testing import FeederSpout

# Whoever waits this long has slept: the tests' own limit is far below.
ASLEEP_S = 60.0


class Loop:
    """A loop without work: it is idle from the second look on, or as its test says."""

    def __init__(self) -> None:
        self.active, self.is_idle, self.events, self.lag = True, False, EventBus(), {}
        self.name = "words"
        self.looks, self.error, self.lag = 0, None, {}
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def step(self, wait_s: float = 0.0) -> None:
        with suppress(queue.Empty):
            self._wakes.get(timeout=wait_s) if wait_s else self._wakes.get_nowait()
        if self.error is not None:
            raise self.error
        self.looks += 1
        self.is_idle = self.looks > 1

    def wake(self) -> None:
        self._wakes.put(None)

    def look_anew(self) -> None:
        self.wake()

    def abandon(self, error: BaseException) -> None:
        self.error = error
        self.wake()

    def leave(self) -> None:
        self.wake()

    def close(self) -> None:
        pass


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def run(loop):
    config = Config(idle_poll_millis=1000 * ASLEEP_S, lease_secs=3 * ASLEEP_S)
    store = MemoryCoordinationStore("words")
    run = Run(
        loop,
        Recorder("words", BatchTotals()),
        store,
        config,
        explain=lambda: "",
        close=lambda: None,
    )
    yield run
    run.stop()


def test_who_waits_for_the_sources_to_be_dry_wakes_the_loop(run):
    began = time.monotonic()

    run.process_all_available(timeout=ASLEEP_S)
    run.process_all_available(timeout=ASLEEP_S)
    run.stop()

    assert time.monotonic() - began < ASLEEP_S / 4
    assert run.status == "stopped"


def test_the_sources_are_looked_at_again_for_everyone_who_asks(run, loop):
    run.process_all_available(timeout=ASLEEP_S)
    before = loop.looks

    run.process_all_available(timeout=ASLEEP_S)

    assert loop.looks >= before + 2, "the look under way may have been too early"


def test_a_run_is_listed_until_it_has_ended(run):
    assert run in runs()

    run.stop()

    assert run not in runs()


def test_the_end_of_a_run_is_told_with_its_reason(run, loop):
    heard = []
    run.subscribe(heard.append)

    loop.abandon(ValueError("no more"))
    with pytest.raises(RunFailedError, match="no more"):
        run.await_termination(timeout=ASLEEP_S)

    (ended,) = (event for event in heard if isinstance(event, RunEnded))
    assert (ended.run, str(ended.error)) == ("words", "no more")


def test_what_ends_a_run_is_among_its_errors_in_the_same_words(run, loop):
    run.subscribe(run._recorder)

    loop.abandon(ValueError("no more"))
    with pytest.raises(RunFailedError) as failed:
        run.await_termination(timeout=ASLEEP_S)

    (error,) = run.errors
    assert (error.component, str(failed.value)) == ("run", f"run words stopped: {error.error}")


def made(loop, **more):
    recorder, store = Recorder("words", BatchTotals()), MemoryCoordinationStore("words")
    return Run(loop, recorder, store, Config(), explain=str, **more)


def test_who_attends_sees_the_run_before_its_first_step(loop):
    seen = []

    run = made(loop, close=lambda: None, attend=lambda run: seen.append((run.name, loop.looks)))
    run.stop()

    assert seen == [("words", 0)]


def test_who_attends_and_raises_ends_the_run_before_it_has_begun(loop):
    closed, heard = [], []
    loop.events.subscribe(heard.append)

    def refuse(run):
        raise OSError("the port is taken")

    with pytest.raises(OSError, match="the port is taken"):
        made(loop, close=lambda: closed.append(True), attend=refuse)

    assert (closed, loop.looks) == ([True], 0)
    assert [str(event.error) for event in heard] == ["the port is taken"]
    assert "words" not in [run.name for run in runs()]


def test_a_snapshot_tells_the_status(run):
    run.process_all_available(timeout=ASLEEP_S)
    assert run.snapshot().status == "idle"

    run.deactivate()
    assert run.snapshot()["status"] == "inactive"


def test_a_wave_loop_that_becomes_idle_says_so_before_it_waits():
    waits = []
    spout, builder = FeederSpout("n", replay=True), TopologyBuilder()
    builder.set_spout("numbers", spout)
    bolt = Do(lambda bolt, given: bolt.collector.ack(given), ())
    builder.set_bolt("bolt", bolt).shuffle_grouping("numbers")
    driven = Driven(builder.create_topology("idle"))
    poll = driven.engine.poll

    def noted(wait_s):
        waits.append((driven.loop.is_idle, wait_s))
        return poll(wait_s)

    driven.engine.poll = noted
    spout.feed([1], msg_id=1)

    for _ in range(10):
        driven.loop.step(wait_s=ASLEEP_S)

    assert driven.loop.is_idle
    slept_before_idle = [wait_s for idle, wait_s in waits if not idle and wait_s]
    assert len(slept_before_idle) <= 1, "it may wait for the wave, and for nothing else"
