"""Opaque partitions that cannot be reached: which errors say so, and when each is asked again.

No I/O: it is told what happened and what time it is.

An opaque spout goes on with the partitions that it reaches. One that it does not reach is left out
of the batch, and catches up later. What is lost for good, and what is wrong with the code, is no
such thing: waiting would not mend it, and leaving it out would hide it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from waterspout._backoff import Backoff
from waterspout._safe_repr import described
from waterspout.errors import BatchError, BuildError, DataLossError, FailedException

__all__ = ["PartitionName", "PartitionsAway", "away_error", "is_away", "read_away_error"]

_TEXT = re.compile(r"partition (\S+) of (.+?) cannot be reached: (.*)", re.DOTALL)

PartitionName = int | str
"""A partition by its number, or by a name without spaces where there are several topics."""

_QUICK_S = 0.05
_REST_PER_ASKING = 10  # asking takes at most a tenth of the time
_LONGEST_REST_S = 60.0

# Among them what Python raises where code is wrong, or a record is not what it expects.
_MENDED_BY_NOBODY = (
    *(BuildError, BatchError, DataLossError),
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError),
    *(NameError, NotImplementedError, RecursionError, SyntaxError, TypeError, ValueError),
)


def is_away(error: BaseException) -> bool:
    """Whether an error of an emitter says that its partition cannot be reached for now.

    Clients have errors of their own, so it is all but what is known to be something else.

    >>> is_away(ConnectionRefusedError()), is_away(TypeError()), is_away(DataLossError("gone"))
    (True, False, False)
    """
    if isinstance(error, FailedException | OSError):
        return True
    return not isinstance(error, _MENDED_BY_NOBODY)


def away_error(spout_id: str, partition: PartitionName, error: str) -> FailedException:
    """Return the error of a partition that was planned, and cannot be read: a replay is to come.

    Its text is all that Spark hands on.

    >>> read_away_error(away_error("words", 3, "no route"), "words")
    (3, 'no route')
    """
    return FailedException(f"partition {partition} of {spout_id!r} cannot be reached: {error}")


def read_away_error(error: BaseException, spout_id: str) -> tuple[PartitionName, str] | None:
    """Return the partition of this spout, and why, if that is what an error tells."""
    found = _TEXT.fullmatch(str(error)) if isinstance(error, FailedException) else None
    if found is None or found[2] != repr(spout_id):
        return None
    return int(found[1]) if found[1].isdecimal() else found[1], found[3]


@dataclass(frozen=True, slots=True)
class _Away:
    error: str
    since: float
    until: float
    failures: int
    reading: bool
    """Whether it was reached, and could not be read: only a batch that commits shows it can."""
    sits_out: bool = False
    """Whether it is left out of the next look, however late that comes: the replay's."""


class PartitionsAway:
    """Remembers which partitions of a spout could not be reached."""

    def __init__(self, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self._away: dict[PartitionName, _Away] = {}
        self._left_alone = False

    @property
    def errors(self) -> Mapping[PartitionName, str]:
        """Why, by partition."""
        return {
            partition: self._away[partition].error for partition in sorted(self._away, key=_order)
        }

    @property
    def left_alone(self) -> bool:
        """Whether a partition was not even asked in the look that began last."""
        return self._left_alone

    def begin_look(self) -> None:
        """Take note that all partitions are about to be asked."""
        self._left_alone = False

    def may_ask(self, partition: PartitionName) -> bool:
        """Whether it is time to ask a partition."""
        away = self._away.get(partition)
        resting = away is not None and (away.sits_out or self._clock() < away.until)
        if away is not None and away.sits_out:
            self._away[partition] = replace(away, sits_out=False)
        self._left_alone = self._left_alone or resting
        return not resting

    def asked_in_vain(self, partition: PartitionName, error: BaseException, began: float) -> None:
        """Take note that a partition did not answer; a slow one must not hold up the others."""
        took = self._clock() - began
        rest = min(_LONGEST_REST_S, took * _REST_PER_ASKING) if took > _QUICK_S else 0.0
        self._note(partition, described(error), rest, reading=False)

    def read_in_vain(self, partition: PartitionName, error: str) -> None:
        """Take note that a partition that had answered could not be read by a task."""
        before = self._away.get(partition)
        failures = 1 if before is None or not before.reading else before.failures + 1
        self._note(partition, error, self._backoff.pause_s(failures), reading=True)

    def answered(self, partition: PartitionName) -> None:
        """Take note that a partition was asked, and has answered."""
        away = self._away.get(partition)
        if away is not None and not away.reading:
            del self._away[partition]

    def committed(self, partition: PartitionName) -> None:
        """Take note that a batch with tuples of this partition has committed."""
        self._away.pop(partition, None)

    def _note(self, partition: PartitionName, error: str, rest: float, *, reading: bool) -> None:
        before, now = self._away.get(partition), self._clock()
        since = now if before is None else before.since
        failures = 1 if before is None else before.failures + 1
        self._away[partition] = _Away(error, since, now + rest, failures, reading, reading)


def _order(partition: PartitionName) -> tuple[bool, int, str]:
    """Sort numbers as numbers, and names behind them."""
    named = isinstance(partition, str)
    return named, 0 if isinstance(partition, str) else partition, str(partition)
