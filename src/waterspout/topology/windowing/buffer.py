"""`WindowBuffer`: which items a window holds, when it is due, when an item is out of all windows.

No clock and no I/O: times are given, in milliseconds. By time, a window holds what is later than
its start and not later than its end, and ends are multiples of the slide. By count, items are taken
in the order of their timestamps; those with equal ones in the order in which they came.

                      the slide is a time            the slide is a count
    length a time     (end - length, end]            back from the item that completes the slide
    length a count    the last before the end        the last, up to the item that completes it
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

from waterspout.topology.windowing.settings import Measure, Seconds, Tuples

__all__ = ["TupleWindow", "WindowBuffer"]

T = TypeVar("T")

# Deleting from the front of a list costs its whole length, so several items go at once.
_DROP_MIN = 64

# Of an event: when it was, and its number among those of that time.
_timestamp, _key = itemgetter(0), itemgetter(0, 1)


@dataclass(frozen=True, slots=True)
class TupleWindow(Generic[T]):
    """The tuples of one window, oldest first, and what has changed since the window before."""

    tuples: list[T]
    new: list[T]
    """Those that the window before did not hold."""

    expired: list[T]
    """Those of the window before that this one does not hold."""

    start_timestamp: int | None
    """Milliseconds; tuples at it are not included. None where the length is a count."""

    end_timestamp: int
    """Milliseconds; tuples at it are included."""

    def get(self) -> list[T]:
        """Return all tuples of the window."""
        return self.tuples

    def __iter__(self) -> Iterator[T]:
        return iter(self.tuples)

    def __len__(self) -> int:
        return len(self.tuples)


class WindowBuffer(Generic[T]):
    """The items that are in the window or will be.

    `next_window(upto)` until it is None, each followed by `expire` or, if it failed, `discard`.

    >>> buffer = WindowBuffer(Tuples(2), Tuples(1))
    >>> for ts, item in enumerate("abc"):
    ...     buffer.add(item, ts)
    ...     window = buffer.next_window(ts)
    ...     print(window.get(), window.new, window.expired, buffer.expire(ts))
    ['a'] ['a'] [] []
    ['a', 'b'] ['b'] [] ['a']
    ['b', 'c'] ['c'] ['a'] ['b']
    """

    def __init__(self, length: Measure, slide: Measure) -> None:
        self._length = length
        self._slide = slide
        self._events: list[tuple[int, int, T]] = []
        """Timestamp, number and item, in order; a window is always a piece from the front."""
        self._number = 0
        self._counted = 0
        """By count: how many from the front the slide has counted."""
        self._since = 0
        """By count: how many since the last window."""
        self._end: int | None = None
        """By time: the end of the last window."""
        self._not_before: int | None = None
        """By time: no window ends earlier."""
        self._size = 0
        self._last: tuple[int, int] | None = None
        """The last event of the window before."""
        self._left: list[T] = []
        """Items of the window before that are gone since."""
        self._expired: list[T] = []

    def __len__(self) -> int:
        return len(self._events)

    @property
    def end(self) -> int | None:
        """The end of the last window, where the slide is a time."""
        return self._end

    def is_late(self, ts: int) -> bool:
        """Whether a window that should hold an item of this time is over."""
        return self._end is not None and ts <= self._end

    def add(self, item: T, ts: int) -> None:
        """Take an item, which must not be late nor earlier than the last `upto`."""
        self._number += 1
        event = (ts, self._number, item)
        if not self._events or self._events[-1][0] <= ts:
            self._events.append(event)
        else:
            insort(self._events, event, key=_key)

    def next_window(self, upto: int) -> TupleWindow[T] | None:
        """Return the next window that is due if time has come to `upto`; None: there is none."""
        if isinstance(self._slide, Tuples):
            return self._next_by_count(self._slide.count, upto)
        return self._next_by_time(self._slide.millis, upto)

    def expire(self, upto: int) -> list[T]:
        """Return, once, the items that no window after `upto` can hold.

        To be called with the end of a window, or with `upto` when no window is due any more.
        """
        if isinstance(self._slide, Seconds):
            if isinstance(self._length, Seconds):
                following = (upto // self._slide.millis + 1) * self._slide.millis
                self._drop(self._until(following - self._length.millis))
            else:
                surplus = self._until(upto) - self._length.count
                if surplus >= _DROP_MIN or upto == self._end:
                    self._drop(surplus)
        elif isinstance(self._length, Seconds):
            self._drop(min(self._counted, self._until(upto - self._length.millis)))
        else:
            kept = self._length.count - (self._slide.count - self._since)
            self._drop(self._counted - max(0, kept))
        expired, self._expired = self._expired, []
        return expired

    def discard(self, *, reopen: bool = False) -> list[T]:
        """Give up the window at hand and return its items; if `reopen`, it will be due again."""
        size, self._size = self._size, 0
        items = [item for _, _, item in self._events[:size]]
        del self._events[:size]
        self._counted = 0
        self._left, self._last = list(items), None
        if reopen and isinstance(self._slide, Tuples):
            self._since = self._slide.count - size
        elif reopen:
            self._end, self._not_before = None, self._end
        return items

    def _next_by_time(self, slide: int, upto: int) -> TupleWindow[T] | None:
        while True:
            end = self._following_end(slide, upto)
            if end is None or end > upto:
                return None
            inside = self._until(end)
            if isinstance(self._length, Seconds):
                older = self._until(end - self._length.millis)
            else:
                older = max(0, inside - self._length.count)
            self._drop(older)
            if inside > older:
                self._end, self._not_before = end, None
                return self._window(inside - older, end)

    def _following_end(self, slide: int, upto: int) -> int | None:
        """Return where the next window ends that may hold anything."""
        if not self._events:
            return None
        last = self._end
        if last is None or self._events[0][0] > last:
            end = _round_up(self._events[0][0], slide)
            return end if self._not_before is None else max(end, self._not_before)
        if isinstance(self._length, Seconds):
            return last + slide
        # By count, the last tuples stay in the window however old they are. Where nothing new came
        # for many slides, execute one window for all that time, not one for each slide.
        idle = upto // slide * slide
        new = self._until(last)
        if new < len(self._events):
            idle = min(idle, _round_up(self._events[new][0], slide) - slide)
        return max(last + slide, idle)

    def _next_by_count(self, slide: int, upto: int) -> TupleWindow[T] | None:
        events = self._events
        while self._counted < len(events) and events[self._counted][0] <= upto:
            self._counted += 1
            self._since += 1
            if self._since < slide:
                continue
            self._since = 0
            end = events[self._counted - 1][0]
            if isinstance(self._length, Seconds):
                self._drop(self._until(end - self._length.millis))
            else:
                self._drop(self._counted - self._length.count)
            return self._window(self._counted, end)
        return None

    def _window(self, size: int, end: int) -> TupleWindow[T]:
        self._size = size
        held = self._events[:size]
        items = [item for _, _, item in held]
        known = 0 if self._last is None else bisect_right(held, self._last, key=_key)
        left, self._left = self._left, []
        self._last = held[-1][:2]
        start = end - self._length.millis if isinstance(self._length, Seconds) else None
        return TupleWindow(items, items[known:], left, start, end)

    def _until(self, ts: int) -> int:
        """Return how many events are not later than a time."""
        return bisect_right(self._events, ts, key=_timestamp)

    def _drop(self, count: int) -> None:
        """Take events from the front."""
        if count <= 0:
            return
        gone = self._events[:count]
        del self._events[:count]
        self._counted = max(0, self._counted - count)
        self._expired.extend(item for _, _, item in gone)
        if self._last is not None:
            seen = bisect_right(gone, self._last, key=_key)
            self._left.extend(item for _, _, item in gone[:seen])


def _round_up(ts: int, slide: int) -> int:
    return -(-ts // slide) * slide
