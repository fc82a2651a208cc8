"""A combiner of several columns, for tests of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waterspout.state._base import Combiner


@dataclass(frozen=True)
class PerColumn(Combiner):
    """Combines tuples column by column, as `Columns` does; None is nothing for its column."""

    columns: tuple[str, ...]

    @property
    def merges(self) -> tuple[str | None, ...]:
        return self.columns

    def combine(self, left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
        do = {"sum": lambda a, b: a + b, "min": min, "max": max}
        return tuple(
            b if a is None else a if b is None else do[merge](a, b)
            for merge, a, b in zip(self.columns, left, right, strict=True)
        )
