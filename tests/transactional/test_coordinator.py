"""The coordinator, one rule at a time: events and a clock in, actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waterspout._backoff import Backoff
from waterspout.errors import FailedException
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._coordinator import (
    BatchPhase,
    BeginCommit,
    Cancel,
    Coordinator,
    CoordinatorPolicy,
    Emit,
    Mark,
    Stop,
)

# No pauses unless a test asks for them: what is cancelled has ended, what failed may go on.
POLICY = CoordinatorPolicy(max_batches=3, backoff=Backoff(0.0), cancel_wait_s=0.0)


def a(txid: int, attempt: int = 0) -> TransactionAttempt:
    return TransactionAttempt(txid, attempt)


def always(txid: int) -> bool:
    return True


def never(txid: int) -> bool:
    return False


def new(current: int = 1, attempts: dict[int, int] | None = None, **policy) -> Coordinator:
    return Coordinator(replace(POLICY, **policy), current=current, attempts=attempts or {})


def started(**policy) -> Coordinator:
    """A coordinator with its whole window in its first processing phase, at time 0."""
    coordinator = new(**policy)
    coordinator.poll(0.0, always)
    return coordinator


def run_one(coordinator: Coordinator, attempt: TransactionAttempt, now: float = 0.0) -> None:
    """Process and commit one attempt that is in flight and at the head."""
    coordinator.processed(attempt, now)
    assert Mark(attempt) in coordinator.committed(attempt, now)


def view(coordinator: Coordinator):
    """All that can be seen of a coordinator from outside."""
    return coordinator.current, coordinator.in_flight, coordinator.owes_replay


@pytest.mark.parametrize("current", [1, 7])
@pytest.mark.parametrize("max_batches", [1, 2, 5])
def test_the_window_is_current_to_current_plus_max_minus_one(current, max_batches):
    coordinator = new(current=current, max_batches=max_batches)

    actions = coordinator.poll(0.0, always)

    assert actions == [Emit(a(t)) for t in range(current, current + max_batches)]
    assert coordinator.poll(1.0, always) == []


def test_a_processed_later_batch_does_not_open_the_window():
    coordinator = started(max_batches=2)

    coordinator.processed(a(2), 1.0)

    assert coordinator.poll(1.0, always) == []


def test_a_commit_opens_the_window_by_one():
    coordinator = started(max_batches=2)
    run_one(coordinator, a(1))

    assert coordinator.poll(1.0, always) == [Emit(a(3))]


def test_emission_stops_at_the_first_batch_that_has_no_data():
    coordinator = new(max_batches=4)
    asked = []

    actions = coordinator.poll(0.0, lambda txid: asked.append(txid) or txid in (1, 2, 4))

    assert actions == [Emit(a(1)), Emit(a(2))]
    assert asked == [1, 2, 3]


def test_a_batch_that_is_in_flight_is_not_asked_for_data():
    coordinator = started(max_batches=2)
    asked = []

    coordinator.poll(0.0, lambda txid: bool(asked.append(txid)))

    assert asked == []


def test_nothing_is_emitted_while_inactive_and_the_window_is_filled_after():
    coordinator = new()

    assert coordinator.poll(0.0, always, active=False) == []
    assert coordinator.poll(0.0, always) == [Emit(a(1)), Emit(a(2)), Emit(a(3))]


def test_batches_in_flight_commit_while_inactive():
    coordinator = started(max_batches=1)

    assert coordinator.processed(a(1), 1.0) == [BeginCommit(a(1))]
    assert coordinator.committed(a(1), 2.0) == [Mark(a(1))]
    assert coordinator.poll(3.0, always, active=False) == []
    assert coordinator.current == 2


def test_a_failed_batch_is_not_replayed_while_inactive_but_is_owed():
    coordinator = started(max_batches=1)
    coordinator.failed(a(1), FailedException("x"), 1.0)

    assert coordinator.poll(9.0, always, active=False) == []
    assert coordinator.owes_replay
    assert coordinator.poll(9.0, never) == [Emit(a(1, 1))]
    assert not coordinator.owes_replay


def test_only_the_current_batch_commits():
    coordinator = started()

    assert coordinator.processed(a(3), 1.0) == []
    assert coordinator.processed(a(2), 1.0) == []
    assert coordinator.poll(2.0, always) == []
    assert coordinator.processed(a(1), 3.0) == [BeginCommit(a(1))]


def test_the_next_processed_batch_begins_its_commit_with_the_mark_of_the_one_before():
    coordinator = started()
    for txid in (3, 2, 1):
        coordinator.processed(a(txid), 1.0)

    assert coordinator.committed(a(1), 2.0) == [Mark(a(1)), BeginCommit(a(2))]
    assert coordinator.committed(a(2), 3.0) == [Mark(a(2)), BeginCommit(a(3))]
    assert coordinator.committed(a(3), 4.0) == [Mark(a(3))]
    assert coordinator.current == 4


def test_at_most_one_batch_is_committing():
    coordinator = started()
    for txid in (1, 2, 3):
        coordinator.processed(a(txid), 1.0)

    phases = [phase for _, phase in coordinator.in_flight.values()]

    assert phases == [BatchPhase.COMMITTING, BatchPhase.PROCESSED, BatchPhase.PROCESSED]


@pytest.mark.parametrize("phase", ["processing", "processed"])
def test_a_commit_that_was_not_begun_is_not_believed(phase):
    coordinator = started()
    coordinator.processed(a(2), 1.0)
    attempt = a(1) if phase == "processing" else a(2)
    before = view(coordinator)

    assert coordinator.committed(attempt, 2.0) == []
    assert view(coordinator) == before


def test_a_phase_that_is_reported_twice_counts_once():
    coordinator = started(max_batches=2)

    assert coordinator.processed(a(1), 1.0) == [BeginCommit(a(1))]
    assert coordinator.processed(a(1), 1.0) == []
    assert coordinator.committed(a(1), 2.0) == [Mark(a(1))]
    assert coordinator.committed(a(1), 2.0) == []
    assert coordinator.current == 2


def test_a_failure_fails_every_later_batch_and_leaves_the_earlier_ones_alone():
    coordinator = started(max_batches=4)
    coordinator.processed(a(1), 1.0)
    coordinator.processed(a(3), 1.0)

    actions = coordinator.failed(a(2), FailedException("x"), 2.0)

    assert actions == [Cancel(a(2)), Cancel(a(3)), Cancel(a(4))]
    assert coordinator.in_flight == {1: (a(1), BatchPhase.COMMITTING)}


def test_failed_batches_are_emitted_again_in_order_each_under_its_next_attempt():
    coordinator = started()
    coordinator.failed(a(2), FailedException("x"), 1.0)
    coordinator.poll(1.0, always)
    coordinator.failed(a(1), FailedException("x"), 2.0)

    actions = coordinator.poll(2.0, always)

    assert actions == [Emit(a(1, 1)), Emit(a(2, 2)), Emit(a(3, 2))]


def test_a_failed_commit_replays_the_processing_too():
    coordinator = started(max_batches=2)
    coordinator.processed(a(1), 1.0)

    assert coordinator.failed(a(1), FailedException("x"), 2.0) == [Cancel(a(1)), Cancel(a(2))]
    assert coordinator.poll(3.0, always) == [Emit(a(1, 1)), Emit(a(2, 1))]
    assert coordinator.in_flight[1] == (a(1, 1), BatchPhase.PROCESSING)
    assert coordinator.processed(a(1, 1), 4.0) == [BeginCommit(a(1, 1))]


def test_a_later_batch_that_was_processed_is_processed_again_after_a_failure_before_it():
    coordinator = started(max_batches=2)
    coordinator.processed(a(2), 1.0)
    coordinator.failed(a(1), FailedException("x"), 2.0)
    coordinator.poll(2.0, always)
    run_one(coordinator, a(1, 1), 3.0)

    assert coordinator.in_flight[2] == (a(2, 1), BatchPhase.PROCESSING)


def test_a_batch_that_was_emitted_is_emitted_again_even_if_nothing_is_ready():
    coordinator = started(max_batches=2)
    coordinator.failed(a(1), FailedException("x"), 1.0)

    assert coordinator.poll(2.0, never) == [Emit(a(1, 1)), Emit(a(2, 1))]


def test_an_owed_batch_behind_one_that_is_not_ready_waits_for_it():
    # Cannot come about by failures; a ledger that says so is still emitted in order.
    coordinator = new(attempts={2: 0}, max_batches=2)

    assert coordinator.poll(0.0, never) == []
    assert coordinator.poll(0.0, always) == [Emit(a(1)), Emit(a(2, 1))]


@pytest.mark.parametrize("news", ["processed", "committed", "failed", "ended"])
@pytest.mark.parametrize("phase", ["owed", "processing", "processed", "committing"])
@pytest.mark.parametrize("txid", [1, 2])
def test_news_of_an_old_attempt_changes_nothing(news, phase, txid):
    coordinator = started(max_batches=2, max_retries=0)
    coordinator.failed(a(1), FailedException("x"), 1.0)
    if phase != "owed":
        coordinator.poll(2.0, always)
    if phase in ("processed", "committing"):
        coordinator.processed(a(2, 1), 3.0)
    if phase == "committing":
        coordinator.processed(a(1, 1), 3.0)
    before = view(coordinator)

    actions = tell(coordinator, news, a(txid), 4.0)

    assert actions == []
    assert view(coordinator) == before


def test_a_stale_failure_does_not_remove_the_newer_attempt():
    coordinator = started(max_batches=1)
    coordinator.failed(a(1), FailedException("x"), 1.0)
    coordinator.poll(2.0, always)

    coordinator.failed(a(1), FailedException("late"), 3.0)

    assert coordinator.in_flight == {1: (a(1, 1), BatchPhase.PROCESSING)}
    assert coordinator.poll(99.0, always) == []
    assert coordinator.processed(a(1, 1), 99.0) == [BeginCommit(a(1, 1))]


def test_a_stale_crash_is_not_counted_as_a_retry():
    coordinator = started(max_batches=1, max_retries=1)
    coordinator.failed(a(1), RuntimeError("1"), 1.0)
    coordinator.poll(2.0, always)

    for _ in range(9):
        assert coordinator.failed(a(1), RuntimeError("late"), 3.0) == []

    assert coordinator.failed(a(1, 1), FailedException("x"), 4.0) == [Cancel(a(1, 1))]


def test_a_stale_failure_does_not_lengthen_the_pause():
    coordinator = started(max_batches=1, backoff=Backoff(1.0))
    coordinator.failed(a(1), FailedException("x"), 0.0)

    coordinator.failed(a(1), FailedException("late"), 0.9)

    assert coordinator.poll(1.0, always) == [Emit(a(1, 1))]


@pytest.mark.parametrize("news", ["processed", "committed", "failed", "ended"])
def test_news_of_a_batch_that_has_committed_changes_nothing(news):
    coordinator = started(max_batches=2, max_retries=0)
    run_one(coordinator, a(1), 1.0)
    before = view(coordinator)

    actions = tell(coordinator, news, a(1), 2.0)

    assert actions == []
    assert view(coordinator) == before


@pytest.mark.parametrize("news", ["processed", "committed", "failed", "ended"])
@pytest.mark.parametrize("attempt", [a(2), a(9), a(1, 1)], ids=str)
def test_news_of_an_attempt_that_was_never_made_changes_nothing(news, attempt):
    coordinator = started(max_batches=1, max_retries=0)
    before = view(coordinator)

    actions = tell(coordinator, news, attempt, 1.0)

    assert actions == []
    assert view(coordinator) == before


def tell(coordinator: Coordinator, news: str, attempt: TransactionAttempt, now: float):
    if news == "failed":
        return coordinator.failed(attempt, RuntimeError("late"), now)
    if news == "ended":
        return coordinator.ended(attempt) or []
    return getattr(coordinator, news)(attempt, now)


def test_attempts_go_on_from_the_stored_ones():
    coordinator = new(current=5, attempts={5: 3, 6: 0}, max_batches=3)

    actions = coordinator.poll(0.0, always)

    assert actions == [Emit(a(5, 4)), Emit(a(6, 1)), Emit(a(7))]


@pytest.mark.parametrize("max_batches", [1, 2, 3])
def test_no_slot_of_the_window_forgets_its_attempts_at_a_restart(max_batches):
    # Storm clears the last slot of the window, and so all of it if only one is pending.
    attempts = dict.fromkeys(range(5, 5 + max_batches), 4)
    coordinator = new(current=5, attempts=attempts, max_batches=max_batches)

    actions = coordinator.poll(0.0, never)

    assert actions == [Emit(a(t, 5)) for t in range(5, 5 + max_batches)]


def test_batches_beyond_a_window_that_was_narrowed_keep_their_attempts():
    coordinator = new(current=5, attempts={5: 0, 6: 7, 7: 2}, max_batches=1)

    assert coordinator.poll(0.0, never) == [Emit(a(5, 1))]
    run_one(coordinator, a(5, 1))
    assert coordinator.poll(0.0, never) == [Emit(a(6, 8))]
    run_one(coordinator, a(6, 8))
    assert coordinator.poll(0.0, never) == [Emit(a(7, 3))]
    run_one(coordinator, a(7, 3))
    assert not coordinator.owes_replay
    assert coordinator.poll(0.0, never) == []


def test_a_coordinator_remembers_nothing_of_batches_that_have_committed():
    coordinator = started(max_batches=2)
    for txid in range(1, 500):
        coordinator.failed(a(txid), FailedException("x"), float(txid))
        coordinator.poll(float(txid), always)
        attempt, _ = coordinator.in_flight[txid]
        run_one(coordinator, attempt, float(txid))
        coordinator.poll(float(txid), always)

    sizes = [len(value) for value in vars(coordinator).values() if isinstance(value, dict)]

    assert max(sizes) == 2


def test_the_given_attempts_are_copied():
    attempts = {1: 3}
    coordinator = Coordinator(POLICY, attempts=attempts)

    coordinator.poll(0.0, always)

    assert attempts == {1: 3}


def test_at_most_one_batch_starts_per_interval():
    coordinator = new(emit_interval_s=0.5)

    assert coordinator.poll(10.0, always) == [Emit(a(1))]
    assert coordinator.poll(10.49, always) == []
    assert coordinator.poll(10.5, always) == [Emit(a(2))]
    assert coordinator.poll(10.9, always) == []
    assert coordinator.poll(30.0, always) == [Emit(a(3))]
    assert coordinator.poll(99.0, always) == []


def test_replays_are_throttled_too():
    coordinator = new(emit_interval_s=0.5)
    coordinator.poll(10.0, always)
    coordinator.poll(10.5, always)
    coordinator.failed(a(1), FailedException("x"), 10.6)

    assert coordinator.poll(10.99, always) == []
    assert coordinator.poll(11.0, always) == [Emit(a(1, 1))]
    assert coordinator.poll(11.4, always) == []
    assert coordinator.poll(11.5, always) == [Emit(a(2, 1))]


def test_a_look_at_an_empty_source_does_not_start_the_interval():
    coordinator = new(emit_interval_s=0.5)

    assert coordinator.poll(10.0, never) == []
    assert coordinator.poll(10.1, always) == [Emit(a(1))]


def pauses(coordinator: Coordinator, failures: int, now: float) -> list[float]:
    """Fail batch `current` again and again; return how long each replay had to wait."""
    found = []
    for _ in range(failures):
        attempt, _ = coordinator.in_flight[coordinator.current]
        coordinator.failed(attempt, FailedException("x"), now)
        milliseconds = 0
        while not coordinator.poll(now + milliseconds / 1000, always):
            milliseconds += 50
            assert milliseconds < 60_000
        found.append(milliseconds / 1000)
        now += 1000.0
    return found


def test_the_pause_before_a_replay_doubles_up_to_its_cap():
    coordinator = started(max_batches=1, backoff=Backoff(0.1, 1.0))

    assert pauses(coordinator, 7, now=1000.0) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_a_commit_starts_the_pauses_over():
    coordinator = started(max_batches=1, backoff=Backoff(0.1, 10.0))
    assert pauses(coordinator, 3, now=1000.0) == [0.1, 0.2, 0.4]
    run_one(coordinator, a(1, 3), 5000.0)
    coordinator.poll(5000.0, always)

    assert pauses(coordinator, 2, now=6000.0) == [0.1, 0.2]


def test_a_replay_that_is_only_processed_does_not_start_the_pauses_over():
    coordinator = started(max_batches=1, backoff=Backoff(0.1, 10.0))
    pauses(coordinator, 2, now=1000.0)
    coordinator.processed(a(1, 2), 4000.0)

    assert pauses(coordinator, 1, now=5000.0) == [0.4]


def test_the_pause_stays_at_its_cap_after_any_number_of_failures():
    coordinator = started(max_batches=1, backoff=Backoff(0.1, 10.0))
    for attempt in range(5000):
        coordinator.failed(a(1, attempt), FailedException("x"), 100.0 * attempt)
        assert coordinator.poll(100.0 * attempt + 11, always) == [Emit(a(1, attempt + 1))]

    coordinator.failed(a(1, 5000), FailedException("x"), 500_000.0)

    assert coordinator.poll(500_009.9, always) == []
    assert coordinator.poll(500_010.0, always) == [Emit(a(1, 5001))]


def test_an_earlier_batch_commits_during_the_pause():
    coordinator = started(max_batches=2, backoff=Backoff(5.0))
    coordinator.failed(a(2), FailedException("x"), 0.0)

    assert coordinator.processed(a(1), 1.0) == [BeginCommit(a(1))]
    assert coordinator.committed(a(1), 2.0) == [Mark(a(1))]
    assert coordinator.poll(4.9, always) == []
    assert coordinator.poll(5.0, always) == [Emit(a(2, 1)), Emit(a(3))]


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_the_run_stops_with_the_crash_that_exceeds_max_retries_after_cancelling_all(max_retries):
    coordinator = started(max_batches=2, max_retries=max_retries)
    for n in range(max_retries):
        actions = coordinator.failed(a(1, n), RuntimeError(n), 1.0)
        assert actions == [Cancel(a(1, n)), Cancel(a(2, n))]
        assert coordinator.poll(1.0, always) == [Emit(a(1, n + 1)), Emit(a(2, n + 1))]
    last = RuntimeError("the last straw")

    actions = coordinator.failed(a(1, max_retries), last, 2.0)

    assert actions == [Cancel(a(1, max_retries)), Cancel(a(2, max_retries)), Stop(last)]
    assert coordinator.poll(99.0, always) == []


def test_a_crash_of_a_later_batch_that_stops_the_run_cancels_the_earlier_ones_too():
    coordinator = started(max_batches=2, max_retries=0)
    coordinator.processed(a(1), 1.0)
    last = RuntimeError("x")

    actions = coordinator.failed(a(2), last, 2.0)

    assert actions == [Cancel(a(1)), Cancel(a(2)), Stop(last)]


def test_a_commit_starts_the_count_of_crashes_over():
    coordinator = started(max_batches=1, max_retries=1)
    for txid in range(1, 20):
        assert coordinator.failed(a(txid), RuntimeError("x"), 1.0) == [Cancel(a(txid))]
        coordinator.poll(1.0, always)
        run_one(coordinator, a(txid, 1), 2.0)
        coordinator.poll(2.0, always)

    assert coordinator.current == 20


def test_a_failed_exception_is_replayed_for_ever():
    coordinator = started(max_batches=1, max_retries=0)

    for attempt in range(200):
        assert coordinator.failed(a(1, attempt), FailedException("x"), 1.0) == [
            Cancel(a(1, attempt))
        ]
        assert coordinator.poll(1.0, always) == [Emit(a(1, attempt + 1))]


def test_failed_exceptions_between_crashes_do_not_start_their_count_over():
    coordinator = started(max_batches=1, max_retries=1)
    coordinator.failed(a(1), RuntimeError("1"), 1.0)
    coordinator.poll(1.0, always)
    coordinator.failed(a(1, 1), FailedException("x"), 1.0)
    coordinator.poll(1.0, always)
    last = RuntimeError("2")

    assert coordinator.failed(a(1, 2), last, 1.0) == [Cancel(a(1, 2)), Stop(last)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OSError("disk")])
def test_whatever_is_not_a_failed_exception_is_a_crash(error):
    coordinator = started(max_batches=1, max_retries=0)

    assert coordinator.failed(a(1), error, 1.0) == [Cancel(a(1)), Stop(error)]


def test_a_batch_that_is_processed_for_too_long_is_failed_with_the_later_ones():
    coordinator = started(max_batches=3, batch_timeout_s=60.0, backoff=Backoff(1.0))
    coordinator.processed(a(1), 30.0)

    assert coordinator.late(60.0) is None
    attempt, error = coordinator.late(60.1)
    assert coordinator.failed(attempt, error, 60.1) == [Cancel(a(2)), Cancel(a(3))]
    assert coordinator.in_flight == {1: (a(1), BatchPhase.COMMITTING)}


def test_a_commit_has_the_whole_time_for_itself():
    coordinator = started(max_batches=1, batch_timeout_s=60.0, backoff=Backoff(1.0))
    coordinator.processed(a(1), 50.0)

    assert coordinator.late(110.0) is None
    attempt, error = coordinator.late(110.1)
    assert attempt == a(1)
    assert "1:0 was still committing after 60 s" in str(error)
    assert "raise batch_timeout_secs" in str(error)


def test_a_processed_batch_that_waits_for_its_turn_does_not_time_out():
    coordinator = started(max_batches=2, batch_timeout_s=60.0)
    coordinator.processed(a(2), 1.0)
    coordinator.processed(a(1), 59.0)

    assert coordinator.late(100.0) is None
    assert coordinator.committed(a(1), 110.0) == [Mark(a(1)), BeginCommit(a(2))]
    # Its commit is timed from its own beginning.
    assert coordinator.late(170.0) is None


def test_a_time_out_is_a_crash_and_one_too_many_stops_the_run():
    coordinator = started(max_batches=1, batch_timeout_s=1.0, max_retries=2)

    for attempt in range(2):
        now = 10.0 * (attempt + 1)
        late, error = coordinator.late(now)
        assert coordinator.failed(late, error, now) == [Cancel(a(1, attempt))]
        assert coordinator.poll(now, always) == [Emit(a(1, attempt + 1))]
    late, error = coordinator.late(30.0)

    assert coordinator.failed(late, error, 30.0) == [Cancel(a(1, 2)), Stop(error)]


def test_nothing_is_emitted_before_all_cancelled_work_has_ended():
    coordinator = started(max_batches=2, cancel_wait_s=5.0)
    coordinator.failed(a(1), FailedException("x"), 1.0)

    assert coordinator.poll(1.0, always) == []
    coordinator.ended(a(2))
    assert coordinator.poll(2.0, always) == []
    coordinator.ended(a(1))
    assert coordinator.poll(2.0, always) == [Emit(a(1, 1)), Emit(a(2, 1))]


def test_cancelled_work_is_waited_for_only_until_its_deadline():
    coordinator = started(max_batches=1, cancel_wait_s=5.0)
    coordinator.failed(a(1), FailedException("x"), 1.0)

    assert coordinator.poll(5.9, always) == []
    assert coordinator.poll(6.0, always) == [Emit(a(1, 1))]


def test_both_the_pause_and_the_draining_must_be_over():
    coordinator = started(max_batches=1, cancel_wait_s=5.0, backoff=Backoff(2.0))
    coordinator.failed(a(1), FailedException("x"), 0.0)

    coordinator.ended(a(1))

    assert coordinator.poll(1.9, always) == []
    assert coordinator.poll(2.0, always) == [Emit(a(1, 1))]


def test_draining_holds_up_new_batches_but_no_commit():
    coordinator = started(max_batches=2, cancel_wait_s=5.0)
    coordinator.failed(a(2), FailedException("x"), 1.0)
    run_one(coordinator, a(1), 2.0)

    assert coordinator.current == 2
    assert coordinator.poll(3.0, always) == []
    coordinator.ended(a(2))
    assert coordinator.poll(3.0, always) == [Emit(a(2, 1)), Emit(a(3))]


def test_the_end_of_work_that_was_not_cancelled_changes_nothing():
    coordinator = started(max_batches=1, cancel_wait_s=5.0)

    coordinator.ended(a(1))

    assert coordinator.in_flight == {1: (a(1), BatchPhase.PROCESSING)}


def test_stop_cancels_all_in_flight_and_nothing_is_emitted_or_committed_after():
    coordinator = started(max_batches=3)
    coordinator.processed(a(1), 1.0)
    coordinator.processed(a(2), 1.0)

    assert coordinator.stop(2.0) == [Cancel(a(1)), Cancel(a(2)), Cancel(a(3))]
    assert coordinator.committed(a(1), 3.0) == []
    assert coordinator.processed(a(3), 3.0) == []
    assert coordinator.failed(a(3), RuntimeError("x"), 3.0) == []
    assert coordinator.poll(99.0, always) == []
    assert coordinator.current == 1


def test_stop_twice_cancels_once():
    coordinator = started(max_batches=1)

    assert coordinator.stop(1.0) == [Cancel(a(1))]
    assert coordinator.stop(1.0) == []


def test_attempts_are_ordered_and_named_by_both_numbers():
    assert sorted([a(2), a(1, 1), a(1)]) == [a(1), a(1, 1), a(2)]
    assert str(a(12, 3)) == "12:3"
    assert (a(12, 3).txid, a(12, 3).attempt_id) == (12, 3)
