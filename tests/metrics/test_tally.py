"""What is counted of a run's events, for metrics."""

from __future__ import annotations

import pytest

from waterspout._letters import DeadLetter
from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchCommitting,
    BatchEmitted,
    BatchFailed,
    BatchProcessed,
    CommandObeyed,
    ErrorReported,
    MessageDeadLettered,
    ServiceAway,
    ServiceBack,
    SpoutPaused,
    StateWritten,
    TreesDecided,
    WaveFinished,
    WaveRetried,
)
from waterspout.coordination.progress import BatchProgress, WaveProgress
from waterspout.errors import BatchTimeoutError, FailedException, WorkerLostError
from waterspout.metrics._tally import Histogram, RunTally, kind_of
from waterspout.transactional import TransactionAttempt


def counted(*events):
    tally = RunTally()
    for event in events:
        tally(event)
    return tally


def attempt(txid, number=0):
    return TransactionAttempt(txid, number)


def test_a_batch_is_counted_with_the_time_of_each_phase():
    progress = BatchProgress("t", 1, 0, 0.0, processing_s=0.2, commit_s=0.004, input_rows=7)

    tally = counted(
        BatchEmitted("t", attempt(1)),
        BatchProcessed("t", attempt(1), timestamp=10.0),
        BatchCommitting("t", attempt(1), timestamp=13.0),
        StateWritten("t", attempt(1), "counts", 5),
        BatchCommitted("t", attempt(1), progress),
    )

    assert tally.counters() == {
        "batch_attempts": {(): 1},
        "batch_replays": {(): 0},
        "batches_committed": {(): 1},
        "input_rows": {(): 7},
        "state_written_rows": {("counts",): 5},
    }
    assert {name: each.sum for name, each in tally.histograms().items()} == {
        "batch_waiting_seconds": 3.0,
        "batch_processing_seconds": 0.2,
        "batch_commit_seconds": 0.004,
    }


def test_failures_are_counted_by_kind_and_what_was_cancelled_apart():
    class Mine(FailedException):
        pass

    tally = counted(
        BatchProcessed("t", attempt(2), timestamp=1.0),
        BatchFailed("t", attempt(1), Mine("again"), stops=False),
        BatchCancelled("t", attempt(2), attempt(1)),
        BatchFailed("t", attempt(1, 1), BatchTimeoutError("late"), stops=False),
        BatchFailed("t", attempt(1, 2), KeyError("x"), stops=True),
        BatchEmitted("t", attempt(1, 3)),
        BatchCommitting("t", attempt(2, 1), timestamp=9.0),
    )

    counters = tally.counters()
    assert counters["batch_failures"] == {
        ("FailedException",): 1,
        ("BatchTimeoutError",): 1,
        ("other",): 1,
    }
    assert counters["batch_cancellations"] == {(): 1}
    assert (counters["batch_attempts"], counters["batch_replays"]) == ({(): 1}, {(): 1})
    # What the cancelled attempt had waited is not the wait of the next one.
    assert tally.histograms()["batch_waiting_seconds"].sum == 0.0


def test_an_outage_that_is_told_at_each_try_is_one_with_the_time_it_took():
    tally = counted(
        ServiceAway("t", "redis", "refused", 0.0, 1.0),
        ServiceAway("t", "redis", "refused", 1.0, 2.0),
        ServiceAway("t", "redis", "refused", 3.0, 4.0),
        ServiceBack("t", "redis", 7.5),
        ServiceAway("t", "redis", "refused", 0.0, 1.0),
    )

    counters = tally.counters()
    assert counters["service_outages"] == {("redis",): 2}
    assert counters["service_away_seconds"] == {("redis",): 7.5}


def test_a_service_that_two_parts_wait_for_comes_back_twice():
    tally = counted(
        ServiceAway("t", "redis", "refused", 0.0, 1.0),
        ServiceBack("t", "redis", 2.0),
        ServiceBack("t", "redis", 1.0),
    )

    assert tally.counters()["service_away_seconds"] == {("redis",): 3.0}


def test_waves_messages_and_troubles_are_counted():
    letter = DeadLetter(
        spout="in", content=None, error="no", failed_in="bolt", first_failed=0.0, last_failed=0.0
    )
    tally = counted(
        WaveRetried("t", 1, WorkerLostError("gone"), 0.1),
        WaveFinished("t", WaveProgress("t", 0.0, 1, wave_s=2.0, busy_s=3.5)),
        TreesDecided("t", "in", acked=4),
        TreesDecided("t", "in", failed=2, timed_out=1),
        MessageDeadLettered("t", letter),
        ErrorReported("t", "bolt", 0, "no", "", count=3),
        SpoutPaused("t", "in", "down", 1.0),
        CommandObeyed("t", "kill", "me@here", "done", ""),
    )

    assert tally.counters() == {
        "wave_retries": {("WorkerLostError",): 1},
        "waves": {(): 1},
        "wave_busy_seconds": {(): 3.5},
        "messages_acked": {("in",): 4},
        "messages_failed": {("in",): 2},
        "messages_timed_out": {("in",): 1},
        "messages_dead_lettered": {("in",): 1},
        "errors": {("bolt",): 3},
        "spout_pauses": {("in",): 1},
        "commands": {("kill", "done"): 1},
    }
    assert tally.histograms()["wave_seconds"].sum == 2.0


def test_a_bucket_counts_what_is_not_above_its_bound():
    histogram = Histogram()
    for seconds in (0.005, 0.0051, 1.0, 1000.0, -3.0):
        histogram.observe(seconds)

    buckets = dict(histogram.buckets)
    assert buckets["0.005"] == 2
    assert buckets["0.01"] == 3
    assert (buckets["0.5"], buckets["1.0"]) == (3, 4)
    assert (buckets["300.0"], buckets["+Inf"]) == (4, 5)
    assert histogram.sum == pytest.approx(1001.0101)


def test_what_is_asked_for_does_not_change_afterwards():
    tally = counted(BatchEmitted("t", attempt(1)))
    before = tally.counters()

    tally(BatchEmitted("t", attempt(2)))

    assert before["batch_attempts"] == {(): 1}


def test_kinds_are_those_of_the_tree_of_errors():
    assert kind_of(SystemExit()) == "other"
    assert kind_of(WorkerLostError("x")) == "WorkerLostError"
