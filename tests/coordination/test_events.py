"""What a run tells: events in their order, and what is remembered of them."""

from __future__ import annotations

import json

import pytest

from tests.waves.driving import Do, Driven, Fails, forget_all
from waterspout import Config, TopologyBuilder, faults
from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchFailed,
    CommitStep,
    EventBus,
    MessageDeadLettered,
    RunEnded,
    SpoutPaused,
    StateWritten,
    TreesDecided,
    WaveFinished,
)
from waterspout.coordination.progress import BatchProgress, BatchTotals, WaveProgress, WaveTotals
from waterspout.coordination.recording import Recorder
from waterspout.errors import BatchTimeoutError, FailedException
from waterspout.faults import Fault, FaultPlan
from waterspout.state import MemoryMapState
from waterspout.testing import FeederSpout, FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology


@pytest.fixture(autouse=True)
def _fresh():
    forget_all()
    yield
    faults.install(None)


def counting(batches: int = 1, spout=None) -> TridentTopology:
    topology = TridentTopology("counting")
    spout = spout or FixedBatchSpout("word", 1, ["a"] * batches)
    words = topology.new_stream("words", spout)
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    return topology


def told(events: list) -> list[str]:
    """Name the events, with the attempts they are about; steps of commits by their own names."""
    attempts = [getattr(event, "attempt", None) for event in events]
    return [
        f"{getattr(event, 'step', type(event).__name__)} {attempt}".removesuffix(" None")
        for event, attempt in zip(events, attempts, strict=True)
    ]


def feeding(bolt, messages: int, **options) -> Driven:
    spout = FeederSpout("n", replay=True)
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout)
    builder.set_bolt("bolt", bolt).shuffle_grouping("numbers")
    driven = Driven(builder.create_topology("feeding"), **options)
    for n in range(messages):
        spout.feed([n], msg_id=n)
    return driven


def test_a_batch_is_emitted_processed_and_committed():
    events = []
    run = LocalRun(counting(), listener=events.append)

    run.finish()

    assert told(events) == [
        "BatchEmitted 1:0",
        "BatchProcessed 1:0",
        "begun 1:0",
        "BatchCommitting 1:0",
        "claimed 1:0",
        "written 1:0",
        "marked 1:0",
        "settled 1:0",
        "StateWritten 1:0",
        "BatchCommitted 1:0",
    ]
    assert {event.run for event in events} == {"counting"}
    assert events[-1].progress["txid"] == 1


def test_each_step_of_a_commit_is_told_for_each_state_by_the_thread_that_drives():
    topology = TridentTopology("two")
    words = topology.new_stream("words", FixedBatchSpout("word", 3, ["a", "b", "a"]))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="n")
    words.persistent_aggregate(MemoryMapState(), Count(), out="n")
    steps, driving = [], []

    def listen(event):
        if isinstance(event, CommitStep):
            assert driving
            steps.append((event.step, event.state))

    run = LocalRun(topology, listener=listen)
    for _ in range(20):
        driving.append(True)
        run.loop.step()
        driving.clear()
        run.engine.step()  # here the heads are claimed and the states are written

    one, two = run.plan.updates
    assert steps == [
        ("begun", None),
        *[("claimed", one), ("claimed", two)],
        *[("written", one), ("written", two)],
        ("marked", None),
        *[("settled", one), ("settled", two)],
    ]


def test_each_state_of_a_committed_batch_is_told_with_its_rows():
    topology = TridentTopology("two")
    words = topology.new_stream("words", FixedBatchSpout("word", 3, ["a", "b", "a"]))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="n")
    words.persistent_aggregate(MemoryMapState(), Count(), out="n")
    events = []
    run = LocalRun(topology, listener=events.append)

    run.finish()

    written = [event for event in events if isinstance(event, StateWritten)]
    assert sorted(event.rows for event in written) == [1, 2]
    assert {event.state for event in written} == set(run.plan.updates)
    (committed,) = (event for event in events if isinstance(event, BatchCommitted))
    assert (committed.progress.input_rows, committed.progress.written_rows) == (3, 3)


def test_a_failed_batch_is_told_with_those_that_are_replayed_because_of_it():
    faults.install(FaultPlan([Fault("write.before", "fail", where={"txid": 1})]))
    events = []
    config = Config(max_spout_pending=2, retry_backoff_millis=1)
    run = LocalRun(counting(2), config, listener=events.append)

    run.finish()

    (failed,) = (event for event in events if isinstance(event, BatchFailed))
    assert isinstance(failed.error, FailedException)
    assert not failed.stops
    (cancelled,) = (event for event in events if isinstance(event, BatchCancelled))
    assert (str(cancelled.attempt), str(cancelled.failed)) == ("2:0", "1:0")
    assert [str(e.attempt) for e in events if getattr(e, "is_replay", False)] == ["1:1", "2:1"]
    progress = [event.progress for event in events if isinstance(event, BatchCommitted)]
    assert [(p.txid, p.attempt, p.replayed, p.failures) for p in progress] == [
        (1, 1, 2, 1),
        (2, 1, 2, 1),
    ]


def test_the_error_that_ends_a_run_is_told_as_one():
    faults.install(FaultPlan([Fault("write.before", "raise")]))
    events = []
    run = LocalRun(counting(), Config(max_retries=0), listener=events.append)

    with pytest.raises(faults.InjectedError):
        run.finish()

    assert told(events)[-1] == "BatchFailed 1:0"
    assert events[-1].stops


def test_a_batch_that_takes_too_long_is_told_as_failed():
    events, now = [], 0.0
    config = Config(batch_timeout_secs=10, retry_backoff_millis=1)
    run = LocalRun(counting(), config, clock=lambda: now, listener=events.append)
    run.loop.step()

    now = 11.0
    run.loop.step()

    assert told(events) == ["BatchEmitted 1:0", "BatchFailed 1:0"]
    assert isinstance(events[-1].error, BatchTimeoutError)
    assert not events[-1].stops


def test_a_spout_that_cannot_be_asked_is_told_with_its_pause():
    class Down(FixedBatchSpout):
        def open(self, context):
            planner = super().open(context)
            planner.is_ready = lambda previous: (_ for _ in ()).throw(FailedException("no broker"))
            return planner

    events, recorder = [], Recorder("counting", BatchTotals())
    run = LocalRun(counting(spout=Down("word", 1, ["a"])), listener=events.append)
    run.loop.events.subscribe(recorder)

    run.loop.step()

    (paused,) = events
    assert isinstance(paused, SpoutPaused)
    assert (paused.component, paused.error) == ("words", "FailedException: no broker")
    (pause,) = recorder.snapshot("running").pausing_spouts
    assert (pause.component, pause.until) == ("words", paused.timestamp + paused.pause_s)


def test_a_wave_starts_decides_messages_and_is_done():
    events = []
    driven = feeding(Fails("bolt", {1: 1}), 2)
    driven.loop.events.subscribe(events.append)

    driven.until_idle()

    assert told(events) == [
        "WaveStarted 0",
        "ErrorReported",
        "TreesDecided",
        "TreesDecided",
        "TuplesCounted",
        "WaveFinished",
        "WaveStarted 0",
        "TreesDecided",
        "TuplesCounted",
        "WaveFinished",
    ]
    decided = [event for event in events if isinstance(event, TreesDecided)]
    assert sum(event.acked for event in decided) == 2
    assert sum(event.failed for event in decided) == 1
    waves = [event.progress for event in events if isinstance(event, WaveFinished)]
    assert [(w.acked, w.failed, w.executed) for w in waves] == [
        (1, 1, {"bolt": 2}),
        (1, 0, {"bolt": 1}),
    ]


def test_a_message_that_fails_too_often_is_told_and_counted():
    events, recorder = [], Recorder("feeding", WaveTotals())
    driven = feeding(Fails("bolt", {0: 9}), 1, max_replays=1)
    driven.loop.events.subscribe(events.append)
    driven.loop.events.subscribe(recorder)

    driven.until_idle()

    (letter,) = (event.letter for event in events if isinstance(event, MessageDeadLettered))
    assert (letter.spout, letter.message_id, letter.failed_in) == ("numbers", "0", "bolt")
    totals = recorder.snapshot("idle").totals
    assert (totals.acked, totals.failed, totals.dead_letters) == (0, 2, 1)


def test_messages_that_time_out_while_no_wave_runs_are_in_the_totals():
    recorder = Recorder("feeding", WaveTotals())
    driven = feeding(Do(lambda bolt, given: None, ()), 1, max_replays=0, message_timeout_secs=5)
    driven.loop.events.subscribe(recorder)
    driven.step(3)

    driven.clock.pass_by(20)
    driven.until_idle()

    snapshot = recorder.snapshot("idle")
    assert (snapshot.totals.failed, snapshot.totals.timed_out) == (1, 1)
    assert snapshot.last_progress.timed_out == 1


def test_a_snapshot_tells_what_each_batch_waits_for():
    recorder = Recorder("counting", BatchTotals())
    run = LocalRun(counting(3), Config(max_spout_pending=3), listener=recorder)
    run.loop.step()
    while recorder.snapshot("running").in_flight[1].phase != "processed":
        run.engine.step(choose=lambda n: min(1, n - 1))  # the second batch overtakes the first
        run.loop.step()

    first, second, third = recorder.snapshot("running").in_flight

    assert (first.txid, first.attempt, first.phase, first.waits_for) == (
        *(1, 0, "processing", "processing"),
    )
    assert (second.phase, second.waits_for) == ("processed", "its turn to commit after 1")
    assert third.waits_for == "processing"
    assert first.since <= second.since
    run.finish()
    assert recorder.snapshot("idle").in_flight == ()
    assert recorder.snapshot("idle").totals.committed == 3


def test_a_snapshot_while_a_batch_waits_for_its_replay():
    faults.install(FaultPlan([Fault("processing", "fail", where={"txid": 1})]))
    recorder, now = Recorder("counting", BatchTotals()), 0.0
    config = Config(max_spout_pending=2)
    run = LocalRun(counting(2), config, clock=lambda: now, listener=recorder)
    while not recorder.snapshot("").errors:
        run.step()

    snapshot = recorder.snapshot("running")

    assert [(batch.txid, batch.phase, batch.waits_for) for batch in snapshot.in_flight] == [
        (1, "failed", "a pause before its replay"),
        (2, "failed", "the replay of 1"),
    ]
    assert snapshot.totals.failures == 1
    (error,) = snapshot.errors
    assert (error["component"], error["count"]) == ("batch 1:0", 1)
    assert json.loads(snapshot.json)["in_flight"][0]["waits_for"] == "a pause before its replay"


def test_a_snapshot_shows_the_wave_that_runs():
    recorder = Recorder("feeding", WaveTotals())
    driven = feeding(Fails("bolt", {}), 2)
    driven.loop.events.subscribe(recorder)
    seen = []
    driven.loop.events.subscribe(lambda event: seen.append(recorder.snapshot("running").in_flight))

    driven.until_idle()

    ((wave,), *_, at_last) = seen
    assert (wave.wave, wave.attempt, wave.tuples, wave.waits_for) == (1, 0, 2, "running")
    assert at_last == ()


def test_who_has_unsubscribed_hears_no_more():
    bus, heard = EventBus(), []
    once, twice = bus.subscribe(heard.append), bus.subscribe(heard.append)
    once()
    once()

    bus.publish(RunEnded("words", None))
    assert len(heard) == 1

    twice()
    bus.publish(RunEnded("words", None))
    assert len(heard) == 1


def test_a_listener_that_raises_is_logged_and_harms_nobody(caplog):
    events = []

    def broken(event):
        raise ValueError("not today")

    run = LocalRun(counting(), listener=broken)
    run.loop.events.subscribe(events.append)

    run.finish()

    assert told(events)[-1] == "BatchCommitted 1:0"
    assert "a listener of run counting raised" in caplog.text
    assert "not today" in caplog.text


def test_a_listener_may_unsubscribe_while_it_is_told():
    bus, heard = EventBus(), []

    def once(event):
        heard.append(event)
        unsubscribe()

    unsubscribe = bus.subscribe(once)
    bus.subscribe(heard.append)

    bus.publish(RunEnded("words", None))
    bus.publish(RunEnded("words", None))

    assert len(heard) == 3


@pytest.mark.parametrize(
    "progress",
    [
        BatchProgress("words", 7, 1, 12.5, written_rows=3),
        WaveProgress("words", 12.5, 3, executed={"bolt": 2}, throttled=True),
    ],
)
def test_progress_is_a_dict_and_survives_json(progress):
    copied = type(progress)(**json.loads(progress.json))

    assert copied == progress
    assert dict(copied) == json.loads(progress.json)
    assert progress["name"] == progress.get("name") == progress.name == "words"
    assert ("name" in progress, "json" in progress) == (True, False)
    assert next(iter(progress.keys())) == "name"
    with pytest.raises(KeyError):
        progress["keys"]
