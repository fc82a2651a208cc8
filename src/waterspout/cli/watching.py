"""What is to be seen of a run from outside: how far it is, and when it has caught up."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from waterspout.run import Run

__all__ = ["Rate", "Seen", "Watcher", "start_waiting"]


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a run is."""

    txid: int | None = None
    """The batch committed last by this run; None before the first."""

    batches: int = 0
    """Batches committed by this run."""

    in_flight: int = 0
    replayed: int = 0
    rows: int = 0
    """Rows that went into states."""


class Watcher:
    """Adds up the progress of a run. Look often: a run remembers only its latest batches."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = Seen()

    def look(self) -> Seen:
        """Return how far the run is now."""
        before = self._seen
        last = before.txid or 0
        new = [entry for entry in self._run.recent_progress if entry["txid"] > last]
        self._seen = Seen(
            txid=new[-1]["txid"] if new else before.txid,
            batches=before.batches + len(new),
            in_flight=self._in_flight(),
            replayed=new[-1]["replayed"] if new else before.replayed,
            rows=before.rows + sum(entry.get("written_rows", 0) for entry in new),
        )
        return self._seen

    def _in_flight(self) -> int:
        open_batches: set[int] = set()
        for entry in self._run.timeline:
            if entry["event"] == "processing starts":
                open_batches.add(entry["txid"])
            elif entry["event"] == "commit ends":
                open_batches.discard(entry["txid"])
        return len(open_batches)


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
