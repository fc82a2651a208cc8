"""Services that are away for a while: waited for, shown, and given up in the end."""

from __future__ import annotations

import pytest

from tests.waves.driving import Driven, FakeClock, ListLog, Record, forget_all, seen, seen_log
from waterspout import Config, TopologyBuilder, faults
from waterspout._backoff import Backoff
from waterspout.coordination.events import (
    BatchCommitted,
    BatchEmitted,
    BatchFailed,
    ServiceAway,
    ServiceBack,
)
from waterspout.coordination.outages import Outages
from waterspout.coordination.progress import BatchTotals
from waterspout.coordination.recording import Recorder
from waterspout.coordination.run import Run
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.errors import LeaseLostError, OutageError
from waterspout.state import MemoryMapState
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState
from waterspout.testing import FeederSpout, FixedBatchSpout, LocalRun
from waterspout.testing._waves import InProcessWaves
from waterspout.trident import Count, TridentTopology
from waterspout.waves.engine import WaveFailed

BATCHES = 4
AWAY = OutageError("postgres", "connection refused")


@pytest.fixture(autouse=True)
def _fresh():
    forget_all()
    yield
    faults.install(None)


def counting(state, operation=None) -> TridentTopology:
    topology = TridentTopology("counting")
    rows = [row for n in range(BATCHES) for row in (["a"], [f"b{n}"])]
    spout = FixedBatchSpout("word string", 2, rows)
    words = topology.new_stream("words", spout)
    if operation is not None:
        words = words.filter(operation)
    words.group_by("word").persistent_aggregate(state, Count(), "n")
    return topology


class Driver:
    """A run by hand whose clock moves on by a second with each step."""

    def __init__(self, topology, *, store=None, **options):
        self.clock, self.events = FakeClock(), []
        self.recorder = Recorder("counting", BatchTotals())
        config = Config(max_retries=0, **options)
        self.run = LocalRun(topology, config, store=store, clock=self.clock, listener=self.hear)
        self.run.loop.pause = lambda seconds: self.clock.pass_by(seconds)

    def hear(self, event):
        self.events.append(event)
        self.recorder(event)

    def heard(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def step_until(self, condition):
        for _ in range(2_000):
            if condition():
                return
            self.run.step()
            self.clock.pass_by(1.0)
        raise TimeoutError(self.events[-5:])

    def finish(self):
        loop, engine = self.run.loop, self.run.engine
        self.step_until(lambda: loop.is_idle and not engine.waiting)
        return self

    @property
    def counts(self):
        (state,) = self.run._states.values()
        keys = [("a",), *((f"b{n}",) for n in range(BATCHES))]
        return dict(zip([key for (key,) in keys], state.multi_get(keys), strict=True))


EXACT = {"a": BATCHES, **{f"b{n}": 1 for n in range(BATCHES)}}


def test_pauses_grow_and_the_last_try_comes_when_the_time_is_over():
    outages = Outages(60.0, Backoff(1.0, 10.0))

    assert [outages.met("states", "redis", t) for t in (100, 101, 103, 155, 159)] == [1, 2, 4, 5, 1]
    assert outages.met("states", "redis", 160) is None
    assert outages.met("ledger", "redis", 160) == 1, "each part for itself"


def test_an_outage_is_over_when_its_part_is_through():
    outages = Outages(60.0, Backoff(1.0))
    outages.met("states", "redis", 100.0)

    assert outages.answered("ledger", 130.0) == {}
    assert outages.answered("states", 130.0) == {"redis": 30.0}
    assert outages.met("states", "redis", 165.0) == 1.0, "a new one, with all the time"


@pytest.mark.parametrize(
    ("service", "point"),
    [("postgres", "write.before"), ("redis", "head.before"), ("redis", "settle.before")],
)
def test_a_store_that_stops_in_the_middle_of_a_run_is_waited_for(service, point, request):
    server = request.getfixturevalue(f"{service}_server")
    if service == "postgres":
        state = PostgresState.opaque(server.fresh_database(), "counts")
    else:
        state = RedisState.opaque(server.url, f"outage-{point}")
    driver = Driver(counting(state))
    stopped = []

    def strike(name, context):
        if name == point and context["txid"] == 2 and not stopped:
            stopped.append(name)
            server.stop()

    faults.install(strike)
    driver.step_until(lambda: len(driver.heard(ServiceAway)) == 5)
    (outage,) = driver.recorder.snapshot("running").waiting_for
    emitted = len(driver.heard(BatchEmitted))
    server.start()
    driver.finish()

    assert driver.counts == EXACT
    assert outage.service == service
    pauses = [event.pause_s for event in driver.heard(ServiceAway)]
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert [event.service for event in driver.heard(ServiceBack)] == [service]
    assert driver.recorder.snapshot("running").waiting_for == ()
    # A store that does not answer is asked; the batch is not processed again each time.
    assert emitted == 2
    assert sum(event.is_replay for event in driver.heard(BatchEmitted)) == len(
        driver.heard(BatchFailed)
    )
    assert [event.progress.txid for event in driver.heard(BatchCommitted)] == [1, 2, 3, 4]


def away_at(point, times=10**9):
    left = [times]

    def strike(name, context):
        if name == point and left[0]:
            left[0] -= 1
            raise AWAY

    faults.install(strike)


def test_a_store_that_stays_away_ends_the_run_after_outage_secs_and_says_so():
    away_at("head.before")
    driver = Driver(counting(MemoryMapState()), outage_secs=60)
    began = driver.clock.now

    with pytest.raises(
        OutageError,
        match=r"^postgres was away for 6\d s, and outage_secs is 60\. .*connection refused$",
    ):
        driver.finish()

    assert 60 <= driver.clock.now - began <= 75
    assert [event.stops for event in driver.heard(BatchFailed)][-2:] == [False, True]


def test_no_time_to_wait_ends_the_run_at_once():
    away_at("head.before")
    driver = Driver(counting(MemoryMapState()), outage_secs=0)

    with pytest.raises(OutageError, match="away for 0 s"):
        driver.finish()

    assert len(driver.heard(BatchFailed)) == 1


def test_what_user_code_cannot_reach_counts_against_max_retries():
    def asks(word):
        raise ConnectionError("the service of this function is away")

    driver = Driver(counting(MemoryMapState(), asks))

    with pytest.raises(ConnectionError):
        driver.finish()

    assert len(driver.heard(BatchFailed)) == 1
    assert driver.heard(ServiceAway) == []


@pytest.mark.parametrize("method", ["is_ready", "plan"])
@pytest.mark.parametrize("error", [ConnectionResetError("gone"), TimeoutError("late"), AWAY])
def test_a_source_that_cannot_be_reached_is_waited_for(method, error):
    class Remote(FixedBatchSpout):
        def open(self, context):
            planner, left = super().open(context), [4]
            real = getattr(planner, method)

            def asked(*arguments):
                left[0] -= 1
                if 0 <= left[0] < 3:
                    raise error
                return real(*arguments)

            setattr(planner, method, asked)
            return planner

    topology = TridentTopology("counting")
    words = topology.new_stream("words", Remote("word string", 1, [["a"]] * 3))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
    driver = Driver(topology)

    driver.finish()

    assert driver.counts["a"] == 3
    assert len(driver.heard(ServiceAway)) == 3
    service = "postgres" if error is AWAY else "the source of 'words'"
    assert [event.service for event in driver.heard(ServiceBack)] == [service]


class FarLedger(MemoryCoordinationStore):
    """Does not answer to the saves from the third on, as often as it is told to; then does this."""

    def __init__(self, silent, then=None):
        super().__init__("counting")
        self.saves, self.silent, self.then = 0, silent, then

    def save(self, ledger):
        self.saves += 1
        if self.saves > 2 and self.silent:
            self.silent -= 1
            raise OutageError("zookeeper", "has not answered for 30 s")
        if self.saves > 3 and self.then is not None:
            raise self.then
        super().save(ledger)


def test_a_coordination_store_that_does_not_answer_is_waited_for():
    driver = Driver(counting(MemoryMapState()), store=FarLedger(5))

    driver.finish()

    assert driver.counts == EXACT
    assert len(driver.heard(ServiceAway)) == 5
    assert [event.service for event in driver.heard(ServiceBack)] == ["zookeeper"]
    assert driver.heard(BatchFailed) == []


def test_a_lease_that_was_lost_meanwhile_stops_the_run():
    lost = LeaseLostError("was taken over")
    driver = Driver(counting(MemoryMapState()), store=FarLedger(3, then=lost))

    with pytest.raises(LeaseLostError):
        driver.finish()

    assert driver.heard(BatchCommitted) == []


def test_a_run_that_waits_says_so_and_can_be_stopped():
    store = FarLedger(10**9)
    local = LocalRun(counting(MemoryMapState()), store=store)
    recorder = Recorder("counting", BatchTotals())
    local.loop.events.subscribe(recorder)
    store.saves = 2

    run = Run(local.loop, recorder, store, Config(), explain=str, close=lambda: None)
    while not recorder.waiting_for:
        assert not run.await_termination(0.01)
    said = run.status
    run.stop()

    assert said == "waiting for zookeeper, 0 s"
    assert run.status == "stopped"
    assert run.exception() is None


class Remote(FeederSpout):
    """Cannot reach its source at first; nor can its copies."""

    def next_tuple(self):
        if seen("errors"):
            raise seen("errors").pop()
        super().next_tuple()


def core(spout, **options) -> Driven:
    builder = TopologyBuilder()
    builder.set_spout("source", spout)
    builder.set_bolt("bolt", Record("out")).shuffle_grouping("source")
    return Driven(builder.create_topology("t"), max_retries=0, **options)


def test_a_core_spout_that_cannot_reach_its_source_is_waited_for():
    seen("errors").extend([ConnectionError("refused")] * 6)
    spout = Remote("n", replay=True)
    driven = core(spout)
    spout.feed([1], msg_id=1)

    driven.until_idle()

    assert [values for _, values in seen("out")] == [(1,)]


class Waiting(FeederSpout):
    """Waits for its broker by itself."""

    outage = OutageError("rabbitmq", "connection refused")


def test_a_spout_that_waits_by_itself_is_given_up_too():
    driven = core(Waiting("n"), outage_secs=60)

    error = driven.until_error()

    assert "rabbitmq was away for 60 s" in str(error)


class Interrupted(InProcessWaves):
    """Its first waves meet an outage."""

    left = 5

    def poll(self, wait_s):
        if self._wave is None or not self.left:
            return super().poll(wait_s)
        self._wave, self.left = None, self.left - 1
        return WaveFailed(AWAY)


def test_a_wave_that_meets_an_outage_is_run_again_and_again():
    spout = FeederSpout("n", replay=True)
    driven = core(spout, engine=Interrupted(2))
    spout.feed([1], msg_id=1)

    driven.until_idle()

    assert [values for _, values in seen("out")] == [(1,)]
    assert spout.tracker.acks == {1: 1}


def test_positions_that_cannot_be_stored_are_stored_later(monkeypatch):
    left = [4]
    save = MemoryCoordinationStore.save

    def far(self, ledger):
        if left[0]:
            left[0] -= 1
            raise OutageError("zookeeper", "has not answered")
        save(self, ledger)

    monkeypatch.setattr(MemoryCoordinationStore, "save", far)
    seen_log("log").update({0: ["x", "y"]})
    builder = TopologyBuilder()
    builder.set_spout("log", ListLog("log"))
    builder.set_bolt("bolt", Record("out")).shuffle_grouping("log")
    driven = Driven(builder.create_topology("t"), max_retries=0)

    for _ in range(100):
        driven.step()
        driven.clock.pass_by(1.0)

    assert left == [0]
    assert driven.loop.spouts._ledger.positions == {"log": {"0": 2}}
