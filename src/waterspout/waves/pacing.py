"""How large the next wave should be, and when the spouts must wait. Decisions without I/O.

A wave has a fixed cost, so large waves are cheaper per tuple. But nothing in a wave is acked before
its end, so it should not take long. Its size follows from the speed of the waves before.

Tuples that a wave did not reach in its time wait for the next one. When more of them wait than the
high mark allows, no spout is asked until their number has fallen to the low mark.
"""

from __future__ import annotations

from waterspout._config import Config

__all__ = ["Pacing"]

_FIRST = 1_000
_GROWTH = 4.0
_SMALLEST = 10


class Pacing:
    """Learns from finished waves; `throttled` says whether spouts must wait."""

    def __init__(self, conf: Config) -> None:
        self._aim_s = conf.wave_secs
        self._largest = conf.wave_max_tuples
        self._high, self._low = conf.backpressure_high, conf.backpressure_low
        self.size = min(_FIRST, self._largest)
        """Tuples that the next wave should take from the spouts."""
        self.throttled = False
        self.waiting = 0

    def finished(self, tuples: int, seconds: float, *, undone: int) -> None:
        """Learn from a wave: how many tuples it began with, and how many it did not reach."""
        done = tuples if undone == 0 else max(1, tuples - undone)
        if tuples and (undone or done >= self.size // 2 or seconds > self._aim_s):
            wanted = done * self._aim_s / max(seconds, 1e-3)
            self.size = min(int(max(_SMALLEST, min(wanted, self.size * _GROWTH))), self._largest)

    def look(self, waiting: int) -> bool:
        """Take in how many tuples wait for a wave; return whether spouts must wait too."""
        self.waiting = waiting
        if waiting >= self._high * self.size:
            self.throttled = True
        elif waiting <= self._low * self.size:
            self.throttled = False
        return self.throttled
