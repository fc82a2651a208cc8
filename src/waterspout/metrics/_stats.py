"""`RunStats`: what a run has done, by component and over time, as plain values for JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from waterspout._causes import located, one_line
from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchEmitted,
    BatchFailed,
    ErrorReported,
    Event,
    MessageDeadLettered,
    ProgressBetweenWaves,
    SpoutPaused,
    StateWritten,
    TreesDecided,
    TuplesCounted,
    WaveFinished,
    WaveRetried,
)
from waterspout.coordination.progress import BatchProgress, WaveProgress
from waterspout.metrics._attempts import AttemptLog
from waterspout.metrics._series import PressureSeries
from waterspout.metrics._tables import (
    BY_INPUT,
    Counted,
    Key,
    Parts,
    component_tables,
    is_system,
    mean_ms,
    parts_of,
)
from waterspout.metrics._windows import SPANS, RollingCounts
from waterspout.waves.counting import TaskCounts

if TYPE_CHECKING:
    from waterspout.coordination.run import Run
    from waterspout.topology._graph import Topology
    from waterspout.trident.plan.plan import Plan

__all__ = ["RunStats", "Window", "stats_of"]

Window = int | Literal["all"]
"""How far back: 600, 10800 or 86400 seconds, or "all"."""

_of_runs: WeakKeyDictionary[Run, RunStats] = WeakKeyDictionary()
_lock = threading.Lock()


def stats_of(run: Run, described: Topology | Plan | None = None) -> RunStats:
    """Return the statistics of a run: the same object for everyone who asks.

    With what it runs, tables also have the components that have done nothing yet.
    """
    with _lock:
        if run not in _of_runs:
            _of_runs[run] = RunStats(run)
        stats = _of_runs[run]
    if described is not None:
        stats.know(parts_of(described))
    return stats


class RunStats:
    """Listens to a run, and counts. May be asked from any thread.

    Everything is counted, nothing is sampled. What an attempt at a batch has done is counted when
    the batch has committed, and of a wave when it went through: a replay counts once, and the lost
    attempt as a failure. Memory is bounded, however long the run.
    """

    def __init__(
        self,
        run: Run | None = None,
        *,
        parts: Parts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._parts = parts or Parts()
        self._lock = threading.Lock()
        self._counts: RollingCounts[Key] = RollingCounts()
        self._attempts = AttemptLog()
        self._series = PressureSeries()
        self._errors: dict[str, dict[str, Any]] = {}
        self._last: BatchProgress | WaveProgress | None = None
        self._emitted_at: dict[int, float] = {}
        if run is not None:
            run.subscribe(self)

    def __call__(self, event: Event) -> None:
        """Take in an event of the run."""
        with self._lock:
            self._attempts.note(event)
            self._note(event)

    def know(self, parts: Parts) -> None:
        """Take in which components there are."""
        self._parts = parts

    def totals(self, window: Window = "all") -> dict[str, Any]:
        """Return what the whole topology has done in a window.

        Keys: window; covers_s (how many seconds the numbers are of); emitted, transferred, executed
        (tuples, without those of ackers and ticks); acked, failed, timed_out (messages of spouts);
        complete_ms; dead_letters; waves, waves_retried; batches (committed), attempts_failed,
        attempts_cancelled, replays; batch_ms (from the first emission of a batch to its commit),
        processing_ms, commit_ms; input_rows, late_rows, written_rows.
        """
        counted, covers_s = self._counted(window)
        acked, batches = counted.sum("tree_acked"), counted.of("batches")
        counts = {name: int(counted.of(name)) for name in _PLAIN}
        return {
            "window": window,
            "covers_s": covers_s,
            **{what: _of_users(counted, what) for what in ("emitted", "transferred", "executed")},
            "acked": int(acked),
            "failed": int(counted.sum("tree_failed")),
            "timed_out": int(counted.sum("timed_out")),
            "complete_ms": mean_ms(counted.sum("complete_s"), acked),
            **counts,
            "batch_ms": mean_ms(counted.of("batch_s"), batches),
            "processing_ms": mean_ms(counted.of("processing_s"), batches),
            "commit_ms": mean_ms(counted.of("commit_s"), batches),
            "written_rows": int(counted.sum("rows")),
        }

    def components(self, window: Window = "all") -> dict[str, Any]:
        """Return the tables of spouts, bolts, states and edges for a window.

        Keys: window; covers_s; spouts, bolts, states, edges: lists of rows.

        A spout has id, system (its name begins with "__"), tasks (None: not known), last_error,
        error_time; emitted, transferred; acked, failed, timed_out (messages), complete_ms; rows
        (Trident: rows that it gave; None where that is not told), per_s, outputs (by stream:
        emitted, transferred).

        A bolt has id, system, tasks, last_error, error_time; emitted, transferred, executed,
        execute_ms, process_ms, finish_ms (of batch bolts), acked, failed (tuples); capacity (of the
        busiest task in the last ten minutes; about 1.0 is a bottleneck), per_s; inputs (by
        component and stream: system, executed, execute_ms, process_ms, acked, failed), outputs,
        by_task (task, executed, execute_ms, capacity).

        A state has id, rows (written; None for those of bolts, which do not tell), batches, per_s.
        An edge has source, target, stream, tuples, per_s.
        """
        counted, covers_s = self._counted(window)
        recent, recent_s = self._counted(SPANS[0])
        with self._lock:
            errors = {name: dict(error) for name, error in self._errors.items()}
        tables = component_tables(
            counted, recent, self._parts, errors, covers_s=covers_s, recent_s=recent_s
        )
        return {"window": window, "covers_s": covers_s, **tables}

    def batches(self, limit: int = 100) -> dict[str, Any]:
        """Return the newest attempts at batches, oldest first, and the commits of their states.

        Keys: attempts; states (all names, in order).

        An attempt has txid, attempt, replay, why (the reason of a replay), outcome ("in flight",
        "committed", "failed", "cancelled"), error; the times emitted, processed, begun,
        committing, marked, ended (in seconds since 1970, None before); plan_s, processing_s,
        commit_s, input_rows, written_rows, executed_tuples; and states: by name the times claimed,
        written and settled, and rows.
        """
        with self._lock:
            attempts = self._attempts.newest(limit)
        states = dict.fromkeys([*self._parts.states, *(s for a in attempts for s in a["states"])])
        return {"attempts": attempts, "states": list(states)}

    def pressure(self, window: Window = SPANS[0]) -> dict[str, Any]:
        """Return how sizes, durations and what waits have changed over time.

        Keys: window; step_s (between two points); points; now (the newest values, {} before the
        first); reason (why the next batches or the next wave are as large as they are, or the
        spouts wait).

        A point has t (seconds since 1970), count (batches or waves that ended), size (their mean
        rows or tuples), size_max, pending (batches in flight, or messages), lag (by spout),
        throttled; of batches processing_s, commit_s, max_in_flight, and by spout, in its own unit,
        sizes (what it gave) and targets (what it is asked for); of waves wave_s, busy_s, backlog,
        next_size. Where nothing ended there is no point.
        """
        span = None if window == "all" else window
        with self._lock:
            step_s, points = self._series.points(_checked(span), time.time())
            last = self._last
        now = points[-1] if points else {}
        reason = None if last is None else _reason(last)
        return {"window": window, "step_s": step_s, "points": points, "now": now, "reason": reason}

    def _counted(self, window: Window) -> tuple[Counted, float]:
        """Return the counts of a window, and how many seconds they are of."""
        span = _checked(None if window == "all" else window)
        now = self._clock()
        with self._lock:
            totals = self._counts.totals(now, span)
            up_s = now - self._began
            covers_s = up_s if span is None else min(up_s, self._counts.covers_s(now, span))
        return Counted(totals), covers_s

    def _add(self, counts: Mapping[Key, float]) -> None:
        self._counts.add(self._clock(), {key: n for key, n in counts.items() if n})

    def _note(self, event: Event) -> None:
        match event:
            case TreesDecided(component=spout):
                self._add(
                    {
                        ("spout", spout): 1,
                        ("tree_acked", spout): event.acked,
                        ("tree_failed", spout): event.failed,
                        ("timed_out", spout): event.timed_out,
                        ("complete_s", spout): event.complete_s,
                    }
                )
            case TuplesCounted(tasks=tasks):
                for each in tasks:
                    self._add(_of_task(each))
            case WaveFinished(progress=progress):
                self._add({("waves",): 1})
                self._shown(progress)
            case ProgressBetweenWaves(progress=progress):
                self._shown(progress)
            case WaveRetried():
                self._add({("waves_retried",): 1})
            case MessageDeadLettered():
                self._add({("dead_letters",): 1})
            case BatchEmitted(attempt=attempt):
                self._add({("replays",): event.is_replay})
                self._emitted_at.setdefault(attempt.txid, event.timestamp)
            case BatchFailed():
                self._add({("attempts_failed",): 1})
            case BatchCancelled():
                self._add({("attempts_cancelled",): 1})
            case StateWritten(state=state, rows=rows):
                self._add({("rows", state): rows, ("told", state): 1})
            case BatchCommitted(attempt=attempt, progress=progress):
                for state in self._attempts.written(attempt):
                    self._add({("writes", state): 1})
                since = self._emitted_at.pop(attempt.txid, event.timestamp)
                self._add(
                    {
                        ("batches",): 1,
                        ("batch_s",): max(0.0, event.timestamp - since),
                        ("processing_s",): progress.processing_s,
                        ("commit_s",): progress.commit_s,
                        ("input_rows",): progress.input_rows or 0,
                        ("late_rows",): sum(progress.late_rows.values()),
                        **{("spout", name): 1 for name in progress.inputs},
                        **{("input_rows", name): n for name, n in progress.inputs.items()},
                        **{("tells", name): 1 for name in progress.inputs},
                    }
                )
                self._shown(progress)
            case ErrorReported(component=component, timestamp=now):
                text = one_line(located(event.error, event.traceback))
                self._errors[component] = {"error": text, "last": now}
            case SpoutPaused(component=component, error=text, timestamp=now):
                self._errors[component] = {"error": text, "last": now}

    def _shown(self, progress: BatchProgress | WaveProgress) -> None:
        self._last = progress
        self._series.add(progress)


_PLAIN = (
    *("dead_letters", "waves", "waves_retried", "batches", "attempts_failed"),
    *("attempts_cancelled", "replays", "input_rows", "late_rows"),
)


def _of_task(counts: TaskCounts) -> dict[Key, float]:
    """Return what a task has done, by what is counted."""
    id, task = counts.component, str(counts.task)
    found: dict[Key, float] = {}
    for stream, n in counts.emitted.items():
        found["emitted", id, stream] = n
    for stream, n in counts.transferred.items():
        found["transferred", id, stream] = n
    for (source, stream), each in counts.inputs.items():
        for what in BY_INPUT:
            found[what, id, source, stream] = getattr(each, what)
    if counts.inputs or counts.finished:
        found["bolt", id] = 1
        found["task_executed", id, task] = counts.executed
        found["task_s", id, task] = counts.busy_s
        found["finished", id] = counts.finished
        found["finish_s", id] = counts.finish_s
    else:
        found["spout", id] = 1
    return found


def _of_users(counted: Counted, what: str) -> int:
    """Return a sum over the components and streams of the user."""
    return int(
        sum(
            counted.of(*key)
            for key in counted.keys(what)
            if not is_system(key[1]) and not is_system(key[-1])
        )
    )


def _checked(span: float | None) -> float | None:
    if span is not None and span not in SPANS:
        known = ", ".join(map(str, SPANS))
        raise ValueError(f"no window of {span} s; there are {known} and 'all'")
    return span


def _reason(progress: BatchProgress | WaveProgress) -> str | None:
    """Say why the next batch or wave is as large as it is, or why spouts wait."""
    if isinstance(progress, BatchProgress):
        return progress.reason or None
    if progress.throttled:
        return (
            f"spouts wait: {progress.backlog:,} tuples are left from earlier waves, and the next "
            f"takes {progress.next_wave_tuples:,}"
        )
    if not progress.tuples:
        return "nothing was executed since the last look"
    return (
        f"the last wave took {progress.wave_s:.2f} s for {progress.tuples:,} tuples: the next may "
        f"begin with {progress.next_wave_tuples:,}"
    )
