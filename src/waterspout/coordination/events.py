"""What happens in a run, told to any number of listeners as it happens."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from waterspout._letters import DeadLetter
from waterspout.coordination.progress import BatchProgress, WaveProgress
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.waves.counting import TaskCounts

__all__ = [
    "BatchCancelled",
    "BatchCommitted",
    "BatchCommitting",
    "BatchEmitted",
    "BatchFailed",
    "BatchProcessed",
    "CommandObeyed",
    "CommitStep",
    "ErrorReported",
    "Event",
    "EventBus",
    "Listener",
    "MessageDeadLettered",
    "PartitionReachable",
    "PartitionUnreachable",
    "ProgressBetweenWaves",
    "RunEnded",
    "RunIdle",
    "ServiceAway",
    "ServiceBack",
    "SpoutPaused",
    "StateWritten",
    "TreesDecided",
    "TuplesCounted",
    "WaveFinished",
    "WaveRetried",
    "WaveStarted",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run."""

    run: str
    """The name of the topology."""
    timestamp: float = field(default_factory=time.time, kw_only=True)
    """When, in seconds since 1970."""


Listener = Callable[[Event], object]
"""Is called with each event, in the thread that drives the run: it must not take long."""


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """A run has stopped; nothing of it happens any more."""

    error: BaseException | None
    """What stopped it; None if it was told to stop."""


@dataclass(frozen=True, slots=True)
class RunIdle(Event):
    """The sources have nothing more, and everything is done; told once until more comes."""


@dataclass(frozen=True, slots=True)
class CommandObeyed(Event):
    """A command from another terminal was accepted, carried out or refused."""

    command: str
    """One of kill, activate, deactivate, rebalance."""
    by: str
    """Who gave it: user@host."""
    outcome: str
    """One of accepted, done, refused; after accepted comes one of the others."""
    text: str
    """What has become of it, for people."""


@dataclass(frozen=True, slots=True)
class ErrorReported(Event):
    """A component raised, or reported an error; like ones of a wave are one event."""

    component: str
    task: int
    error: str
    traceback: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class SpoutPaused(Event):
    """A spout raised and is not asked for a while."""

    component: str
    error: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class ServiceAway(Event):
    """A store, a source or ZooKeeper cannot be reached; it is tried again after a pause."""

    service: str
    error: str
    away_s: float
    """For how long the run has waited for it."""
    pause_s: float


@dataclass(frozen=True, slots=True)
class ServiceBack(Event):
    """What a run has waited for is there again."""

    service: str
    away_s: float


@dataclass(frozen=True, slots=True)
class PartitionUnreachable(Event):
    """A partition of an opaque spout cannot be reached: batches go on without it, for now."""

    component: str
    partition: int | str
    error: str


@dataclass(frozen=True, slots=True)
class PartitionReachable(Event):
    """A partition that was left out is there again, and goes on where it was."""

    component: str
    partition: int | str


@dataclass(frozen=True, slots=True)
class BatchEmitted(Event):
    """The metadata of an attempt is stored; its processing phase starts."""

    attempt: TransactionAttempt
    plan_s: float = 0.0
    """How long it took to plan the batch and to store that, in seconds."""

    @property
    def is_replay(self) -> bool:
        """Whether the batch was emitted before, by this run or an earlier one."""
        return self.attempt.attempt_id > 0


@dataclass(frozen=True, slots=True)
class BatchProcessed(Event):
    """The processing phase of an attempt is over; it commits when all batches before it have."""

    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class BatchCommitting(Event):
    """An attempt is stored as begun; its commit phase starts."""

    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class CommitStep(Event):
    """A step of a commit was taken: of the attempt as a whole, or for one state."""

    attempt: TransactionAttempt
    step: Literal["begun", "claimed", "written", "marked", "settled"]
    """As in `coordination/commit_protocol.py`."""
    state: str | None = None
    """The state that was claimed, written or settled."""


@dataclass(frozen=True, slots=True)
class StateWritten(Event):
    """A batch that has committed wrote to this state; told just before `BatchCommitted`."""

    attempt: TransactionAttempt
    state: str
    rows: int
    """Rows that went into its update: for an aggregation, one for each key."""


@dataclass(frozen=True, slots=True)
class BatchCommitted(Event):
    """A batch is written and marked as committed; states and spouts were told."""

    attempt: TransactionAttempt
    progress: BatchProgress


@dataclass(frozen=True, slots=True)
class BatchFailed(Event):
    """An attempt failed; its batch is replayed, or the run stops."""

    attempt: TransactionAttempt
    error: BaseException
    stops: bool
    """Whether the run stops because of it."""


@dataclass(frozen=True, slots=True)
class BatchCancelled(Event):
    """An attempt was cancelled because a batch before it failed; both are replayed."""

    attempt: TransactionAttempt
    failed: TransactionAttempt
    """The attempt that failed."""


@dataclass(frozen=True, slots=True)
class WaveStarted(Event):
    """A wave starts, or starts again after it failed as a whole."""

    wave: int
    attempt: int
    tuples: int
    """Tuples and messages that it begins with."""


@dataclass(frozen=True, slots=True)
class WaveRetried(Event):
    """A wave failed as a whole and has changed nothing; it is run again after a pause."""

    wave: int
    error: BaseException
    pause_s: float


@dataclass(frozen=True, slots=True)
class WaveFinished(Event):
    """A wave is over, and the spouts were told of their messages."""

    progress: WaveProgress


@dataclass(frozen=True, slots=True)
class ProgressBetweenWaves(Event):
    """Messages were decided while no wave ran: they timed out, as a rule."""

    progress: WaveProgress


@dataclass(frozen=True, slots=True)
class TreesDecided(Event):
    """Messages of a spout were acked or failed with all that was emitted because of them."""

    component: str
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    """Those of the failed whose time was over."""
    complete_s: float = 0.0
    """From the emission of each of the acked to the end of its tree, added up, in seconds."""


@dataclass(frozen=True, slots=True)
class TuplesCounted(Event):
    """A wave is over, or a batch of bolts has committed: what its tasks have done in it."""

    tasks: tuple[TaskCounts, ...]
    """Of each task, `__acker` included: what it has emitted, executed, acked and failed."""


@dataclass(frozen=True, slots=True)
class MessageDeadLettered(Event):
    """A message failed too often; it is stored among the dead letters."""

    letter: DeadLetter


class EventBus:
    """Hands the events of one run to its listeners; one that raises is logged, no more.

    >>> bus, heard = EventBus(), []
    >>> unsubscribe = bus.subscribe(heard.append)
    >>> bus.publish(RunEnded("words", None))
    >>> unsubscribe()
    >>> bus.publish(RunEnded("words", None))
    >>> len(heard)
    1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced as a whole: `publish` goes through it without the lock.
        self._listeners: dict[object, Listener] = {}

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Let a listener hear every event from now on; return what ends that."""
        key = object()
        with self._lock:
            self._listeners = {**self._listeners, key: listener}

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = {k: v for k, v in self._listeners.items() if k is not key}

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Call every listener, in the order in which they came."""
        for listener in self._listeners.values():
            try:
                listener(event)
            except Exception:
                log.exception("a listener of run %s raised at %s", event.run, event)
