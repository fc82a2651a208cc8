"""How long to wait before the next try: twice as long after each failure, up to a limit."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Backoff"]

_DOUBLINGS_MAX = 30  # enough for any limit, and far from overflow


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses of one kind of retry, in seconds."""

    first_s: float
    longest_s: float = 10.0

    def pause_s(self, failures: int) -> float:
        """Return the pause after so many failures in a row.

        >>> [Backoff(0.1, 1.0).pause_s(failures) for failures in (1, 2, 3, 9)]
        [0.1, 0.2, 0.4, 1.0]
        """
        doublings = min(max(0, failures - 1), _DOUBLINGS_MAX)
        return min(self.longest_s, self.first_s * 2.0**doublings)

    def random_pause_s(self, failures: int) -> float:
        """Return up to that pause, so that two who were in each other's way do not meet again."""
        return random.uniform(0, self.pause_s(failures))  # noqa: S311
