"""What a window is measured in: tuples or seconds."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import Any

from waterspout.errors import TopologyError

__all__ = ["Measure", "Seconds", "Tuples", "duration", "measure"]


@dataclass(frozen=True, slots=True)
class Tuples:
    """A number of tuples."""

    count: int

    def __post_init__(self) -> None:
        whole = isinstance(self.count, int) and not isinstance(self.count, bool)
        if not whole or self.count < 1:
            raise TopologyError(f"a number of tuples is a positive integer, not {self.count!r}")


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time; counted in whole milliseconds.

    >>> Seconds(1.5).millis
    1500
    """

    seconds: float

    def __post_init__(self) -> None:
        given = self.seconds
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not math.isfinite(given) or self.millis < 1:
            raise TopologyError(f"a duration is at least a millisecond, not {given!r} seconds")

    @property
    def millis(self) -> int:
        """The same in milliseconds."""
        return round(self.seconds * 1000)


Measure = Tuples | Seconds


def measure(given: Any, what: str) -> Measure:
    """Return what a window is measured by; a bare number is refused, as it could mean either."""
    if isinstance(given, Tuples):
        return given
    return _duration(given, what, "Tuples(30), Seconds(5) or a timedelta")


def duration(given: Any, what: str) -> Seconds:
    """Return a duration."""
    return _duration(given, what, "Seconds(5) or a timedelta")


def _duration(given: Any, what: str, expected: str) -> Seconds:
    if isinstance(given, dt.timedelta):
        return Seconds(given.total_seconds())
    if not isinstance(given, Seconds):
        raise TopologyError(f"{what} is given as {expected}, not as {given!r}")
    return given
