"""A driver in miniature: coordinator and ledger, driven as `coordination/loop.py` drives them.

No threads, no store, no engine: the caller says which phase ends next and how, when time
passes, and at which save the driver dies. Every change of what is stored is checked as it
happens, against what was stored before and against the history, which no crash erases.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from waterspout.errors import FailedException
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._coordinator import (
    Action,
    BatchPhase,
    BeginCommit,
    Cancel,
    Coordinator,
    CoordinatorPolicy,
    Emit,
    Mark,
    Stop,
)
from waterspout.transactional._ledger import Ledger

SPOUT = "s"


class DriverDied(Exception):
    """The process is gone; what was saved is all that is left."""


@dataclass
class History:
    """What really happened, over all lives of the driver."""

    started: dict[int, list[int]] = field(default_factory=dict)
    begun: dict[int, list[int]] = field(default_factory=dict)
    committed: list[int] = field(default_factory=list)  # the attempt, at index txid - 1
    position: int = 0  # the end of what has committed

    @property
    def resolved(self) -> dict[int, int]:
        done = enumerate(self.committed, start=1)
        return {txid: attempt for txid, attempt in done if len(self.begun[txid]) > 1}


class Shell:
    """One topology, from its first driver to its last."""

    def __init__(
        self,
        policy: CoordinatorPolicy,
        *,
        supply: int = 0,
        opaque: bool = True,
        keep_resolved: bool = True,
    ) -> None:
        self.policy = policy
        self.supply = supply
        self.opaque = opaque
        self.keep_resolved = keep_resolved
        self.now = 0.0
        self.active = True
        self.history = History()
        self.saved = Ledger("t")
        self.dead: set[TransactionAttempt] = set()
        self.fuse: tuple[int, bool] | None = None
        self.plan_error: BaseException | None = None
        self.saves = 0
        self._boot()

    def _boot(self) -> None:
        # Through JSON, as a real restart goes.
        self.ledger = self.saved = Ledger.from_json(self.saved.to_json())
        attempts = {txid: batch.attempt for txid, batch in self.ledger.emitted.items()}
        self.coordinator = Coordinator(self.policy, current=self.ledger.current, attempts=attempts)
        self.processing: set[TransactionAttempt] = set()
        self.processed: set[TransactionAttempt] = set()
        self.committing: set[TransactionAttempt] = set()
        self.draining: set[TransactionAttempt] = set()

    def restart(self) -> None:
        """The driver dies between two actions, and its successor starts."""
        for attempt in self.processing | self.processed | self.committing | self.draining:
            self._bury(attempt)
        self.fuse = self.plan_error = None
        self._boot()

    def poll(self) -> None:
        self._live(self._poll)

    def report_processed(self, attempt: TransactionAttempt) -> None:
        self.processing.remove(attempt)
        self.processed.add(attempt)
        self._live(lambda: self._carry_out(self.coordinator.processed(attempt, self.now)))

    def report_committed(self, attempt: TransactionAttempt) -> None:
        self._live(lambda: self._carry_out(self.coordinator.committed(attempt, self.now)))

    def report_failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self._live(lambda: self._fail(attempt, error))

    def report_ended(self, attempt: TransactionAttempt) -> None:
        self.draining.remove(attempt)
        self._bury(attempt)
        self.coordinator.ended(attempt)

    def report_stale(self, attempts: Iterable[TransactionAttempt]) -> None:
        """Deliver all late news of attempts that are over; none of it may do anything."""
        before = repr(vars(self.coordinator))
        for attempt in attempts:
            assert self.coordinator.processed(attempt, self.now) == []
            assert self.coordinator.committed(attempt, self.now) == []
            assert self.coordinator.failed(attempt, FailedException("late"), self.now) == []
            assert self.coordinator.failed(attempt, RuntimeError("late"), self.now) == []
        assert repr(vars(self.coordinator)) == before

    def succeed(self, *, commit: bool = True) -> None:
        """Let what was cancelled end, pauses pass, and all that runs succeed, in order."""
        for attempt in sorted(self.draining):
            self.report_ended(attempt)
        self.now += 20.0
        self.poll()
        for attempt in sorted(self.processing):
            if attempt in self.processing:  # else the driver has died on the way
                self.report_processed(attempt)
        while commit and self.committing:
            (attempt,) = self.committing
            self.report_committed(attempt)
            assert attempt not in self.committing

    def heal(self) -> None:
        """Nothing fails any more: all that is ready or was emitted must commit within a bound."""
        self.fuse = self.plan_error = None
        self.active = True
        owed = max(self.supply, self.ledger.current + len(self.ledger.emitted) - 1)
        rounds = 2 * (owed - len(self.history.committed)) + 4
        for _ in range(rounds):
            self.succeed()
            self.check()
        assert len(self.history.committed) >= owed
        assert self.coordinator.in_flight == {}
        assert not self.coordinator.owes_replay
        assert self.saved.emitted == {}
        assert self.saved.begun == ()

    def _live(self, act) -> None:
        try:
            act()
        except DriverDied:
            self.restart()

    def _poll(self) -> None:
        emitted = True
        while emitted:
            late = self.coordinator.late(self.now)
            if late is not None:
                self._fail(*late)
            actions = self.coordinator.poll(self.now, self._ready, active=self.active)
            self._carry_out(actions)
            emitted = any(isinstance(action, Emit) for action in actions)

    def _ready(self, txid: int) -> bool:
        if txid > self.ledger.current and txid - 1 not in self.ledger.emitted:
            return False
        return txid <= self.supply

    def _fail(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self._carry_out(self.coordinator.failed(attempt, error, self.now))

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Emit(attempt) if self._is_in_flight(attempt):
                    self._emit(attempt)
                case BeginCommit(attempt) if self._is_in_flight(attempt):
                    self._begin_commit(attempt)
                case Mark(attempt):
                    self._save(self.ledger.commit(attempt, keep_resolved=self.keep_resolved))
                    self.committing.remove(attempt)
                    self._bury(attempt)
                case Cancel(attempt):
                    for phase in (self.processing, self.processed, self.committing):
                        phase.discard(attempt)
                    self.draining.add(attempt)
                case Stop(error):
                    raise DriverDied from error

    def _is_in_flight(self, attempt: TransactionAttempt) -> bool:
        return self.coordinator.in_flight.get(attempt.txid, (None,))[0] == attempt

    def _bury(self, attempt: TransactionAttempt) -> None:
        # One whose plan failed was never stored or started: its successor may have its number.
        if attempt.attempt_id in self.history.started.get(attempt.txid, ()):
            self.dead.add(attempt)

    def _emit(self, attempt: TransactionAttempt) -> None:
        if self.plan_error is not None:
            error, self.plan_error = self.plan_error, None
            self._fail(attempt, error)
            return
        self._save(self.ledger.emit(attempt, {SPOUT: self._plan(attempt)}))
        self.processing.add(attempt)

    def _plan(self, attempt: TransactionAttempt) -> list[int]:
        stored = self.ledger.emitted.get(attempt.txid)
        if stored is not None and not self.opaque:
            return stored.metadata[SPOUT]
        previous = self.ledger.metadata_before(attempt.txid)
        begin = 0 if previous is None else previous[SPOUT][1]
        return [begin, begin + 1 + (attempt.txid + attempt.attempt_id) % 3]

    def _begin_commit(self, attempt: TransactionAttempt) -> None:
        self._save(self.ledger.begin(attempt))
        assert attempt in self.processed, "what commits was processed by this very attempt"
        assert not self.committing, "one batch commits at a time"
        assert attempt.attempt_id == self.saved.begun[-1], "begun is stored before the first write"
        self.processed.remove(attempt)
        self.committing.add(attempt)

    def _save(self, ledger: Ledger) -> None:
        left, kept = self.fuse or (-1, False)
        if left == 0 and not kept:
            raise DriverDied
        self._witness(self.saved, ledger)
        self.saved = ledger
        self.saves += 1
        if left == 0:
            raise DriverDied
        self.fuse = None if self.fuse is None else (left - 1, kept)
        self.ledger = ledger

    def _witness(self, old: Ledger, new: Ledger) -> None:
        """Check one change of the stored ledger, and write it into the history."""
        history = self.history
        if new.current != old.current:
            assert new.current == old.current + 1 == len(history.committed) + 2
            assert history.begun[old.current][-1] == new.committed_attempt
            begin, end = new.committed_metadata[SPOUT]
            assert begin == history.position, "each batch goes on where the last one ended"
            history.position = end
            history.committed.append(new.committed_attempt)
            assert new.resolved == (history.resolved if self.keep_resolved else {})
        elif new.begun != old.begun:
            assert old.current == len(history.committed) + 1, "only the current batch begins"
            attempt = new.begun[-1]
            assert attempt == history.started[new.current][-1], "only its newest attempt begins"
            history.begun.setdefault(new.current, []).append(attempt)
            assert new.begun == tuple(history.begun[new.current])
        else:
            (txid,) = (t for t in new.emitted if new.emitted[t] != old.emitted.get(t))
            assert old.current <= txid < old.current + self.policy.max_batches
            attempts = history.started.setdefault(txid, [])
            assert all(earlier < new.emitted[txid].attempt for earlier in attempts)
            attempts.append(new.emitted[txid].attempt)

    def check(self) -> None:
        """Check what holds between any two events."""
        flying, current = self.coordinator.in_flight, self.coordinator.current
        assert current == self.ledger.current == len(self.history.committed) + 1
        assert self.ledger == self.saved
        assert sorted(flying) == [t for t in flying if 0 <= t - current < self.policy.max_batches]
        committing = {a for a, phase in flying.values() if phase is BatchPhase.COMMITTING}
        assert committing == self.committing
        assert all(attempt.txid == current for attempt in committing)
        assert {a for a, p in flying.values() if p is BatchPhase.PROCESSING} == self.processing
        assert {a for a, p in flying.values() if p is BatchPhase.PROCESSED} == self.processed
        for txid, (attempt, _) in flying.items():
            assert self.saved.emitted[txid].attempt == attempt.attempt_id
        assert Ledger.from_json(self.saved.to_json()) == self.saved

    def key(self) -> tuple[Any, ...]:
        """What the future depends on, when time passes in steps longer than any pause.

        Not how long a phase has run: the scope has one step that outlasts all phases.
        """
        inner, saved = vars(self.coordinator), self.saved
        batches = inner["_in_flight"].values()
        emitted = ((t, b.attempt, *b.metadata[SPOUT]) for t, b in saved.emitted.items())
        return (
            frozenset((b.attempt, b.phase) for b in batches),
            frozenset(a for a, until in inner["_draining"].items() if until > self.now),
            frozenset(inner["_attempts"].items()),
            (inner["_next_emit_at"] > self.now, inner["_crashes"], inner["_stopped"]),
            (saved.current, saved.committed_attempt, self.history.position, saved.begun),
            frozenset(emitted),
            frozenset(saved.resolved.items()),
            frozenset(self.draining),
        )

    @property
    def is_waiting(self) -> bool:
        """Whether something is held up that time alone would let go."""
        inner = vars(self.coordinator)
        deadlines = (inner["_next_emit_at"], *inner["_draining"].values())
        return any(until > self.now for until in deadlines)

    def fork(self) -> Shell:
        """Return an independent copy, cheaper than deepcopy's."""
        twin = copy.copy(self)
        twin.coordinator = copy.copy(self.coordinator)
        inner = vars(twin.coordinator)
        for name, value in inner.items():
            if isinstance(value, dict):
                inner[name] = dict(value)
        inner["_in_flight"] = {t: replace(b) for t, b in inner["_in_flight"].items()}
        history = self.history
        twin.history = History(
            {txid: list(attempts) for txid, attempts in history.started.items()},
            {txid: list(attempts) for txid, attempts in history.begun.items()},
            list(history.committed),
            history.position,
        )
        for name in ("processing", "processed", "committing", "draining", "dead"):
            setattr(twin, name, set(getattr(self, name)))
        return twin
