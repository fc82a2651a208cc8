"""What a run remembers of its events: progress, a timeline, errors, and how it stands now."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Literal

from waterspout._causes import in_full, located, one_line, told
from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchCommitting,
    BatchEmitted,
    BatchFailed,
    BatchProcessed,
    ErrorReported,
    Event,
    MessageDeadLettered,
    PartitionReachable,
    PartitionUnreachable,
    ProgressBetweenWaves,
    RunEnded,
    ServiceAway,
    ServiceBack,
    SpoutPaused,
    TreesDecided,
    WaveFinished,
    WaveRetried,
    WaveStarted,
)
from waterspout.coordination.progress import (
    BatchInFlight,
    BatchProgress,
    BatchTotals,
    ErrorSummary,
    Outage,
    RunSnapshot,
    SpoutPause,
    TimelineEntry,
    UnreachablePartition,
    WaveInFlight,
    WaveProgress,
    WaveTotals,
)
from waterspout.transactional._attempt import TransactionAttempt

__all__ = ["Recorder"]

log = logging.getLogger(__name__)

_KEEP_PROGRESS = 1000
_KEEP_ERRORS = 200

# Storm's topology.max.error.report.per.interval and topology.error.throttle.interval.secs.
_LOGGED_PER_INTERVAL = 5
_INTERVAL_S = 10.0


class Recorder:
    """Listens to a run and keeps the newest of each kind. May be asked from any thread.

    `totals` are what it counts up: those of batches or those of waves. Errors of components become
    log lines, not too many.
    """

    def __init__(self, name: str, totals: BatchTotals | WaveTotals) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._totals = totals
        self._batches: dict[int, BatchInFlight] = {}
        self._wave: WaveInFlight | None = None
        self._recent: deque[BatchProgress | WaveProgress] = deque(maxlen=_KEEP_PROGRESS)
        self._timeline: deque[TimelineEntry] = deque(maxlen=8 * _KEEP_PROGRESS)
        self._errors: deque[ErrorSummary] = deque(maxlen=_KEEP_ERRORS)
        self._pauses: dict[str, SpoutPause] = {}
        self._outages: dict[str, Outage] = {}
        self._away: dict[tuple[str, int | str], UnreachablePartition] = {}
        self._since: dict[str, float] = {}
        self._logged: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._note(event)

    @property
    def recent(self) -> list[BatchProgress | WaveProgress]:
        """The progress made last, oldest first."""
        with self._lock:
            return list(self._recent)

    @property
    def timeline(self) -> list[TimelineEntry]:
        """The steps of the latest attempts, oldest first."""
        with self._lock:
            return list(self._timeline)

    @property
    def waiting_for(self) -> tuple[Outage, ...]:
        """The services that are away, the one away longest first."""
        with self._lock:
            return self._waiting_for()

    def _waiting_for(self) -> tuple[Outage, ...]:
        return tuple(sorted(self._outages.values(), key=lambda outage: outage.since))

    def snapshot(self, status: str) -> RunSnapshot:
        """Return how the run stands now."""
        with self._lock:
            now = time.time()
            batches = tuple(batch for _, batch in sorted(self._batches.items()))
            return RunSnapshot(
                name=self._name,
                status=status,
                timestamp=now,
                in_flight=batches if self._wave is None else (self._wave,),
                totals=self._totals,
                last_progress=self._recent[-1] if self._recent else None,
                pausing_spouts=tuple(p for p in self._pauses.values() if p.until > now),
                errors=tuple(self._errors),
                waiting_for=self._waiting_for(),
                unreachable=tuple(self._away.values()),
            )

    def _note(self, event: Event) -> None:
        match event:
            case BatchEmitted(attempt=attempt):
                self._count(replayed=event.is_replay)
                self._enter("processing", "processing", attempt, event)
                self._mark("processing starts", attempt)
            case BatchProcessed(attempt=attempt):
                turn = f"its turn to commit after {attempt.txid - 1}"
                self._enter("processed", turn, attempt, event)
                self._mark("processing ends", attempt)
            case BatchCommitting(attempt=attempt):
                self._enter("committing", "writing", attempt, event)
                self._mark("commit starts", attempt)
            case BatchCommitted(attempt=attempt, progress=progress):
                self._batches.pop(attempt.txid, None)
                self._mark("commit ends", attempt)
                self._recent.append(progress)
                rows, tuples = progress.written_rows, progress.executed_tuples
                read = progress.input_rows or 0
                self._count(committed=1, input_rows=read, written_rows=rows, executed_tuples=tuples)
                assert isinstance(self._totals, BatchTotals)
                self._totals = replace(self._totals, last_txid=attempt.txid)
            case BatchFailed(attempt=attempt, error=error):
                self._count(failures=1)
                self._enter("failed", "a pause before its replay", attempt, event)
                text = told(error)
                self._note_error(f"batch {attempt}", text, in_full(error), 1)
                self._mark("failed", attempt, text)
            case BatchCancelled(attempt=attempt, failed=failed):
                self._enter("failed", f"the replay of {failed.txid}", attempt, event)
            case WaveStarted(wave=wave, attempt=number, tuples=tuples, timestamp=now):
                self._wave = WaveInFlight(wave, number, tuples, now, "running")
            case WaveRetried(timestamp=now) if self._wave is not None:
                pause = "a pause before it runs again"
                self._wave = replace(self._wave, since=now, waits_for=pause)
            case WaveFinished(progress=made):
                self._wave = None
                self._recent.append(made)
                self._count(waves=1, executed=sum(made.executed.values()))
            case ProgressBetweenWaves(progress=made):
                self._recent.append(made)
            case TreesDecided(acked=acked, failed=lost, timed_out=late):
                self._count(acked=acked, failed=lost, timed_out=late)
            case MessageDeadLettered():
                self._count(dead_letters=1)
            case ErrorReported():
                text = one_line(located(event.error, event.traceback))
                self._note_error(event.component, text, event.traceback, event.count)
                self._log(event)
            case RunEnded(error=error) if error is not None:
                text = told(error)
                if all(entry.error != text for entry in self._errors):
                    self._note_error("run", text, in_full(error), 1)
            case SpoutPaused(component=component):
                until = event.timestamp + event.pause_s
                self._pauses[component] = SpoutPause(component, event.error, until)
            case ServiceAway(service=service, error=why, timestamp=now):
                since, until = now - event.away_s, now + event.pause_s
                self._outages[service] = Outage(service, why, since, until)
            case ServiceBack(service=service):
                self._outages.pop(service, None)
            case PartitionUnreachable(component=component, partition=partition, error=text):
                self._note_error(component, f"partition {partition}: {text}", "", 1)
                before = self._away.get((component, partition))
                since = event.timestamp if before is None else before.since
                away = UnreachablePartition(component, partition, text, since)
                self._away[component, partition] = away
            case PartitionReachable(component=component, partition=partition):
                self._away.pop((component, partition), None)

    def _count(self, **more: int) -> None:
        """Add to totals by their names."""
        counted = {name: getattr(self._totals, name) + n for name, n in more.items()}
        self._totals = replace(self._totals, **counted)

    def _enter(
        self,
        phase: Literal["processing", "processed", "committing", "failed"],
        waits_for: str,
        attempt: TransactionAttempt,
        event: Event,
    ) -> None:
        self._batches[attempt.txid] = BatchInFlight(
            attempt.txid, attempt.attempt_id, phase, event.timestamp, waits_for
        )

    def _mark(self, what: str, attempt: TransactionAttempt, error: str | None = None) -> None:
        self._timeline.append(
            TimelineEntry(what, attempt.txid, attempt.attempt_id, time.monotonic(), error)
        )

    def _note_error(self, component: str, error: str, traceback: str, count: int) -> None:
        """Remember an error; one like the last of its component only raises its count."""
        now = time.time()
        for i in reversed(range(len(self._errors))):
            entry = self._errors[i]
            if entry.component == component:
                if entry.error == error:
                    self._errors[i] = replace(entry, count=entry.count + count, last=now)
                    return
                break
        self._errors.append(ErrorSummary(component, error, traceback, count, now, now))

    def _log(self, event: ErrorReported) -> None:
        now, component = time.monotonic(), event.component
        if now - self._since.get(component, -_INTERVAL_S) >= _INTERVAL_S:
            self._since[component], self._logged[component] = now, 0
        self._logged[component] += 1
        if self._logged[component] <= _LOGGED_PER_INTERVAL:
            more = f" ({event.count} times in this wave)" if event.count > 1 else ""
            log.error(
                "%s, task %d%s: %s\n%s", component, event.task, more, event.error, event.traceback
            )
