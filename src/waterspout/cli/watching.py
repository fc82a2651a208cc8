"""What is to be seen of a run from outside: how far it is, and when it has caught up."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from waterspout._causes import one_line
from waterspout._run import Run
from waterspout.cli.screen import Throttle, counted
from waterspout.coordination.progress import BatchTotals, RunSnapshot, WaveTotals
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology

__all__ = ["BatchWatcher", "ErrorLines", "Watcher", "WaveWatcher", "start_waiting", "watch"]

_RATE_OVER_S = 3.0


class Watcher(ABC):
    """Says in words how far a run is, and each kind of error once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rate = _Rate()
        self._errors = ErrorLines()

    @abstractmethod
    def now(self) -> str:
        """Return how far the run is, and how fast it goes."""

    @abstractmethod
    def total(self) -> str:
        """Return what the run has done in all."""

    def news(self, *, last: bool = False) -> list[str]:
        """Return the kinds of errors since the last call, not too many; `last`: what is left."""
        return self._errors.new(self._run, last=last)

    def afterwards(self) -> list[str]:
        """Say that there are dead letters, of this run or of earlier ones."""
        count, name = len(self._run.dead_letters()), self._run.name
        if not count:
            return []
        kept = counted(count, "dead letter is", "dead letters are")
        return [f"{name}: {kept} kept; see: waterspout dead-letters list {name}"]


class BatchWatcher(Watcher):
    """Tells of a run of batches: of rows that are written, or of tuples that are executed."""

    def __init__(self, run: Run, *, key: str = "written_rows", noun: str = "row") -> None:
        super().__init__(run)
        self._key = key
        self._noun = noun

    def now(self) -> str:
        snapshot = self._run.snapshot()
        # Of what is read, where Spark tells that; it is not told of every source.
        totals = snapshot.totals
        rate = self._rate.at(totals.get("input_rows") or totals[self._key])
        return (
            f"{self._sum(snapshot)}, {len(snapshot.in_flight)} in flight, "
            f"{rate:,.0f} {self._noun}s/s"
        )

    def total(self) -> str:
        return self._sum(self._run.snapshot())

    def _sum(self, snapshot: RunSnapshot) -> str:
        totals = snapshot.totals
        assert isinstance(totals, BatchTotals)
        at = "" if totals.last_txid is None else f" (up to {totals.last_txid})"
        replayed = f", {totals.replayed} replayed" if totals.replayed else ""
        batches = counted(totals.committed, "batch", "batches")
        done = "written" if self._noun == "row" else "executed"
        rows = counted(totals[self._key], self._noun)
        read = f", {counted(totals.input_rows, 'row')} read" if totals.input_rows else ""
        return f"{batches} committed{at}{replayed}{read}, {rows} {done}"


class WaveWatcher(Watcher):
    """Tells of a run of waves."""

    def now(self) -> str:
        snapshot = self._run.snapshot()
        last = snapshot.last_progress or {"pending": 0, "throttled": False}
        speed = f"{last['pending']:,} pending, {self._rate.at(snapshot.totals['executed']):,.0f}"
        throttled = ", throttled: the bolts are behind" if last["throttled"] else ""
        return f"{_sum_of_waves(snapshot)}, {speed} tuples/s{throttled}"

    def total(self) -> str:
        return _sum_of_waves(self._run.snapshot())


def _sum_of_waves(snapshot: RunSnapshot) -> str:
    totals = snapshot.totals
    assert isinstance(totals, WaveTotals)
    parts = [
        counted(totals.waves, "wave"),
        f"{counted(totals.executed, 'tuple')} executed",
        f"{totals.acked:,} acked",
    ]
    if totals.failed:
        parts.append(f"{totals.failed:,} failed")
    if totals.timed_out:
        parts.append(f"{totals.timed_out:,} timed out")
    if totals.dead_letters:
        parts.append(counted(totals.dead_letters, "dead letter"))
    return ", ".join(parts)


class ErrorLines:
    """The errors of components, a line for each kind: what raised, and what it said."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._known: set[tuple[str, str]] = set()
        # Errors that quote their tuples are each of a kind of their own.
        kinds = ("more error of another kind", "more errors of other kinds")
        self._throttle = Throttle(*kinds, clock)

    def new(self, run: Run, *, last: bool = False) -> list[str]:
        """Return the kinds that were not known at the last call, or how many were held back."""
        counts: dict[tuple[str, str], int] = {}
        for entry in run.errors:
            kind = entry["component"], entry["error"]
            counts[kind] = counts.get(kind, 0) + entry["count"]
        new = [kind for kind in counts if kind not in self._known]
        # Not more than the run remembers; what it has forgotten is told again, as new.
        self._known = set(counts)
        lines = self._throttle.held_back() if self._throttle.is_over else []
        for kind in new:
            if self._throttle.passes():
                times = f" ({counts[kind]:,} times)" if counts[kind] > 1 else ""
                lines.append(f"{kind[0]}: {one_line(kind[1])}{times}")
        return [*lines, *self._throttle.held_back()] if last else lines


class _Rate:
    """How fast a number has grown of late."""

    def __init__(self) -> None:
        self._points = deque([(time.monotonic(), 0)])

    def at(self, value: int) -> float:
        """Note the value of now; return by how much a second it has grown."""
        now = time.monotonic()
        while len(self._points) > 1 and now - self._points[1][0] >= _RATE_OVER_S:
            self._points.popleft()
        self._points.append((now, value))
        since, before = self._points[0]
        return (value - before) / max(0.1, now - since)


def watch(topology: Topology | TridentTopology, run: Run) -> Watcher:
    """Return what tells how far a run of a topology is."""
    if isinstance(topology, TridentTopology):
        return BatchWatcher(run)
    if isinstance(topology, TransactionalTopology):
        return BatchWatcher(run, key="executed_tuples", noun="tuple")
    return WaveWatcher(run)


def start_waiting(run: Run) -> threading.Event:
    """Return an event that is set once the run has caught up with its sources, or has ended."""
    done = threading.Event()

    def wait() -> None:
        try:
            run.process_all_available()
        except Exception:  # noqa: S110  (whoever waits asks the run itself what stopped it)
            pass
        finally:
            done.set()

    threading.Thread(target=wait, name="waterspout-wait", daemon=True).start()
    return done
