"""What is counted of a run's events, for metrics: numbers that only grow. No I/O, no clock."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from waterspout import errors
from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchCommitting,
    BatchEmitted,
    BatchFailed,
    BatchProcessed,
    CommandObeyed,
    ErrorReported,
    Event,
    MessageDeadLettered,
    ServiceAway,
    ServiceBack,
    SpoutPaused,
    StateWritten,
    TreesDecided,
    WaveFinished,
    WaveRetried,
)
from waterspout.metrics._catalog import SECONDS
from waterspout.trident.isolation.rewriting import LETTERS_STATE

__all__ = ["Histogram", "Labels", "RunTally", "kind_of"]

Labels = tuple[str, ...]
"""The values of a series's labels, without that of its topology."""


def kind_of(error: BaseException) -> str:
    """Return the class of an error as far as the library knows it: labels must be few.

    >>> kind_of(errors.OutageError("redis", "refused")), kind_of(KeyError("x"))
    ('OutageError', 'other')
    """
    known = (each.__name__ for each in type(error).__mro__ if each.__name__ in errors.__all__)
    return next(known, "other")


@dataclass(slots=True)
class Histogram:
    """How many observations were in each bucket, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    """By bucket, the last for what is above all bounds; not added up."""
    sum: float = 0.0

    def observe(self, value: float) -> None:
        """Add one observation; below zero, which only a clock that was set back gives, is zero."""
        value = max(0.0, value)
        self.counts[bisect_left(SECONDS, value)] += 1
        self.sum += value

    @property
    def buckets(self) -> list[tuple[str, int]]:
        """The upper bounds as Prometheus writes them, each with all that is not above it."""
        below, found = 0, []
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            below += count
            found.append((bound, below))
        return found


class RunTally:
    """Listens to a run and counts. May be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, Histogram] = {}
        self._processed: dict[int, float] = {}
        self._away: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._note(event)

    def counters(self) -> Mapping[str, Mapping[Labels, float]]:
        """Return the counters by the names of the catalog, then by their labels."""
        with self._lock:
            return {name: dict(series) for name, series in self._counters.items()}

    def histograms(self) -> Mapping[str, Histogram]:
        """Return the histograms by the names of the catalog."""
        with self._lock:
            return {
                name: Histogram(list(each.counts), each.sum)
                for name, each in self._histograms.items()
            }

    def _add(self, name: str, *labels: str, more: float = 1) -> None:
        self._counters[name][labels] += more

    def _observe(self, name: str, seconds: float) -> None:
        self._histograms.setdefault(name, Histogram()).observe(seconds)

    def _note(self, event: Event) -> None:
        match event:
            case BatchEmitted():
                self._add("batch_attempts")
                self._add("batch_replays", more=event.is_replay)
            case BatchProcessed(attempt=attempt):
                self._processed[attempt.txid] = event.timestamp
            case BatchCommitting(attempt=attempt):
                since = self._processed.pop(attempt.txid, event.timestamp)
                self._observe("batch_waiting_seconds", event.timestamp - since)
            case BatchCommitted(progress=progress):
                self._add("batches_committed")
                self._add("input_rows", more=progress.input_rows or 0)
                self._observe("batch_processing_seconds", progress.processing_s)
                self._observe("batch_commit_seconds", progress.commit_s)
            case BatchFailed(attempt=attempt, error=error):
                self._processed.pop(attempt.txid, None)
                self._add("batch_failures", kind_of(error))
            case BatchCancelled(attempt=attempt):
                self._processed.pop(attempt.txid, None)
                self._add("batch_cancellations")
            case StateWritten(state=state, rows=rows) if state != LETTERS_STATE:
                self._add("state_written_rows", state, more=rows)
            case _:
                self._note_waves(event)

    def _note_waves(self, event: Event) -> None:
        match event:
            case WaveFinished(progress=made):
                self._add("waves")
                self._add("wave_busy_seconds", more=made.busy_s)
                self._observe("wave_seconds", made.wave_s)
            case WaveRetried(error=error):
                self._add("wave_retries", kind_of(error))
            case TreesDecided(component=spout):
                self._add("messages_acked", spout, more=event.acked)
                self._add("messages_failed", spout, more=event.failed)
                self._add("messages_timed_out", spout, more=event.timed_out)
            case MessageDeadLettered(letter=letter):
                self._add("messages_dead_lettered", letter.spout or "")
            case _:
                self._note_troubles(event)

    def _note_troubles(self, event: Event) -> None:
        match event:
            case ErrorReported(component=component, count=count):
                self._add("errors", component, more=count)
            case SpoutPaused(component=spout):
                self._add("spout_pauses", spout)
            case ServiceAway(service=service, away_s=away_s):
                # Told again at each try: what is new is the time since the last one.
                self._add("service_outages", service, more=service not in self._away)
                self._wait_for(service, away_s)
            case ServiceBack(service=service, away_s=away_s):
                self._wait_for(service, away_s)
                self._away.pop(service, None)
            case CommandObeyed(command=command, outcome=outcome):
                self._add("commands", command, outcome)

    def _wait_for(self, service: str, away_s: float) -> None:
        before = self._away.get(service, 0.0)
        self._add("service_away_seconds", service, more=max(0.0, away_s - before))
        self._away[service] = max(before, away_s)
