"""What a run remembers of itself: progress, a timeline, errors."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from waterspout.coordination.engine import Committed, Processed
from waterspout.coordination.loop import LoopListener
from waterspout.coordination.wave_loop import WaveListener
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.waves.bolts import ErrorNote

__all__ = ["BatchRecorder", "Recorder", "WaveRecorder"]

log = logging.getLogger(__name__)

_KEEP_PROGRESS = 1000
_KEEP_ERRORS = 200

# Storm's topology.max.error.report.per.interval and topology.error.throttle.interval.secs.
_LOGGED_PER_INTERVAL = 5
_INTERVAL_S = 10.0


class Recorder:
    """The newest entries of each kind."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.recent: deque[dict[str, Any]] = deque(maxlen=_KEEP_PROGRESS)
        self.timeline: deque[dict[str, Any]] = deque(maxlen=8 * _KEEP_PROGRESS)
        self.errors: deque[dict[str, Any]] = deque(maxlen=_KEEP_ERRORS)

    def note_error(self, component: str, error: str, traceback: str, count: int) -> None:
        """Remember an error; one like the last of its component only raises its count."""
        for entry in reversed(self.errors):
            if entry["component"] == component:
                if entry["error"] == error:
                    entry["count"] += count
                    entry["last"] = time.time()
                    return
                break
        now = time.time()
        self.errors.append(
            {
                "component": component,
                "error": error,
                "traceback": traceback,
                "count": count,
                "first": now,
                "last": now,
            }
        )


class WaveRecorder(Recorder, WaveListener):
    """Turns what a wave loop does into progress, and errors into log lines, not too many."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._since: dict[str, float] = {}
        self._logged: dict[str, int] = {}

    def wave(self, facts: dict[str, Any]) -> None:
        self.recent.append({"name": self._name, "timestamp": time.time(), **facts})

    def error(self, note: ErrorNote) -> None:
        self.note_error(note.component, note.error, note.traceback, note.count)
        now = time.monotonic()
        if now - self._since.get(note.component, -_INTERVAL_S) >= _INTERVAL_S:
            self._since[note.component] = now
            self._logged[note.component] = 0
        self._logged[note.component] += 1
        if self._logged[note.component] <= _LOGGED_PER_INTERVAL:
            more = f" ({note.count} times in this wave)" if note.count > 1 else ""
            log.error(
                "%s, task %d%s: %s\n%s",
                *(note.component, note.task, more, note.error, note.traceback),
            )


class BatchRecorder(Recorder, LoopListener):
    """Turns what a batch loop does into progress and a timeline."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._processed: dict[TransactionAttempt, Processed] = {}
        self._replayed = 0
        self._failures = 0
        self._in_flight: set[int] = set()

    def emitted(self, attempt: TransactionAttempt, replay: bool) -> None:
        self._replayed += replay
        self._in_flight.add(attempt.txid)
        self._note("processing starts", attempt)

    def processed(self, event: Processed) -> None:
        self._processed[event.attempt] = event
        self._note("processing ends", event.attempt)

    def committing(self, attempt: TransactionAttempt) -> None:
        self._note("commit starts", attempt)

    def committed(self, event: Committed) -> None:
        attempt = event.attempt
        self._note("commit ends", attempt)
        self._in_flight.discard(attempt.txid)
        processed = self._processed.pop(attempt, Processed(attempt))
        self._processed = {a: p for a, p in self._processed.items() if a.txid > attempt.txid}
        self.recent.append(
            {
                "name": self._name,
                "txid": attempt.txid,
                "attempt": attempt.attempt_id,
                "timestamp": time.time(),
                "in_flight": len(self._in_flight),
                "replayed": self._replayed,
                "failures": self._failures,
                **processed.facts,
                **event.facts,
            }
        )

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self._failures += 1
        self.note_error(f"batch {attempt}", f"{type(error).__name__}: {error}", "", 1)
        self._note("failed", attempt, error=f"{type(error).__name__}: {error}")

    def _note(self, what: str, attempt: TransactionAttempt, **more: Any) -> None:
        entry = {"event": what, "txid": attempt.txid, "attempt": attempt.attempt_id}
        self.timeline.append({**entry, "time": time.monotonic(), **more})
