"""Queries that come with Trident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waterspout.state.base import MapState, Snapshottable
from waterspout.trident.operations.contracts import QueryFunction, TridentCollector
from waterspout.tuples import TridentTuple

__all__ = ["MapGet", "SnapshotGet"]


@dataclass(frozen=True)
class MapGet(QueryFunction[MapState[Any], Any]):
    """Look up the input fields as a key; null where there is none."""

    def batch_retrieve(self, state: MapState[Any], tuples: Sequence[TridentTuple]) -> Sequence[Any]:
        """Ask for all keys at once."""
        return state.multi_get([tuple.values for tuple in tuples])

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        """Emit what was found."""
        collector.emit((result,))


@dataclass(frozen=True)
class SnapshotGet(QueryFunction[Snapshottable[Any], Any]):
    """Get the one value of a global state."""

    def batch_retrieve(
        self, state: Snapshottable[Any], tuples: Sequence[TridentTuple]
    ) -> Sequence[Any]:
        """Ask once for all tuples."""
        return [state.get()] * len(tuples)

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        """Emit the value."""
        collector.emit((result,))
