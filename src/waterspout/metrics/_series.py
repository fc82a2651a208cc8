"""`PressureSeries`: sizes, durations and what waits, over time. No clock in here.

Batches, or waves, that end in the same second (or minute) are one point. So it does not grow with
their number, and a day is 1,440 points.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from waterspout.coordination.progress import BatchProgress, WaveProgress

__all__ = ["PressureSeries"]

_STEPS = ((1, 600), (60, 1_440))
"""Seconds between two points, and how many points are kept."""


@dataclass(slots=True)
class _Point:
    """What has ended in one step of time."""

    index: int
    count: int = 0
    sizes: int = 0
    size_max: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    throttled: bool = False

    def shown(self, step_s: int) -> dict[str, Any]:
        means = {name: total / self.count for name, total in self.seconds.items()}
        return {
            "t": self.index * step_s,
            "count": self.count,
            "size": self.sizes / self.count,
            "size_max": self.size_max,
            **means,
            **self.last,
            "throttled": self.throttled,
        }


class PressureSeries:
    """Points of the latest time, once by the second and once by the minute."""

    def __init__(self) -> None:
        self._points: dict[int, deque[_Point]] = {s: deque(maxlen=n) for s, n in _STEPS}

    def add(self, progress: BatchProgress | WaveProgress) -> None:
        """Take in a batch that was committed, or a wave that is over."""
        match progress:
            case BatchProgress():
                size = progress.executed_tuples or progress.input_rows or progress.staged_rows
                names = ("processing_s", "commit_s")
                throttled = progress.throttled
                last = {
                    "pending": progress.in_flight,
                    "lag": _plain(progress.lag),
                    "max_in_flight": progress.max_in_flight,
                    "sizes": dict(progress.sizes),
                    "targets": dict(progress.targets),
                }
            case WaveProgress():
                size, names, throttled = progress.tuples, ("wave_s", "busy_s"), progress.throttled
                last = {
                    "pending": progress.pending,
                    "lag": _plain(progress.lag),
                    "backlog": progress.backlog,
                    "next_size": progress.next_wave_tuples,
                }
        for step_s, points in self._points.items():
            index = int(progress.timestamp // step_s)
            # A clock that goes back is taken for standing still.
            if not points or points[-1].index < index:
                points.append(_Point(index))
            point = points[-1]
            point.count += 1
            point.sizes += size
            point.size_max = max(point.size_max, size)
            for name in names:
                point.seconds[name] = point.seconds.get(name, 0.0) + progress[name]
            point.last = last
            point.throttled = point.throttled or throttled

    def points(self, span: float | None, until: float) -> tuple[int, list[dict[str, Any]]]:
        """Return the step in seconds, and the points of the last `span` seconds, oldest first."""
        step_s = next((s for s, n in _STEPS if span is not None and span <= s * n), _STEPS[-1][0])
        begin = float("-inf") if span is None else (until - span) / step_s
        return step_s, [p.shown(step_s) for p in self._points[step_s] if p.index > begin]


def _plain(lag: Any) -> dict[str, dict[str, int]]:
    return {spout: dict(counts) for spout, counts in lag.items()}
