"""Functions that come with Trident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waterspout._tuples import TridentTuple
from waterspout.trident.operations.contracts import Function, TridentCollector

__all__ = ["Split", "StringLength"]


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


@dataclass(frozen=True)
class StringLength(Function):
    """Emit how many characters a text has; null for null."""

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        collector.emit((None if tuple[0] is None else len(tuple[0]),))

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        return ["int"]
