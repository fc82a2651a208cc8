"""Not too many lines: what a screen is spared, and how much that was."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Throttle"]

_LINES_PER_INTERVAL = 5
_INTERVAL_S = 10.0


class Throttle:
    """Lets five lines through in ten seconds, and counts what it holds back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = float("-inf")
        self._passed = 0
        self._held_back = 0

    def passes(self) -> bool:
        """Say whether one more line may be shown now."""
        if self.is_over:
            self._since, self._passed = self._clock(), 0
        self._passed += 1
        if self._passed <= _LINES_PER_INTERVAL:
            return True
        self._held_back += 1
        return False

    @property
    def is_over(self) -> bool:
        """Whether the next line begins an interval."""
        return self._clock() - self._since >= _INTERVAL_S

    def take_held_back(self) -> int:
        """Return how many lines were held back since the last call."""
        count, self._held_back = self._held_back, 0
        return count
