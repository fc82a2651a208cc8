"""The loop: carries out the coordinator's decisions.

    emit     plan the batch, store attempt and metadata, then start the processing
    commit   begin the attempt, then let the engine claim the states and write
    mark     mark the batch, then settle the heads, tell the spouts, clean up

The order of the steps of a commit is that of `commit_protocol.py`. One thread calls `step`;
engines report from any thread. The same loop runs on Spark and in simulation.
"""

from __future__ import annotations

import json
import logging
import queue
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waterspout import faults
from waterspout.config import Config
from waterspout.coordination.batch_clock import CLOCK, BatchClock
from waterspout.coordination.commit_protocol import (
    CommitProtocol,
    LedgerKeeper,
    verify_topology,
)
from waterspout.coordination.engine import (
    BatchEngine,
    CommitOrder,
    Committed,
    Ended,
    Event,
    Failed,
    Processed,
)
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import BuildError, FailedException, LeaseLostError, OutsideError
from waterspout.spouts.base import BatchPlanner, PlannedSpout, SpoutContext, SpoutKind
from waterspout.state.base import HeadedState
from waterspout.state.head import Writer
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.coordinator import (
    Action,
    BeginCommit,
    Cancel,
    Coordinator,
    CoordinatorPolicy,
    Emit,
    Mark,
    Stop,
)
from waterspout.transactional.ledger import Ledger

__all__ = ["BatchLoop", "BatchSetup", "LoopListener"]

log = logging.getLogger(__name__)

_SETTLE_AGAIN_S = 1.0


class LoopListener:
    """Hears what a loop does; every method may be left out. Called in the loop's thread."""

    def emitted(self, attempt: TransactionAttempt, replay: bool) -> None:
        """A processing phase starts."""

    def processed(self, event: Processed) -> None:
        """A processing phase is over."""

    def committing(self, attempt: TransactionAttempt) -> None:
        """A commit phase starts."""

    def committed(self, event: Committed) -> None:
        """A batch was marked."""

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """An attempt failed and will be replayed."""


@dataclass(frozen=True, slots=True)
class BatchSetup:
    """What a loop works on; a `clock` where windows by time need one."""

    topology: str
    fingerprint: Mapping[str, Any]
    spouts: Mapping[str, PlannedSpout]
    states: Mapping[str, HeadedState]
    store: CoordinationStore
    engine: BatchEngine
    config: Config
    folder: Path | None = None
    clock: BatchClock | None = None


class BatchLoop:
    """Drive one topology's batches. `start` takes the lease; `close` gives it up."""

    def __init__(
        self, setup: BatchSetup, clock: Callable[[], float], listener: LoopListener | None = None
    ) -> None:
        self._setup = setup
        self._clock = clock
        self._listener = listener or LoopListener()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._planners: dict[str, BatchPlanner] = {}
        self._ready_failures = 0
        self._ask_again_at: float | None = None
        """When to ask a spout again that could not be asked; None: all could."""
        self._found_data: set[int] = set()
        """The batches for which a spout has data, as far as that was asked."""
        self._commit_facts: dict[TransactionAttempt, Committed] = {}
        self._abandoned: BaseException | None = None
        self._settle_at: float | None = None
        self.error: BaseException | None = None
        self.is_idle = False
        self.active = True
        self._told_active = True
        setup.engine.report = self._events.put

    def start(self) -> None:
        """Check everything, take the lease, and go on from the ledger."""
        setup = self._setup
        verify_topology(setup.states, setup.store.peek(), setup.topology, setup.fingerprint)
        epoch = setup.store.acquire(setup.fingerprint)
        try:
            ledger = setup.store.load()
            verify_topology(setup.states, ledger, setup.topology, setup.fingerprint)
            self._keeper = LedgerKeeper(ledger, setup.store.save)
            self._commits = CommitProtocol(setup.states, self._keeper)
            self.writer = Writer(setup.topology, epoch, ledger.history, uuid.uuid4().hex)
            self._commits.enroll(self.writer)
            setup.engine.enroll(self.writer)
            self._commits.recover()
            self._open_spouts()
        except BaseException:
            setup.store.release()
            raise
        attempts = {txid: batch.attempt for txid, batch in ledger.emitted.items()}
        self._coordinator = Coordinator(
            _policy(setup.config), current=ledger.current, attempts=attempts
        )

    @property
    def ledger(self) -> Ledger:
        """The ledger as last saved."""
        return self._keeper.ledger

    @property
    def coordinator(self) -> Coordinator:
        """The state machine, to look at."""
        return self._coordinator

    def step(self, wait_s: float = 0.0) -> None:
        """Handle what was reported (waiting at most `wait_s` for it), then do what is due.

        Whatever ends the run is raised and kept in `error`; nothing is lost by it.
        """
        try:
            self._take_events(wait_s)
            if self._abandoned is not None:
                raise self._abandoned
            self._tell_active()
            for _ in range(self._setup.config.max_batches):
                if not self._do_what_is_due():
                    break
            self._settle_if_due()
            self.is_idle = self._looks_idle()
        except BaseException as error:
            self.error = error
            raise

    def abandon(self, error: BaseException) -> None:
        """End the run with this error at the next step. Callable from any thread."""
        self._abandoned = error
        self.wake()

    def wake(self) -> None:
        """Make a waiting `step` return."""
        self._events.put(None)

    def close(self) -> None:
        """Cancel what runs, close the spouts, give up the lease."""
        if hasattr(self, "_coordinator"):
            for action in self._coordinator.stop(self._clock()):
                if isinstance(action, Cancel):
                    self._setup.engine.cancel(action.attempt)
        for planner in self._planners.values():
            planner.close()
        self._setup.store.release()

    # --- events and actions ------------------------------------------------------------------

    def _take_events(self, wait_s: float) -> None:
        try:
            event = self._events.get(timeout=wait_s) if wait_s > 0 else self._events.get_nowait()
            while True:
                if event is not None:
                    self._handle(event)
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _handle(self, event: Event) -> None:
        now = self._clock()
        match event:
            case Processed(attempt):
                faults.point("processed", txid=attempt.txid)
                self._listener.processed(event)
                self._carry_out(self._coordinator.processed(attempt, now))
            case Committed(attempt):
                self._commit_facts[attempt] = event
                self._carry_out(self._coordinator.committed(attempt, now))
                self._commit_facts.pop(attempt, None)
            case Failed(attempt, error):
                self._fail(attempt, error)
            case Ended(attempt):
                self._coordinator.ended(attempt)

    def _fail(self, attempt: TransactionAttempt, error: BaseException) -> None:
        if isinstance(error, LeaseLostError):
            raise error
        actions = self._coordinator.failed(attempt, error, self._clock())
        if actions:
            stops = any(isinstance(action, Stop) for action in actions)
            what = "and the run stops" if stops else "and is replayed"
            log.warning("batch %s failed %s: %s", attempt, what, error)
            self._listener.failed(attempt, error)
        self._carry_out(actions)

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Emit(attempt) if self._is_in_flight(attempt):
                    self._emit(attempt)
                case BeginCommit(attempt) if self._is_in_flight(attempt):
                    self._begin_commit(attempt)
                case Mark(attempt):
                    self._mark(attempt)
                case Cancel(attempt):
                    self._setup.engine.cancel(attempt)
                case Stop(error):
                    raise error

    def _do_what_is_due(self) -> bool:
        """Carry out one round of actions; True if a batch was emitted, so that the next may."""
        actions = self._coordinator.poll(self._clock(), self._ready, active=self.active)
        self._carry_out(actions)
        return any(isinstance(action, Emit) for action in actions)

    def _is_in_flight(self, attempt: TransactionAttempt) -> bool:
        # An earlier action of the same list may have failed and taken this one with it.
        found = self._coordinator.in_flight.get(attempt.txid)
        return found is not None and found[0] == attempt

    # --- the three steps ---------------------------------------------------------------------

    def _emit(self, attempt: TransactionAttempt) -> None:
        try:
            metadata = self._plan(attempt)
        except Exception as error:
            self._fail(attempt, error)
            return
        self._keeper.emit(attempt, metadata)
        self._listener.emitted(attempt, attempt.attempt_id > 0)
        self._setup.engine.start_processing(attempt, metadata)

    def _begin_commit(self, attempt: TransactionAttempt) -> None:
        claim = self._commits.begin(attempt)
        self._listener.committing(attempt)
        # The engine claims when it is about to write, on a thread of its own.
        order = CommitOrder(
            attempt,
            claim.resolved,
            lambda: self._commits.claim(claim),
            BatchClock.read(self.ledger.emitted[attempt.txid].metadata),
        )
        self._setup.engine.start_commit(order)

    def _mark(self, attempt: TransactionAttempt) -> None:
        self._commits.mark(attempt)
        self._found_data.discard(attempt.txid)
        self._settle()
        faults.point("cleanup", txid=attempt.txid)
        metadata = self.ledger.committed_metadata or {}
        for spout_id, planner in self._planners.items():
            planner.succeeded(attempt.txid, metadata[spout_id])
        self._setup.engine.release(attempt)
        self._listener.committed(self._commit_facts.get(attempt, Committed(attempt)))

    def _settle(self) -> None:
        """Tell the states that the last batch was marked; they may know already."""
        try:
            self._commits.settle()
            self._settle_at = None
        except OutsideError:
            # The batch has committed. Its readers wait for the next claim, or the next try.
            self._settle_at = self._clock() + _SETTLE_AGAIN_S

    def _settle_if_due(self) -> None:
        """Tell the states again what they could not be told, if no batch is about to."""
        due = self._settle_at is not None and self._clock() >= self._settle_at
        if due and not self._coordinator.in_flight:
            self._settle()

    # --- spouts ------------------------------------------------------------------------------

    def _plan(self, attempt: TransactionAttempt) -> dict[str, Any]:
        stored = self.ledger.emitted.get(attempt.txid)
        previous = self.ledger.metadata_before(attempt.txid) or {}
        fixed = {} if stored is None else stored.metadata  # nothing after a rollback
        metadata = {}
        for spout_id, planner in self._planners.items():
            kind = self._setup.spouts[spout_id].kind
            if kind is SpoutKind.TRANSACTIONAL and spout_id in fixed:
                metadata[spout_id] = fixed[spout_id]
            else:
                metadata[spout_id] = planner.plan(attempt.txid, previous.get(spout_id))
        if self._setup.clock is not None:
            has_data = self._may_hold_data(attempt, metadata)
            clock = self._setup.clock
            metadata[CLOCK] = clock.pin(previous.get(CLOCK), fixed.get(CLOCK), has_data=has_data)
        # As it will be read back after a restart: lists for tuples, text for numbers as keys.
        plain: dict[str, Any] = json.loads(json.dumps(metadata))
        return plain

    def _ready(self, txid: int) -> bool:
        if txid > self.ledger.current and txid - 1 not in self.ledger.emitted:
            return False  # not before it is known where the batch before it ends
        if self._ask_again_at is not None and self._clock() < self._ask_again_at:
            return False
        previous = self.ledger.metadata_before(txid) or {}
        try:
            ready = any(p.is_ready(previous.get(i)) for i, p in self._planners.items())
        except BuildError:
            raise  # asking again would not mend it
        except Exception as error:
            self._ready_failures += not isinstance(error, FailedException)
            if self._ready_failures > self._setup.config.max_retries:
                raise
            log.warning("a spout could not be asked for data: %s", error)
            pause_s = self._setup.config.retry_backoff.pause_s(self._ready_failures)
            self._ask_again_at = self._clock() + pause_s
            return False
        self._ready_failures, self._ask_again_at = 0, None
        if ready:
            self._found_data.add(txid)
            return True
        clock = self._setup.clock
        return clock is not None and clock.is_due(previous.get(CLOCK))

    def _may_hold_data(self, attempt: TransactionAttempt, metadata: Mapping[str, Any]) -> bool:
        """Whether a batch that was just planned may hold tuples."""
        told = [planner.holds_data(metadata[i]) for i, planner in self._planners.items()]
        if None not in told:
            return any(told)
        # A spout that cannot tell had something when it was asked, or may have in a replay.
        return any(told) or attempt.txid in self._found_data or attempt.attempt_id > 0

    def _open_spouts(self) -> None:
        ledger = self.ledger
        known = {txid: batch.metadata for txid, batch in ledger.emitted.items()}
        if ledger.committed_metadata is not None:
            known[ledger.current - 1] = ledger.committed_metadata
        for spout_id, spout in self._setup.spouts.items():
            context = SpoutContext(
                conf=self._setup.config,
                spout_id=spout_id,
                folder=self._setup.folder,
                known={t: m[spout_id] for t, m in known.items() if spout_id in m},
                current=ledger.current,
            )
            self._planners[spout_id] = spout.open(context)

    def _tell_active(self) -> None:
        """Pass on to the spouts that the topology was (de)activated since the last step."""
        if self.active != self._told_active:
            self._told_active = self.active
            for planner in self._planners.values():
                planner.set_active(self._told_active)

    def _looks_idle(self) -> bool:
        coordinator = self._coordinator
        if coordinator.in_flight or not self._events.empty():
            return False
        if not self.active:
            return True  # what is owed is replayed once the topology is activated
        if coordinator.owes_replay or self._ready(coordinator.current):
            return False
        if not all(planner.is_drained() for planner in self._planners.values()):
            return False
        # Nobody knows whether a source that cannot be asked has more.
        return self._ask_again_at is None


def _policy(config: Config) -> CoordinatorPolicy:
    return CoordinatorPolicy(
        max_batches=config.max_batches,
        emit_interval_s=config.batch_emit_interval_millis / 1000,
        batch_timeout_s=config.batch_timeout_secs,
        max_retries=config.max_retries,
        backoff=config.retry_backoff,
        cancel_wait_s=config.cancel_wait_secs,
    )
