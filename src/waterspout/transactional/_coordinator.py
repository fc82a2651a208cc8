"""The transaction coordinator: which batch to emit, commit, cancel or replay, and when.

A state machine without I/O. It is told what happened and what time it is, and answers with
actions for its shell to carry out in order. It decides:

- batches are emitted in txid order within the window [current, current + max_batches - 1];
- only `current` commits, and only once it is processed;
- a failure of batch k fails every later batch in flight; all are emitted again, in order,
  each under a new attempt id; earlier ones are untouched;
- a failed commit replays the processing too;
- a batch that takes too long has crashed: `late` says so, and whoever asks reports it;
- news of an attempt that is not the newest of its batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from waterspout._backoff import Backoff
from waterspout._config import Config
from waterspout.errors import (
    BatchTimeoutError,
    DataLossError,
    DeadLettersFullError,
    FailedException,
    MalformedRowError,
    OutageError,
    TooManyBadRowsError,
)
from waterspout.transactional._attempt import TransactionAttempt

__all__ = [
    "Action",
    "BatchPhase",
    "BeginCommit",
    "Cancel",
    "Coordinator",
    "CoordinatorPolicy",
    "Emit",
    "Mark",
    "Stop",
]


class BatchPhase(Enum):
    """How far a batch in flight has come."""

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"


@dataclass(frozen=True, slots=True)
class _OfAttempt:
    attempt: TransactionAttempt


class Emit(_OfAttempt):
    """Store the attempt with its metadata, then start its processing phase."""


class BeginCommit(_OfAttempt):
    """Record the attempt as begun, then start its commit phase."""


class Mark(_OfAttempt):
    """Mark the batch as committed; then tell states and spouts, and clean up."""


class Cancel(_OfAttempt):
    """Cancel the attempt's work; report `ended` when none of it runs any more."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run with this error; nothing is lost, the same command goes on from here."""

    error: BaseException


Action = Emit | BeginCommit | Mark | Cancel | Stop

_FINAL = (DataLossError, DeadLettersFullError, MalformedRowError, TooManyBadRowsError)
_BACKOFF = Backoff(0.1)


@dataclass(frozen=True, slots=True)
class CoordinatorPolicy:
    """The numbers that the coordinator goes by; times in seconds."""

    max_batches: int = 1
    emit_interval_s: float = 0.0
    batch_timeout_s: float = 600.0
    max_retries: int = 3
    backoff: Backoff = _BACKOFF
    cancel_wait_s: float = 5.0

    @classmethod
    def of(cls, config: Config) -> CoordinatorPolicy:
        """Return the policy that a run's options ask for."""
        return cls(
            max_batches=config.max_batches,
            emit_interval_s=config.batch_emit_interval_millis / 1000,
            batch_timeout_s=config.batch_timeout_secs,
            max_retries=config.max_retries,
            backoff=config.retry_backoff,
            cancel_wait_s=config.cancel_wait_secs,
        )


@dataclass(slots=True)
class _InFlight:
    attempt: TransactionAttempt
    phase: BatchPhase
    since: float


class Coordinator:
    """Decide over the batches of one topology. Not thread-safe: one shell drives it."""

    def __init__(
        self, policy: CoordinatorPolicy, *, current: int = 1, attempts: Mapping[int, int] = {}
    ) -> None:
        self._policy = policy
        self._current = current
        self._attempts = dict(attempts)
        self._in_flight: dict[int, _InFlight] = {}
        self._draining: dict[TransactionAttempt, float] = {}
        self._next_emit_at = float("-inf")
        self._failures = 0
        self._crashes = 0
        self._stopped = False

    @property
    def current(self) -> int:
        """The next txid to commit."""
        return self._current

    @property
    def max_batches(self) -> int:
        """How many batches may be in flight at once."""
        return self._policy.max_batches

    def set_max_batches(self, n: int) -> None:
        """Let that many be in flight from now on; those that are, stay so."""
        self._policy = replace(self._policy, max_batches=n)

    @property
    def in_flight(self) -> dict[int, tuple[TransactionAttempt, BatchPhase]]:
        """The batches being processed or committed, by txid."""
        return {txid: (b.attempt, b.phase) for txid, b in sorted(self._in_flight.items())}

    @property
    def next_emit_at(self) -> float:
        """The time before which no batch is emitted: a pause after a failure, or the interval."""
        return self._next_emit_at

    @property
    def owes_replay(self) -> bool:
        """Whether a batch that was emitted has neither committed nor is in flight."""
        return any(t >= self._current and t not in self._in_flight for t in self._attempts)

    def poll(
        self, now: float, ready: Callable[[int], bool], *, active: bool = True
    ) -> list[Action]:
        """Return what is due now; `ready(txid)` says whether there is data for a new batch."""
        actions = self._commit_current(now)
        if active and not self._stopped and self._may_emit(now):
            actions += self._emit_window(now, ready)
        return actions

    def late(self, now: float) -> tuple[TransactionAttempt, BatchTimeoutError] | None:
        """Return the first attempt whose time is over, and the error that it is `failed` with."""
        limit = self._policy.batch_timeout_s
        for batch in sorted(self._in_flight.values(), key=lambda b: b.attempt):
            if batch.phase is not BatchPhase.PROCESSED and now - batch.since > limit:
                return batch.attempt, BatchTimeoutError(
                    f"batch {batch.attempt} was still {batch.phase.value} after {limit:g} s, which "
                    "is all the time that it has. If it needs more, raise batch_timeout_secs; or "
                    "put less into a batch (max_files of FileSpout, spout_max_batch_size)."
                )
        return None

    def processed(self, attempt: TransactionAttempt, now: float) -> list[Action]:
        """Take note that an attempt's processing phase succeeded."""
        batch = self._newest(attempt)
        if batch is None or batch.phase is not BatchPhase.PROCESSING:
            return []
        batch.phase, batch.since = BatchPhase.PROCESSED, now
        return self._commit_current(now)

    def committed(self, attempt: TransactionAttempt, now: float) -> list[Action]:
        """Take note that all writes of an attempt's commit phase succeeded."""
        batch = self._newest(attempt)
        if batch is None or batch.phase is not BatchPhase.COMMITTING:
            return []
        del self._in_flight[attempt.txid]
        self._attempts.pop(attempt.txid, None)
        self._current += 1
        self._failures = self._crashes = 0
        return [Mark(attempt), *self._commit_current(now)]

    def failed(
        self,
        attempt: TransactionAttempt,
        error: BaseException,
        now: float,
        *,
        final: bool = False,
    ) -> list[Action]:
        """Take note that an attempt failed: it and every later batch start over.

        `FailedException` is replayed for ever, and so is an `OutageError` until it is `final`:
        whoever drives this has waited long enough. Anything else is a crash, which stops the run
        after `max_retries` of them without a commit in between, or at once where another
        attempt would fail in the same way.
        """
        if self._newest(attempt) is None or self._stopped:
            return []
        if not isinstance(error, FailedException | OutageError):
            self._crashes += 1
        final = final or isinstance(error, _FINAL)
        if final or self._crashes > self._policy.max_retries:
            return [*self.stop(now), Stop(error)]
        self._failures += 1
        pause_s = self._policy.backoff.pause_s(self._failures)
        self._next_emit_at = max(self._next_emit_at, now + pause_s)
        return self._cancel_from(attempt.txid, now)

    def hold(self, until: float) -> None:
        """Emit nothing before that time."""
        self._next_emit_at = max(self._next_emit_at, until)

    def ended(self, attempt: TransactionAttempt) -> None:
        """Take note that nothing of a cancelled attempt runs any more."""
        self._draining.pop(attempt, None)

    def stop(self, now: float) -> list[Action]:
        """Cancel all batches in flight and emit no more."""
        self._stopped = True
        return self._cancel_from(self._current, now)

    def _newest(self, attempt: TransactionAttempt) -> _InFlight | None:
        batch = self._in_flight.get(attempt.txid)
        return batch if batch is not None and batch.attempt == attempt else None

    def _commit_current(self, now: float) -> list[Action]:
        batch = self._in_flight.get(self._current)
        if batch is None or batch.phase is not BatchPhase.PROCESSED or self._stopped:
            return []
        batch.phase, batch.since = BatchPhase.COMMITTING, now
        return [BeginCommit(batch.attempt)]

    def _may_emit(self, now: float) -> bool:
        # An attempt that is being cancelled holds slots and may still write (its writes are
        # refused); wait for it, but not for ever.
        self._draining = {a: until for a, until in self._draining.items() if until > now}
        return not self._draining and now >= self._next_emit_at

    def _emit_window(self, now: float, ready: Callable[[int], bool]) -> list[Action]:
        actions: list[Action] = []
        for txid in range(self._current, self._current + self._policy.max_batches):
            if txid in self._in_flight:
                continue
            # A batch that was emitted before is always emitted again, even if its source has
            # nothing now: its earlier attempt may have written and must be resolved.
            if txid not in self._attempts and not ready(txid):
                break
            attempt = TransactionAttempt(txid, self._attempts.get(txid, -1) + 1)
            self._attempts[txid] = attempt.attempt_id
            self._in_flight[txid] = _InFlight(attempt, BatchPhase.PROCESSING, now)
            actions.append(Emit(attempt))
            if self._policy.emit_interval_s > 0:
                self._next_emit_at = now + self._policy.emit_interval_s
                break
        return actions

    def _cancel_from(self, txid: int, now: float) -> list[Action]:
        actions: list[Action] = []
        for later in sorted(t for t in self._in_flight if t >= txid):
            attempt = self._in_flight.pop(later).attempt
            self._draining[attempt] = now + self._policy.cancel_wait_s
            actions.append(Cancel(attempt))
        return actions
