"""Windows over event time as arithmetic: panes, the windows that hold them, the watermark.

A pane is the longest stretch of time that every window holds whole or not at all. Times are whole
numbers in the unit of the event-time field: microseconds of a timestamp, milliseconds of a bigint.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass

from waterspout.errors import TopologyError
from waterspout.topology.windowing.settings import Seconds, duration

__all__ = ["EventTime", "Panes"]

_UNITS_PER_MILLI = {"timestamp": 1000, "bigint": 1}


@dataclass(frozen=True, slots=True)
class EventTime:
    """Which field says when a row happened, and how long to wait for rows that come late."""

    field: str
    kind: str
    """The type of the field: `timestamp`, or `bigint` for milliseconds since 1970."""
    lag: int
    """How far the watermark stays behind the latest time, in the field's unit."""

    @classmethod
    def of(
        cls, field: str, kind: str | None, lag: dt.timedelta | Seconds | None, where: str
    ) -> EventTime:
        """Check a field and a lag, and return them."""
        if kind not in _UNITS_PER_MILLI:
            raise TopologyError(
                f"{where}: event_time is a timestamp, or a bigint of milliseconds since 1970, but "
                f"{field!r} is {kind}; make one of it before, with each() or an expression"
            )
        no_lag = lag is None or (isinstance(lag, dt.timedelta) and lag == dt.timedelta(0))
        millis = 0 if no_lag else duration(lag, f"{where}: lag").millis
        return cls(field, kind, millis * _UNITS_PER_MILLI[kind])

    def units(self, millis: int) -> int:
        """Return milliseconds in the field's unit."""
        return millis * _UNITS_PER_MILLI[self.kind]

    def watermark(self, before: int | None, latest: int | None) -> int | None:
        """Return the watermark behind a batch: it never goes back.

        A pure function of the batches so far, so a replay gives the same.

        >>> EventTime("at", "bigint", lag=10).watermark(before=95, latest=100)
        95
        """
        if latest is None:
            return before
        return latest - self.lag if before is None else max(before, latest - self.lag)


@dataclass(frozen=True, slots=True)
class Panes:
    """Windows of one length that end at every multiple of a slide, cut into panes.

    >>> panes = Panes(span=10, step=4)
    >>> panes.size, list(panes.ends(6)), panes.last_end(6)
    (2, [8, 12, 16], 16)
    """

    span: int
    step: int

    @property
    def size(self) -> int:
        """The length of a pane."""
        return math.gcd(self.span, self.step)

    def ends(self, pane: int) -> range:
        """Return the ends of the windows that hold a pane, which is known by its start."""
        return range(self.next_end(pane), pane + self.span + 1, self.step)

    def next_end(self, time: int) -> int:
        """Return the first end of a window after a time."""
        return (time // self.step + 1) * self.step

    def last_end(self, pane: int) -> int:
        """Return the end of the last window that holds a pane."""
        return (pane + self.span) // self.step * self.step
