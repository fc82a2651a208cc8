"""Functions that come with Trident."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from waterspout._tuples import TridentTuple
from waterspout.trident.operations.contracts import Function, TridentCollector

__all__ = ["PaneStart", "Split", "StringLength"]


@dataclass(frozen=True)
class Split(Function):
    """Emit each word of a sentence; empty words are left out.

    >>> collector = TridentCollector()
    >>> Split().execute(TridentTuple(("to be  or",), {"sentence": 0}), collector)
    >>> collector.rows
    [('to',), ('be',), ('or',)]
    """

    separator: str = " "

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        if tuple[0] is not None:
            for word in tuple[0].split(self.separator):
                if word:
                    collector.emit((word,))

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        return ["string"]


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICRO = dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class PaneStart(Function):
    """Emit the start of the stretch of time that a moment is in, as a number; null for null.

    Stretches are `size` long and begin at multiples of it since 1970: in microseconds for a
    timestamp, in the field's own unit for a number.
    """

    gives_one = True
    size: int

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        moment = tuple[0]
        if isinstance(moment, dt.datetime):
            moment = (moment - _EPOCH) // _MICRO
        collector.emit((None if moment is None else moment // self.size * self.size,))

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        return ["bigint"]


@dataclass(frozen=True)
class StringLength(Function):
    """Emit how many characters a text has; null for null."""

    gives_one = True

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        collector.emit((None if tuple[0] is None else len(tuple[0]),))

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        return ["int"]
