"""The loop: carries out the coordinator's decisions.

    emit     plan the batch, store attempt and metadata, then start the processing
    commit   see that the sources are still what was planned, begin the attempt, then let the
             engine claim the states and write
    mark     mark the batch, then settle the heads, tell the spouts, clean up

The order of the steps of a commit is that of `commit_protocol.py`. One thread calls `step`;
engines report from any thread. The same loop runs on Spark and in simulation.
"""

from __future__ import annotations

import json
import logging
import queue
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from waterspout import faults
from waterspout._causes import told
from waterspout._config import Config
from waterspout._log_context import about_the_attempt
from waterspout._safe_repr import described
from waterspout.coordination.batch_clock import CLOCK, BatchClock
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.commands.obedience import Standing
from waterspout.coordination.commit_protocol import (
    CommitProtocol,
    LedgerKeeper,
    verify_topology,
)
from waterspout.coordination.driven import DrivenLoop, Lag, without_harm
from waterspout.coordination.engine import (
    BatchEngine,
    Committed,
    Ended,
    Failed,
    Processed,
    Report,
    Wrote,
)
from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchCommitting,
    BatchEmitted,
    BatchFailed,
    BatchProcessed,
    Listener,
    SpoutPaused,
    StateWritten,
    TuplesCounted,
)
from waterspout.coordination.opening import open_planners
from waterspout.coordination.outages import LEDGER, STATES, outage_of
from waterspout.coordination.sizing import BatchSizes
from waterspout.coordination.store import CoordinationStore, acquire_when_free, grown
from waterspout.coordination.telling import Reach, Steps, progress_of
from waterspout.errors import (
    BuildError,
    DataLossError,
    FailedException,
    LeaseLostError,
    OutageError,
    OutsideError,
)
from waterspout.spouts._base import BatchPlanner, PlannedSpout, is_pinned
from waterspout.spouts._emitters import EmittedSpout
from waterspout.state._head import Writer
from waterspout.state._headed import HeadedState
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._coordinator import (
    Action,
    BeginCommit,
    Cancel,
    Coordinator,
    CoordinatorPolicy,
    Emit,
    Mark,
    Stop,
)
from waterspout.transactional._ledger import SKIPPED, Ledger, is_skipped
from waterspout.transactional._sizing import SizingPolicy

__all__ = ["BatchLoop", "BatchSetup"]

log = logging.getLogger(__name__)

_SETTLE_AGAIN_S = 1.0


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
    clock: BatchClock | None = None
    others_write: bool = False
    """Whether user code writes as well, without a state of ours."""
    sizing: SizingPolicy | None = None
    """The bounds within which batches size themselves; None: they do not."""

    pins_batches: bool = False
    """Whether a state needs the same rows again of a batch that has begun to commit."""

    @classmethod
    def of_bolts(
        cls,
        topology: TransactionalTopology,
        spout: EmittedSpout,
        states: Mapping[str, HeadedState],
        store: CoordinationStore,
        engine: BatchEngine,
        config: Config,
        sizing: SizingPolicy | None = None,
    ) -> BatchSetup:
        """Return that of a transactional topology, which has one spout."""
        return cls(
            topology=topology.name,
            fingerprint=topology.fingerprint(),
            spouts={topology.spout_id: spout},
            states=states,
            store=store,
            engine=engine,
            config=config,
            others_write=bool(topology.on_their_own),
            sizing=sizing,
        )


class BatchLoop(DrivenLoop):
    """Drive one topology's batches. `start` takes the lease; `close` gives it up."""

    def __init__(
        self, setup: BatchSetup, clock: Callable[[], float], listener: Listener | None = None
    ) -> None:
        super().__init__(setup.topology, setup.config, clock, listener)
        self._setup = setup
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._planners: dict[str, BatchPlanner] = {}
        self._ready_failures = 0
        self._ask_again_at: float | None = None
        """When to ask a spout again that could not be asked; None: all could."""
        self._found_data: set[int] = set()
        """The batches for which a spout has data, as far as that was asked."""
        self._processed: dict[TransactionAttempt, Processed] = {}
        self._committed: Committed | None = None
        self._replayed = self._failures = 0
        self._settle_at: float | None = None
        self._states_answered = True
        """Whether the states were reached since they were last found to be away."""
        self._reach = Reach(self.name, self.events.publish)
        self._steps = Steps(self.name, self.events.publish)
        self._sizes = BatchSizes(
            self.name, setup.sizing, self.events.publish, clock, setup.config.max_batches
        )
        setup.engine.report = self._hear

    def start(self) -> None:
        """Check everything, take the lease, and go on from the ledger."""
        setup = self._setup
        graph, retire = setup.fingerprint, setup.config.retire
        verify_topology(setup.states, setup.store.peek(), setup.topology, graph, retire=retire)
        epoch = acquire_when_free(setup.store, graph, retire)
        try:
            ledger = setup.store.load()
            verify_topology(setup.states, ledger, setup.topology, graph, retire=retire)
            ledger, changes = grown(setup.store, graph, retire)
            changes.refuse_half_filled()
            self._keeper = LedgerKeeper(ledger, self._save, setup.store.note)
            self._commits = CommitProtocol(
                setup.states,
                self._keeper,
                others_write=setup.others_write,
                names=changes.names,
                tell=self._steps.note,
            )
            self.writer = Writer(setup.topology, epoch, ledger.history, uuid.uuid4().hex)
            self._commits.enroll(self.writer)
            self._commits.recover()
            spouts, conf = setup.spouts, setup.config
            open_planners(spouts, ledger, setup.store, conf, self._clock, self._planners)
            self._sizes.open(self._planners)
        except BaseException:
            setup.store.release()
            raise
        attempts = {txid: batch.attempt for txid, batch in ledger.emitted.items()}
        policy = replace(CoordinatorPolicy.of(setup.config), max_batches=self._sizes.pending)
        self.coordinator = Coordinator(policy, current=ledger.current, attempts=attempts)

    @property
    def ledger(self) -> Ledger:
        """The ledger as last saved."""
        return self._keeper.ledger

    def wake(self) -> None:
        self._reports.put(None)

    def close(self) -> None:
        if hasattr(self, "coordinator"):
            for action in self.coordinator.stop(self._clock()):
                if isinstance(action, Cancel):
                    self._setup.engine.cancel(action.attempt)
        for planner in self._planners.values():
            planner.close()
        self._setup.store.release()

    def standing(self) -> Standing:
        ledger, in_flight = self.ledger, self.coordinator.in_flight
        last, left = ledger.current - 1, sorted(ledger.emitted)
        return Standing(
            is_drained=not in_flight and self._reports.empty(),
            done=f"batch {last}" if last else "no batch",
            left=f"{_batches(left)} will be emitted again by the next run" if left else "",
            facts={"last_txid": last or None, "emitted_again": left},
        )

    def check_change(self, change: Change) -> None:
        self._setup.engine.check_change(change)

    def change(self, change: Change) -> None:
        self._setup.engine.change(change)
        if change.pending is not None:
            self._sizes.pin_pending(change.pending)
            self.coordinator.set_max_batches(change.pending)

    def _round(self, wait_s: float) -> None:
        """Handle what was reported, waiting at most `wait_s` for it, then do what is due."""
        self._take_reports(self._until_due(wait_s))
        if self._asked_anew.is_set():
            self._asked_anew.clear()
            for planner in self._planners.values():
                planner.look_anew()
        self._obey()
        for _ in range(self.coordinator.max_batches):
            if not self._do_what_is_due():
                break
        self._settle_if_due()
        self.is_idle = self._looks_idle()
        self._steps.publish()
        self._reach.look(self._planners)

    def _until_due(self, wait_s: float) -> float:
        """Shorten a wait to the end of a pause, if that comes earlier."""
        now = self._clock()
        ends = (self.coordinator.next_emit_at, self._ask_again_at or 0.0)
        return min([wait_s, *(end - now for end in ends if end > now)])

    def _hear(self, report: Report) -> None:
        """Take a report of the engine, from any thread."""
        if isinstance(report, Wrote):
            self._steps.note("written", report.attempt, report.state)
        else:
            self._reports.put(report)

    def _take_reports(self, wait_s: float) -> None:
        try:
            report = self._reports.get(timeout=wait_s) if wait_s > 0 else self._reports.get_nowait()
            while True:
                self._steps.publish()
                if report is not None:
                    self._handle(report)
                report = self._reports.get_nowait()
        except queue.Empty:
            return

    def _handle(self, report: Report) -> None:
        now = self._clock()
        match report:
            case Processed(attempt):
                if self._is_in_flight(attempt) and self._is_confirmed(attempt):
                    self._processed[attempt] = report
                    self._sizes.processed(report)
                    self.events.publish(BatchProcessed(self.name, attempt))
                    self._carry_out(self.coordinator.processed(attempt, now))
            case Committed(attempt):
                self._committed = report
                self._carry_out(self.coordinator.committed(attempt, now))
            case Failed(attempt, error):
                self._fail(attempt, error)
            case Ended(attempt):
                self.coordinator.ended(attempt)

    @about_the_attempt
    def _is_confirmed(self, attempt: TransactionAttempt) -> bool:
        """Whether what was processed is what was planned; else the attempt has failed."""
        metadata = self.ledger.emitted[attempt.txid].metadata
        try:
            faults.point("processed", txid=attempt.txid)
            for spout_id, planner in self._planners.items():
                if not is_skipped(metadata, spout_id):
                    planner.confirm(metadata[spout_id])
        except Exception as error:
            self._fail(attempt, error)
            return False
        return True

    @about_the_attempt
    def _fail(self, attempt: TransactionAttempt, error: BaseException) -> None:
        if isinstance(error, LeaseLostError):
            raise error
        end = None
        if isinstance(error, OutageError) and self._is_in_flight(attempt):
            end = self._await_states(error)
            error = end or error
        now, final = self._clock(), end is not None
        actions = self.coordinator.failed(attempt, error, now, final=final)
        for planner in self._planners.values():
            planner.attempt_failed(error)
        if actions:
            self._sizes.lost(attempt, error)
            self._tell_failed(attempt, error, actions)
        self._carry_out(actions)

    def _await_states(self, error: OutageError) -> OutageError | None:
        """Emit no batch for a while; return what ends the run if that was done long enough."""
        self._states_answered = False
        try:
            pause_s = self._waits.met(STATES, error)
        except OutageError as end:
            return end
        self.coordinator.hold(self._clock() + pause_s)
        return None

    def _hold_on(self, error: OutageError) -> None:
        end = self._await_states(error)
        if end is not None:
            raise end from error

    def _states_answer(self) -> bool:
        """Whether a batch that is emitted now can be written, as far as a look at its states tells.

        Else a batch would be processed again, in vain, at each try.
        """
        if self._states_answered or self._clock() < self.coordinator.next_emit_at:
            return True
        try:
            for state in self._setup.states.values():
                state.read_head()
        except OutageError as error:
            self._hold_on(error)
            return False
        self._states_answered = True
        return True

    def _tell_failed(
        self, attempt: TransactionAttempt, error: BaseException, actions: list[Action]
    ) -> None:
        """Say that an attempt failed, and which others are cancelled with it."""
        stops = any(isinstance(action, Stop) for action in actions)
        what = "and the run stops" if stops else "and is replayed"
        log.warning("batch %s failed %s: %s", attempt, what, told(error))
        self._failures += 1
        self.events.publish(BatchFailed(self.name, attempt, error, stops))
        for action in actions:
            if isinstance(action, Cancel):
                self._processed.pop(action.attempt, None)
                self._sizes.lost(action.attempt)
                if action.attempt != attempt:
                    self.events.publish(BatchCancelled(self.name, action.attempt, attempt))

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
        late = self.coordinator.late(self._clock())
        if late is not None:
            self._fail(*late)
        active = self.active and self._states_answer()
        actions = self.coordinator.poll(self._clock(), self._ready, active=active)
        self._carry_out(actions)
        return any(isinstance(action, Emit) for action in actions)

    def _is_in_flight(self, attempt: TransactionAttempt) -> bool:
        # An earlier action of the same list may have failed and taken this one with it.
        found = self.coordinator.in_flight.get(attempt.txid)
        return found is not None and found[0] == attempt

    @about_the_attempt
    def _emit(self, attempt: TransactionAttempt) -> None:
        began, now = time.monotonic(), self._clock()
        try:
            metadata = self._plan(attempt)
        except Exception as error:
            self._fail(attempt, error)
            return
        self._keeper.emit(attempt, metadata)
        self._replayed += attempt.attempt_id > 0
        self._sizes.emitted(attempt, now, metadata)
        plan_s = time.monotonic() - began
        self.events.publish(BatchEmitted(self.name, attempt, plan_s))
        self._setup.engine.start_processing(attempt, metadata)

    @about_the_attempt
    def _begin_commit(self, attempt: TransactionAttempt) -> None:
        claim = self._commits.begin(attempt)
        self._sizes.committing(attempt)
        self._steps.publish()
        self.events.publish(BatchCommitting(self.name, attempt))
        # The engine claims when it is about to write, on a thread of its own.
        self._setup.engine.start_commit(claim, lambda: self._commits.claim(claim))

    def _save(self, ledger: Ledger) -> None:
        self._insist(LEDGER, lambda: self._setup.store.save(ledger))

    @about_the_attempt
    def _mark(self, attempt: TransactionAttempt) -> None:
        self._commits.mark(attempt)
        self._found_data.discard(attempt.txid)
        self._settle()
        faults.point("cleanup", txid=attempt.txid)
        metadata = self.ledger.committed_metadata or {}
        for spout_id, planner in self._planners.items():
            planner.succeeded(attempt.txid, metadata[spout_id])
        self._setup.engine.release(attempt)
        for decision in self.ledger.decisions:
            if decision["txid"] == attempt.txid:
                log.warning("batch %d has committed as decided: %s", attempt.txid, dict(decision))
        self._tell_committed(attempt)

    def _tell_committed(self, attempt: TransactionAttempt) -> None:
        """Tell what there is to know of a batch that was just marked."""
        self._steps.publish()
        processed = self._processed.pop(attempt, Processed(attempt))
        committed = self._committed or Committed(attempt)
        for state, rows in committed.written.items():
            self.events.publish(StateWritten(self.name, attempt, state, rows))
        if committed.counts:
            self.events.publish(TuplesCounted(self.name, committed.counts))
        sizing = self._sizes.committed(attempt, processed, committed)
        self.coordinator.set_max_batches(sizing.max_in_flight)
        progress = replace(
            progress_of(self.name, processed, committed, sizing),
            in_flight=len(self.coordinator.in_flight),
            replayed=self._replayed,
            failures=self._failures,
            lag=self._measured(),
            unreachable=self._reach.errors,
        )
        self.events.publish(BatchCommitted(self.name, attempt, progress))

    def _measure(self) -> Lag:
        ledger = self.ledger
        newest = max(ledger.emitted, default=None)
        metadata = ledger.committed_metadata if newest is None else ledger.emitted[newest].metadata
        found = {}
        for spout_id, planner in self._planners.items():
            previous = (metadata or {}).get(spout_id)
            found[spout_id] = without_harm(partial(planner.lag, previous), spout_id) or {}
        return found

    def _settle(self) -> None:
        """Tell the states that the last batch was marked; they may know already."""
        try:
            self._commits.settle()
            self._settle_at = None
            self._waits.answered(STATES)
        except OutageError as error:
            self._hold_on(error)
            self._settle_at = self.coordinator.next_emit_at
        except OutsideError:
            # The batch has committed. Its readers wait for the next claim, or the next try.
            self._settle_at = self._clock() + _SETTLE_AGAIN_S

    def _settle_if_due(self) -> None:
        """Tell the states again what they could not be told, if no batch is about to."""
        due = self._settle_at is not None and self._clock() >= self._settle_at
        if due and not self.coordinator.in_flight:
            self._settle()

    def _plan(self, attempt: TransactionAttempt) -> dict[str, Any]:
        stored = self.ledger.emitted.get(attempt.txid)
        previous = self.ledger.metadata_before(attempt.txid) or {}
        fixed = {} if stored is None else stored.metadata  # nothing after a rollback
        # What the current batch held when it began to commit is what is stored.
        pins = self._setup.pins_batches and self.ledger.has_begun(attempt.txid)
        metadata = {}
        for spout_id in self._planners:
            keeps = is_pinned(self._setup.spouts[spout_id], pins_batches=pins)
            if spout_id in fixed and (keeps or is_skipped(fixed, spout_id)):
                metadata[spout_id] = fixed[spout_id]
            else:
                try:
                    before = previous.get(spout_id)
                    metadata[spout_id] = self._sizes.plan(spout_id, attempt.txid, before)
                except Exception as error:
                    outage = outage_of(error, spout_id)
                    if outage is None:
                        raise
                    raise outage from error
        if SKIPPED in fixed:
            metadata[SKIPPED] = fixed[SKIPPED]
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
        if self._sizes.is_throttled:
            return False
        if self._ask_again_at is not None and self._clock() < self._ask_again_at:
            return False
        previous = self.ledger.metadata_before(txid) or {}
        asked = ""
        try:
            ready = False
            for asked, planner in self._planners.items():
                ready = ready or planner.is_ready(previous.get(asked))
        except (BuildError, DataLossError):
            raise  # asking again would not mend it
        except Exception as error:
            self._rest(asked, error)
            return False
        self._ready_failures, self._ask_again_at = 0, None
        for asked, planner in self._planners.items():
            self._waits.noted(f"spout {asked}", planner.outage())
        if ready:
            self._found_data.add(txid)
            return True
        clock = self._setup.clock
        return clock is not None and clock.is_due(previous.get(CLOCK))

    def _rest(self, spout_id: str, error: Exception) -> None:
        """Ask the spouts again after a pause; raise where there were enough."""
        outage = outage_of(error, spout_id)
        if outage is not None:
            pause_s = self._waits.met(f"spout {spout_id}", outage)
        else:
            self._ready_failures += not isinstance(error, FailedException)
            if self._ready_failures > self._setup.config.max_retries:
                raise error
            log.warning("a spout could not be asked for data: %s", error)
            pause_s = self._setup.config.retry_backoff.pause_s(self._ready_failures)
        self._ask_again_at = self._clock() + pause_s
        self.events.publish(SpoutPaused(self.name, spout_id, described(error), pause_s))

    def _may_hold_data(self, attempt: TransactionAttempt, metadata: Mapping[str, Any]) -> bool:
        """Whether a batch that was just planned may hold tuples."""
        told = [planner.holds_data(metadata[i]) for i, planner in self._planners.items()]
        if None not in told:
            return any(told)
        # A spout that cannot tell had something when it was asked, or may have in a replay.
        return any(told) or attempt.txid in self._found_data or attempt.attempt_id > 0

    def _activate_spouts(self, active: bool) -> None:
        for planner in self._planners.values():
            planner.set_active(active)

    def _looks_idle(self) -> bool:
        coordinator = self.coordinator
        if coordinator.in_flight or not self._reports.empty():
            return False
        if not self.active:
            return True  # what is owed is replayed once the topology is activated
        if coordinator.owes_replay or self._ready(coordinator.current):
            return False
        if not all(planner.is_drained() for planner in self._planners.values()):
            return False
        # Nobody knows whether a source that cannot be asked has more.
        return self._ask_again_at is None


def _batches(txids: Sequence[int]) -> str:
    return f"batch {txids[0]}" if len(txids) == 1 else f"batches {txids[0]} to {txids[-1]}"
