"""How long a window is and how often one ends: by count or by time, tumbling or sliding."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from waterspout.errors import TopologyError
from waterspout.topology.windowing.settings import Seconds, Tuples, duration

__all__ = [
    "SessionGap",
    "SlidingCountWindow",
    "SlidingDurationWindow",
    "TumblingCountWindow",
    "TumblingDurationWindow",
    "WindowConfig",
    "sliding",
    "tumbling",
]


class WindowConfig:
    """The length of a window and the distance between the ends of two.

    Every tuple has a mark: its number (0, 1, 2...), or the time of its batch in milliseconds
    since 1970. A window ends at every multiple of `step`. The one that ends at `e` holds the
    tuples with marks from `e - span` on and below `e`.
    """

    by_time: ClassVar[bool]
    length: int | Seconds

    def __post_init__(self) -> None:
        check = duration if self.by_time else _count
        for name in ("length", "slide"):
            if hasattr(self, name):
                found = check(getattr(self, name), f"the {name} of a window")
                object.__setattr__(self, name, found)
        if self.step > self.span:
            raise TopologyError(
                f"the slide of a window is more than its length in {self!r}: the tuples between "
                "two windows would be in none. Make the slide at most the length."
            )

    @property
    def span(self) -> int:
        """The length: a number of tuples, or milliseconds."""
        return _amount(self.length)

    @property
    def step(self) -> int:
        """The distance between two ends: a number of tuples, or milliseconds."""
        return _amount(getattr(self, "slide", self.length))

    def ends_due(self, since: int, now: int, last_mark: int) -> Iterator[int]:
        """Yield the ends in `(since, now]`, up to the last window that holds `last_mark`.

        Windows after that one are empty: a year without tuples costs nothing.

        >>> list(SlidingCountWindow.of(4, 2).ends_due(since=3, now=9, last_mark=8))
        [4, 6, 8]
        """
        end = self._next_end(since)
        while end <= now and end - self.span <= last_mark:
            yield end
            end += self.step

    def keep_from(self, now: int) -> int:
        """Return the lowest mark that a window still to come can hold.

        Every later tuple has the mark `now` or a greater one: marks never decrease.
        """
        return self._next_end(now) - self.span

    def _next_end(self, now: int) -> int:
        return (now // self.step + 1) * self.step


@dataclass(frozen=True, slots=True)
class SlidingCountWindow(WindowConfig):
    """The last `length` tuples, after every `slide` of them.

    >>> SlidingCountWindow.of(30, 10)
    SlidingCountWindow(length=30, slide=10)
    """

    length: int
    slide: int

    by_time = False

    @classmethod
    def of(cls, length: int | Tuples, slide: int | Tuples) -> SlidingCountWindow:
        """Return the window; the slide must not be more than the length."""
        return cls(_count(length, "the length"), _count(slide, "the slide"))


@dataclass(frozen=True, slots=True)
class TumblingCountWindow(WindowConfig):
    """Every `length` tuples, each tuple in one window."""

    length: int

    by_time = False

    @classmethod
    def of(cls, length: int | Tuples) -> TumblingCountWindow:
        """Return the window."""
        return cls(_count(length, "the length"))


@dataclass(frozen=True, slots=True)
class SlidingDurationWindow(WindowConfig):
    """The tuples of the last `length`, every `slide`.

    >>> SlidingDurationWindow.of(dt.timedelta(seconds=10), dt.timedelta(seconds=5)).step
    5000
    """

    length: Seconds
    slide: Seconds

    by_time = True

    @classmethod
    def of(
        cls, length: dt.timedelta | Seconds, slide: dt.timedelta | Seconds
    ) -> SlidingDurationWindow:
        """Return the window; the slide must not be more than the length."""
        return cls(duration(length, "the length"), duration(slide, "the slide"))


@dataclass(frozen=True, slots=True)
class TumblingDurationWindow(WindowConfig):
    """The tuples of each `length` of time, each tuple in one window."""

    length: Seconds

    by_time = True

    @classmethod
    def of(cls, length: dt.timedelta | Seconds) -> TumblingDurationWindow:
        """Return the window."""
        return cls(duration(length, "the length"))


@dataclass(frozen=True, slots=True)
class SessionGap:
    """Windows that end when nothing has happened for so long."""

    gap: Seconds

    @classmethod
    def of(cls, gap: dt.timedelta | Seconds) -> SessionGap:
        """Return the window."""
        return cls(duration(gap, "the gap of a session"))


def tumbling(length: Any) -> WindowConfig:
    """Return a tumbling window of a number of tuples, or of a duration."""
    if isinstance(length, dt.timedelta | Seconds):
        return TumblingDurationWindow.of(length)
    return TumblingCountWindow.of(length)


def sliding(length: Any, slide: Any) -> WindowConfig:
    """Return a sliding window; length and slide are both counts or both durations."""
    times = [isinstance(each, dt.timedelta | Seconds) for each in (length, slide)]
    if times == [True, True]:
        return SlidingDurationWindow.of(length, slide)
    if any(times):
        raise TopologyError(
            f"a window is by count or by time, but its length is {length!r} and its slide "
            f"{slide!r}; give two numbers of tuples or two durations"
        )
    return SlidingCountWindow.of(length, slide)


def _count(given: Any, what: str) -> int:
    count = given.count if isinstance(given, Tuples) else given
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise TopologyError(
            f"{what} is a positive number of tuples or a duration (a timedelta), not {given!r}"
        )
    return count


def _amount(measure: int | Seconds) -> int:
    return measure.millis if isinstance(measure, Seconds) else measure
