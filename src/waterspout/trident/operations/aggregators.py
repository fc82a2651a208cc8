"""Aggregators that come with Trident."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from waterspout.errors import TopologyError
from waterspout.trident.operations.contracts import CombinerAggregator
from waterspout.tuples import TridentTuple

__all__ = ["Count", "Sum"]


@dataclass(frozen=True)
class Count(CombinerAggregator[int]):
    """Count the tuples.

    >>> Count().combine(Count().init(TridentTuple(("a",), {"w": 0})), 2)
    3
    """

    merge: ClassVar[str | None] = "sum"

    def init(self, tuple: TridentTuple) -> int:
        """Each tuple counts once."""
        return 1

    def combine(self, left: int, right: int) -> int:
        """Add."""
        return left + right

    def zero(self) -> int:
        """No tuples are 0."""
        return 0

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        """A long."""
        return ["bigint"]


@dataclass(frozen=True)
class Sum(CombinerAggregator[Any]):
    """Add up a field; nulls count as nothing."""

    merge: ClassVar[str | None] = "sum"

    def init(self, tuple: TridentTuple) -> Any:
        """Take the first field."""
        return 0 if tuple[0] is None else tuple[0]

    def combine(self, left: Any, right: Any) -> Any:
        """Add."""
        return left + right

    def zero(self) -> Any:
        """No tuples are 0."""
        return 0

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        """Longs add up to a long, doubles to a double, decimals to a decimal."""
        if len(inputs) != 1:
            raise TopologyError(f"Sum takes one field, not {len(inputs)}")
        kind = inputs[0]
        if kind in ("bigint", "int", "smallint", "tinyint"):
            return ["bigint"]
        if kind in ("double", "float"):
            return ["double"]
        match = re.fullmatch(r"decimal\(\s*\d+\s*(?:,\s*(\d+)\s*)?\)", kind or "", re.I)
        if match:
            return [f"decimal(38,{match[1] or 0})"]
        raise TopologyError(f"Sum cannot add up a field of type {kind}")
