"""Batches that size themselves, under a load that changes: `make bench-pressure`.

A stream of numbers is counted by key into a store in memory, on the embedded Spark, and the store
can be made slow. Four parts, each checked; `--only` runs some of them:

    step      idle, a burst of ten times the load, a slow database for 20 s, recovery. Drawn into
              docs/images/pressure.svg: sizes, targets, durations, lag, batches in flight
    steady    a backlog: rows per second beside the best of a search over fixed sizes
    latency   a trickle: how long after it came a row has committed, beside what a batch costs
    memory    a source a hundred times faster than its store: staged rows, and the memory of the
              driver and its JVM
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.drawing import Panel, draw
from benchmarks.pressure_world import Arrivals, SlowState, Store
from waterspout import Config, submit
from waterspout.events import BatchCommitted, BatchProgress, BatchSized
from waterspout.trident import Count, TridentTopology, expr

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "pressure.svg"
KEYS = 20_000


@dataclass
class Watched:
    """What a run has told, with the time since it began."""

    began: float
    progress: list[tuple[float, BatchProgress]] = field(default_factory=list)
    decisions: list[tuple[float, Any]] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)

    def hear(self, event: Any) -> None:
        at = time.monotonic() - self.began
        if isinstance(event, BatchCommitted):
            self.progress.append((at, event.progress))
        elif isinstance(event, BatchSized):
            self.decisions.append((at, event.sizing))

    def rate(self, since: float, until: float) -> float:
        """Rows per second between the first and the last commit of a stretch."""
        found = [(at, p.input_rows or 0) for at, p in self.progress if since <= at <= until]
        if len(found) < 2:
            return 0.0
        return sum(n for _, n in found[1:]) / (found[-1][0] - found[0][0])

    def reversals(self) -> int:
        """How often the target has changed its direction."""
        targets = [sizing.targets.get("rows") for _, sizing in self.decisions]
        known = [target for target in targets if target]
        rises = [b > a for a, b in pairwise(known) if a != b]
        return sum(a != b for a, b in pairwise(rises))


def watched(
    spout: Arrivals,
    store: Store,
    seconds: float,
    *,
    batches: int = 0,
    at: Sequence[tuple[float, Callable[[], None]]] = (),
    key: str = f"pmod(xxhash64(sha2(cast(value as string), 256)), {KEYS})",
    **conf: Any,
) -> Watched:
    """Run for so many seconds, doing things at some of them; return what was told.

    With a number of batches: at most that long, until so many have committed.
    """
    topology = TridentTopology(f"pressure-{time.time_ns()}")
    rows = topology.new_stream("rows", spout)
    (
        rows.each("value", expr(key), out="key bigint")
        .group_by("key")
        .persistent_aggregate(SlowState(store), Count(), out="n")
        .parallelism_hint(1)
    )
    with tempfile.TemporaryDirectory(prefix="waterspout-pressure-") as home:
        run = submit(topology, config=Config(home=home, **conf))
        told = Watched(spout.began)
        run.subscribe(told.hear)
        left = list(at)
        while (now := time.monotonic() - told.began) < seconds:
            if batches and len(told.progress) >= batches:
                break
            if left and now >= left[0][0]:
                left.pop(0)[1]()
            told.memory.append((now, resident_mb()))
            threading.Event().wait(0.25)
        run.stop()
    return told


def resident_mb() -> float:
    """Return the memory of this process and of its children, the JVM among them."""
    total = _resident_kb(os.getpid())
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid():
            total += _resident_kb(int(path.parent.name))
    return total / 1024


def _resident_kb(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def step(aim_s: float) -> dict[str, Any]:
    """Idle, a burst, a slow database, recovery."""
    idle, until = 2_000.0, 160.0
    spout = Arrivals([(30, idle), (60, 10 * idle), (1e9, idle)])
    store = Store()

    def slow() -> None:
        store.commit_s, store.row_s = 0.5, 8e-4

    def well() -> None:
        store.commit_s = store.row_s = 0.0

    told = watched(
        spout, store, until, at=[(80, slow), (100, well)], batch_interval_millis=1000 * aim_s
    )
    _draw(told, until)
    quiet = [p.processing_s + p.commit_s for at, p in told.progress if 10 < at < 30]
    return {
        "batches": len(told.progress),
        "changes of direction": told.reversals(),
        "decisions": [(round(at, 1), sizing.reason) for at, sizing in told.decisions],
        "a batch while idle, s": round(statistics.median(quiet), 3) if quiet else None,
        "lag at the end, rows": sum(told.progress[-1][1].lag.get("rows", {}).values()),
        "largest lag, rows": max(sum(p.lag.get("rows", {}).values()) for _, p in told.progress),
    }


def _draw(told: Watched, until: float) -> None:
    progress = told.progress
    panels = [
        Panel("rows of a batch", {"rows": [(at, p.input_rows or 0) for at, p in progress]}),
        Panel(
            "seconds",
            {
                "processing": [(at, p.processing_s) for at, p in progress],
                "commit": [(at, p.commit_s) for at, p in progress],
            },
        ),
        Panel(
            "rows that wait at the spout",
            {"lag": [(at, sum(p.lag.get("rows", {}).values())) for at, p in progress]},
        ),
        Panel(
            "batches in flight",
            {"allowed": [(at, p.max_in_flight) for at, p in progress]},
            frozenset({"allowed"}),
        ),
    ]
    targets = [(at, p.targets["rows"]) for at, p in progress if "rows" in p.targets]
    panels[0] = Panel(
        panels[0].title, {**panels[0].lines, "target": targets}, frozenset({"target"})
    )
    spans = {
        "idle": (0, 30, "#2e9d4f"),
        "ten times the load": (30, 60, "#fb8c00"),
        "slow database": (80, 100, "#d32f2f"),
    }
    draw("Batches that size themselves", panels, until, spans, PICTURE)


def steady(aim_s: float, seconds: float) -> dict[str, Any]:
    """A backlog, beside fixed sizes."""
    endless = [(1e9, 1e8)]
    rates, skip = {}, seconds / 2
    for size in (100_000, 1_000_000, 3_000_000, 10_000_000):
        told = watched(Arrivals(endless, size), Store(), seconds, max_spout_pending=2)
        rates[size] = told.rate(skip, seconds)
    # Steady is what it is once the size has been found; how long that takes is told as well.
    whole = 4 * seconds
    told = watched(Arrivals(endless), Store(), whole, batch_interval_millis=1000 * aim_s)
    own = told.rate(whole - seconds / 2, whole)
    settled = [at for at, _ in told.decisions if at < whole - seconds / 2]
    best = max(rates, key=lambda size: rates[size])
    return {
        "rows/s by fixed size": {size: round(rate) for size, rate in rates.items()},
        "rows/s by itself": round(own),
        "of the best fixed size": round(own / max(rates[best], 1e-9), 2),
        "last change before that, s": round(settled[-1]) if settled else None,
        "decided at the end": told.decisions[-1][1].reason if told.decisions else None,
        "changes of direction": told.reversals(),
    }


def latency(seconds: float) -> dict[str, Any]:
    """A trickle of rows: from the moment a row is due to its commit."""
    spout = Arrivals([(1e9, 20.0)])
    told = watched(spout, Store(), seconds)
    late = [p for at, p in told.progress if at > seconds / 3]
    cost = statistics.median(p.processing_s + p.commit_s for p in late)
    # A row waits on average for half of the batch before its own, and then for its own.
    turns = [b - a for (a, _), (b, _) in pairwise(told.progress) if a > seconds / 3]
    waited = statistics.median(turns) / 2 + cost
    return {
        "cost of a batch, s": round(cost, 3),
        "latency of a row, s": round(waited, 3),
        "latency in costs of a batch": round(waited / cost, 2),
    }


def memory(seconds: float) -> dict[str, Any]:
    """A source a hundred times faster than its store."""
    store = Store(row_s=1e-4, keeps=False)  # 10,000 rows a second
    told = watched(Arrivals([(1e9, 1e6)]), store, seconds, key="value")
    half = [mb for at, mb in told.memory if seconds / 3 < at < 2 * seconds / 3]
    end = [mb for at, mb in told.memory if at >= 2 * seconds / 3]
    return {
        "rows that came": Arrivals([(1e9, 1e6)]).due(seconds),
        "rows that wait at the source": sum(told.progress[-1][1].lag.get("rows", {}).values()),
        "most staged rows of a batch": max(p.staged_rows for _, p in told.progress),
        "memory in the second third, MB": round(max(half)),
        "memory in the last third, MB": round(max(end)),
    }


def main() -> None:
    """Run the parts and print what they found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="step,steady,latency,memory")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run but the step")
    parser.add_argument("--aim", type=float, default=3.0, help="batch_interval, in seconds")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "step": lambda: step(arguments.aim),
        "steady": lambda: steady(arguments.aim, arguments.seconds),
        "latency": lambda: latency(arguments.seconds),
        "memory": lambda: memory(arguments.seconds),
    }
    # The JVM compiles while the first batches run.
    watched(Arrivals([(1e9, 1e6)], 200_000), Store(), 180, batches=12, max_spout_pending=2)
    for name in arguments.only.split(","):
        print(name, json.dumps(parts[name](), indent=2), flush=True)


if __name__ == "__main__":
    main()
