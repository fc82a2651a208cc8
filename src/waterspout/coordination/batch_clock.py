"""What time it is in a batch: pinned with the batch, never going back, no I/O.

Windows by time go by it. A batch's time is chosen when the batch is first planned and stored with
its metadata, so that every replay has the same. It is never before the time of the batch before
it, whatever the wall clock does and however often the driver is started.

A window must also close when nothing comes any more. So the clock notes when the last tuples can
have come, and says when a batch is due though no source has anything for it: at each end of a
window that may hold those tuples, and never after the last of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["CLOCK", "BatchClock", "clock_for"]

CLOCK = "$clock"
"""The key of the clock's entry in a batch's metadata; no spout can have it as its id."""


class BatchClock:
    """Gives batches their times. `windows` are lengths and slides, in milliseconds.

    >>> clock = BatchClock([(10_000, 5_000)], wall=lambda: 12.0)
    >>> first = clock.pin(None, None, has_data=True)
    >>> first
    {'time': 12000, 'data': 12000}
    >>> clock.wall = lambda: 14.0
    >>> clock.is_due(first)
    False
    >>> clock.wall = lambda: 15.0
    >>> clock.is_due(first)
    True
    """

    def __init__(
        self, windows: Iterable[tuple[int, int]], wall: Callable[[], float] = time.time
    ) -> None:
        self._windows = sorted(set(windows))
        self.wall = wall

    def pin(
        self,
        previous: Mapping[str, Any] | None,
        stored: Mapping[str, Any] | None,
        *,
        has_data: bool,
    ) -> dict[str, Any]:
        """Return the entry of a batch: its time, and that of the last batch that may hold data.

        `previous` is the entry of the batch before it, `stored` that of its own last attempt.
        """
        before = None if previous is None else previous["data"]
        if stored is not None:
            now, has_data = stored["time"], has_data or stored["data"] == stored["time"]
        else:
            now = self._millis() if previous is None else max(self._millis(), previous["time"])
        return {"time": now, "data": now if has_data else before}

    def is_due(self, previous: Mapping[str, Any] | None) -> bool:
        """Whether, since the batch before, a window has ended that may hold tuples."""
        if previous is None or previous["data"] is None:
            return False
        now = self._millis()
        for length, slide in self._windows:
            end = (previous["time"] // slide + 1) * slide
            if end <= now and end - length <= previous["data"]:
                return True
        return False

    @staticmethod
    def read(metadata: Mapping[str, Any]) -> float | None:
        """Return the time of a batch in seconds since 1970; None if it has none."""
        entry = metadata.get(CLOCK)
        return None if entry is None else entry["time"] / 1000

    def _millis(self) -> int:
        return int(self.wall() * 1000)


def clock_for(
    windows: Sequence[tuple[int, int]] | None, wall: Callable[[], float] = time.time
) -> BatchClock | None:
    """Return the clock that these windows need; None if nothing goes by time.

    No windows: batches have times, but none is due because of them.
    """
    return None if windows is None else BatchClock(windows, wall)
