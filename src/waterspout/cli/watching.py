"""What is to be seen of a run from outside: how far it is, and when it has caught up."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from waterspout.cli.failures import one_line
from waterspout.cli.screen import counted
from waterspout.cli.throttling import Throttle
from waterspout.run import Run

__all__ = [
    "BatchWatcher",
    "BatchesSeen",
    "ErrorLines",
    "Rate",
    "Watcher",
    "WaveWatcher",
    "WavesSeen",
    "start_waiting",
]


class Watcher(ABC):
    """Says in words how far a run is. Ask often: a run remembers only its latest progress."""

    @abstractmethod
    def now(self) -> str:
        """Return how far the run is, and how fast it goes."""

    @abstractmethod
    def total(self) -> str:
        """Return what the run has done in all."""

    def news(self, *, last: bool = False) -> list[str]:
        """Return lines worth keeping since the last call, not too many; `last`: what is left."""
        return []

    def afterwards(self) -> list[str]:
        """Return what to know of a run that has ended well."""
        return []


@dataclass(frozen=True, slots=True)
class BatchesSeen:
    """How far a run of batches is."""

    txid: int | None = None
    """The batch committed last by this run; None before the first."""

    batches: int = 0
    """Batches committed by this run."""

    in_flight: int = 0
    replayed: int = 0
    rows: int = 0
    """Rows that went into states, or tuples that were executed."""


class BatchWatcher(Watcher):
    """Adds up the progress of a run of batches: of rows that are written, or tuples executed."""

    def __init__(self, run: Run, *, fact: str = "written_rows", noun: str = "row") -> None:
        self._run = run
        self._fact = fact
        self._noun = noun
        self._seen = BatchesSeen()
        self._rate = Rate()

    def now(self) -> str:
        """Return the batches and rows, what is in flight, and rows a second."""
        seen = self.look()
        speed = f"{seen.in_flight} in flight, {self._rate.at(seen.rows):,.0f} {self._noun}s/s"
        return f"{self._sum(seen)}, {speed}"

    def total(self) -> str:
        """Return the batches and rows."""
        return self._sum(self.look())

    def look(self) -> BatchesSeen:
        """Return how far the run is now, as numbers."""
        before = self._seen
        last = before.txid or 0
        new = [entry for entry in self._run.recent_progress if entry["txid"] > last]
        self._seen = BatchesSeen(
            txid=new[-1]["txid"] if new else before.txid,
            batches=before.batches + len(new),
            in_flight=self._in_flight(),
            replayed=new[-1]["replayed"] if new else before.replayed,
            rows=before.rows + sum(entry.get(self._fact, 0) for entry in new),
        )
        return self._seen

    def _sum(self, seen: BatchesSeen) -> str:
        at = "" if seen.txid is None else f" (up to {seen.txid})"
        replayed = f", {seen.replayed} replayed" if seen.replayed else ""
        batches = counted(seen.batches, "batch", "batches")
        done = "written" if self._noun == "row" else "executed"
        return f"{batches} committed{at}{replayed}, {counted(seen.rows, self._noun)} {done}"

    def _in_flight(self) -> int:
        open_batches: set[int] = set()
        for entry in self._run.timeline:
            if entry["event"] == "processing starts":
                open_batches.add(entry["txid"])
            elif entry["event"] == "commit ends":
                open_batches.discard(entry["txid"])
        return len(open_batches)


@dataclass(frozen=True, slots=True)
class WavesSeen:
    """How far a run of waves is."""

    last: int = 0
    """The number of the newest wave; one that broke up into pieces has left a gap."""

    waves: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    dead_letters: int = 0
    pending: int = 0
    throttled: bool = False


class WaveWatcher(Watcher):
    """Adds up the progress of a run of waves, and tells of each kind of error once."""

    def __init__(self, run: Run, letters: Callable[[], int] = lambda: 0) -> None:
        self._run = run
        self._letters = letters
        self._seen = WavesSeen()
        self._rate = Rate()
        self._errors = ErrorLines()

    def now(self) -> str:
        """Return the waves, tuples and messages, what is pending, and tuples a second."""
        seen = self.look()
        speed = f"{seen.pending:,} pending, {self._rate.at(seen.executed):,.0f} tuples/s"
        throttled = ", throttled: the bolts are behind" if seen.throttled else ""
        return f"{_sum_of_waves(seen)}, {speed}{throttled}"

    def total(self) -> str:
        """Return the waves, tuples and messages."""
        return _sum_of_waves(self.look())

    def news(self, *, last: bool = False) -> list[str]:
        """Return a line for each new kind of error of a component."""
        return self._errors.new(self._run, last=last)

    def afterwards(self) -> list[str]:
        """Say that there are dead letters, of this run or of earlier ones."""
        count, name = self._letters(), self._run.name
        if not count:
            return []
        kept = counted(count, "dead letter is", "dead letters are")
        return [f"{name}: {kept} kept; see: waterspout dead-letters list {name}"]

    def look(self) -> WavesSeen:
        """Return how far the run is now, as numbers."""
        before = self._seen
        new = [entry for entry in self._run.recent_progress if entry["wave"] > before.last]
        if new:
            newest = new[-1]
            self._seen = WavesSeen(
                last=newest["wave"],
                waves=before.waves + len(new),
                executed=before.executed + sum(sum(e["executed"].values()) for e in new),
                acked=before.acked + sum(entry["acked"] for entry in new),
                failed=before.failed + sum(entry["failed"] for entry in new),
                timed_out=newest["timed_out"],
                dead_letters=newest["dead_letters"],
                pending=newest["pending"],
                throttled=newest["throttled"],
            )
        return self._seen


def _sum_of_waves(seen: WavesSeen) -> str:
    parts = [
        counted(seen.waves, "wave"),
        f"{counted(seen.executed, 'tuple')} executed",
        f"{seen.acked:,} acked",
    ]
    if seen.failed:
        parts.append(f"{seen.failed:,} failed")
    if seen.timed_out:
        parts.append(f"{seen.timed_out:,} timed out")
    if seen.dead_letters:
        parts.append(counted(seen.dead_letters, "dead letter"))
    return ", ".join(parts)


class ErrorLines:
    """The errors of components, a line for each kind: what raised, and what it said."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._known: set[tuple[str, str]] = set()
        # Errors that quote their tuples are each of a kind of their own.
        self._throttle = Throttle(clock)

    def new(self, run: Run, *, last: bool = False) -> list[str]:
        """Return the kinds that were not known at the last call, or how many were held back."""
        counts: dict[tuple[str, str], int] = {}
        for entry in run.errors:
            kind = entry["component"], entry["error"]
            counts[kind] = counts.get(kind, 0) + entry["count"]
        new = [kind for kind in counts if kind not in self._known]
        # Not more than the run remembers; what it has forgotten is told again, as new.
        self._known = set(counts)
        lines = self._held_back() if self._throttle.is_over else []
        for kind in new:
            if self._throttle.passes():
                times = f" ({counts[kind]:,} times)" if counts[kind] > 1 else ""
                lines.append(f"{kind[0]}: {one_line(kind[1])}{times}")
        return [*lines, *self._held_back()] if last else lines

    def _held_back(self) -> list[str]:
        count = self._throttle.take_held_back()
        what = counted(count, "more error of another kind", "more errors of other kinds")
        return [f"{what}; the log has them"] if count else []


class Rate:
    """How fast a number has grown of late."""

    def __init__(self, start: int = 0, *, over_s: float = 3.0) -> None:
        self._over_s = over_s
        self._points = deque([(time.monotonic(), start)])

    def at(self, value: int) -> float:
        """Note the value of now; return by how much a second it has grown."""
        now = time.monotonic()
        while len(self._points) > 1 and now - self._points[1][0] >= self._over_s:
            self._points.popleft()
        self._points.append((now, value))
        since, before = self._points[0]
        return (value - before) / max(0.1, now - since)


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
