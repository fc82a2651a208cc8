"""Which windows are due, and what need not be kept: arithmetic on the marks of tuples.

The mark of a tuple is its number in the partition (0, 1, 2...), or the time of its batch in
milliseconds. Marks never decrease. `now` is a lower bound: every later tuple has this mark or a
greater one.
"""

from __future__ import annotations

from collections.abc import Iterator

from waterspout.trident.windowing.config import WindowConfig

__all__ = ["ends_due", "keep_from", "next_end"]


def next_end(now: int, step: int) -> int:
    """Return the first end of a window that lies behind `now`."""
    return (now // step + 1) * step


def ends_due(config: WindowConfig, since: int, now: int, last_mark: int) -> Iterator[int]:
    """Yield the ends in `(since, now]`, up to the last window that holds `last_mark`.

    Windows after that one are empty: a year without tuples costs nothing.

    >>> from waterspout.trident.windowing.config import SlidingCountWindow
    >>> list(ends_due(SlidingCountWindow.of(4, 2), since=3, now=9, last_mark=8))
    [4, 6, 8]
    """
    end = next_end(since, config.step)
    while end <= now and end - config.span <= last_mark:
        yield end
        end += config.step


def keep_from(config: WindowConfig, now: int) -> int:
    """Return the lowest mark that a window still to come can hold."""
    return next_end(now, config.step) - config.span
