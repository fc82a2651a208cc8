"""`RollingCounts`: how much was counted in the last minutes, hours, the last day. No clock in here.

A window is divided into buckets. The one that time is in is filled; when time goes on to the next,
the oldest is forgotten. So a window of ten minutes tells of the last 9:40 to 10:00.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

__all__ = ["BUCKETS", "SPANS", "RollingCounts"]

K = TypeVar("K", bound=Hashable)

SPANS = (600, 10_800, 86_400)
"""The windows that Storm's UI has, in seconds; all time is the fourth."""

BUCKETS = 30


class RollingCounts(Generic[K]):
    """Sums by key, over each span and over all time.

    Memory is bounded by the number of keys, however long it goes on. Times may come from any clock;
    one that goes back is taken for standing still.

    >>> counts = RollingCounts(spans=(60,), buckets=3)
    >>> counts.add(0.0, {"executed": 5})
    >>> counts.add(30.0, {"executed": 2, "failed": 1})
    >>> counts.totals(59.9, 60)
    {'executed': 7, 'failed': 1}
    >>> counts.totals(60.0, 60)
    {'executed': 2, 'failed': 1}
    >>> counts.totals(1e9, None)
    {'executed': 7, 'failed': 1}
    """

    def __init__(self, spans: Sequence[float] = SPANS, buckets: int = BUCKETS) -> None:
        self._buckets = buckets
        self._widths = {span: span / buckets for span in spans}
        self._kept: dict[float, deque[tuple[int, dict[K, float]]]] = {s: deque() for s in spans}
        self._ever: dict[K, float] = {}
        self._latest = float("-inf")

    def add(self, now: float, counts: Mapping[K, float]) -> None:
        """Count something that happened at this time."""
        now = self._latest = max(now, self._latest)
        _add(self._ever, counts)
        for span, kept in self._kept.items():
            index = self._index(now, span)
            if not kept or kept[-1][0] != index:
                kept.append((index, {}))
                while kept[0][0] <= index - self._buckets:
                    kept.popleft()
            _add(kept[-1][1], counts)

    def totals(self, now: float, span: float | None) -> dict[K, float]:
        """Return the sums of the last `span` seconds, or of all time; each key that has one."""
        if span is None:
            return dict(self._ever)
        first = self._index(max(now, self._latest), span) - self._buckets
        total: dict[K, float] = {}
        for index, counts in self._kept[span]:
            if index > first:
                _add(total, counts)
        return total

    def covers_s(self, now: float, span: float) -> float:
        """Return how many seconds the sums of a span are of, if it began long ago."""
        now = max(now, self._latest)
        return now - (self._index(now, span) - self._buckets + 1) * self._widths[span]

    def _index(self, now: float, span: float) -> int:
        return int(now // self._widths[span])


def _add(into: dict[K, float], counts: Mapping[K, float]) -> None:
    for key, count in counts.items():
        into[key] = into.get(key, 0) + count
