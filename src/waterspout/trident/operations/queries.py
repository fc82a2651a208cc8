"""Queries that come with Trident."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from waterspout._tuples import TridentTuple
from waterspout.errors import TopologyError
from waterspout.state._base import MapState, Snapshottable, State
from waterspout.trident.operations.contracts import QueryFunction, TridentCollector

__all__ = ["JoinGet", "MapGet", "SnapshotGet", "TupleCollectionGet"]


@dataclass(frozen=True)
class MapGet(QueryFunction[MapState[Any], Any]):
    """Look up the input fields as a key; null where there is none."""

    def batch_retrieve(self, state: MapState[Any], tuples: Sequence[TridentTuple]) -> Sequence[Any]:
        return state.multi_get([tuple.values for tuple in tuples])

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        collector.emit((result,))


@dataclass(frozen=True)
class JoinGet(QueryFunction[MapState[Any], Any]):
    """Look up the input fields as a key, for a join: a field for each column of the value.

    A key without a value gives nulls if it may be `missing`, and no row otherwise.
    """

    missing: bool
    width: int

    def batch_retrieve(self, state: MapState[Any], tuples: Sequence[TridentTuple]) -> Sequence[Any]:
        return state.multi_get([tuple.values for tuple in tuples])

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        if result is not None:
            collector.emit((result,) if self.width == 1 else result)
        elif self.missing:
            collector.emit((None,) * self.width)


@dataclass(frozen=True)
class SnapshotGet(QueryFunction[Snapshottable[Any], Any]):
    """Get the one value of a global state."""

    def batch_retrieve(
        self, state: Snapshottable[Any], tuples: Sequence[TridentTuple]
    ) -> Sequence[Any]:
        return [state.get()] * len(tuples)

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        collector.emit((result,))


@dataclass(frozen=True)
class TupleCollectionGet(QueryFunction[State, list[tuple[Any, ...]]]):
    """Emit every tuple that a state holds, for each input tuple.

    Of a map: the key's values, then the value's. A state of another kind has `get_tuples()`.
    """

    whole_tuples: ClassVar[bool] = True
    """It answers with the keys of a state and its values, so it has the types of both."""

    def batch_retrieve(
        self, state: State, tuples: Sequence[TridentTuple]
    ) -> Sequence[list[tuple[Any, ...]]]:
        return [list(_held(state))] * len(tuples) if tuples else []

    def execute(
        self, tuple: TridentTuple, result: list[tuple[Any, ...]], collector: TridentCollector
    ) -> None:
        for row in result:
            collector.emit(row)


def _held(state: Any) -> Iterable[tuple[Any, ...]]:
    if hasattr(state, "get_tuples"):
        return (tuple(row) for row in state.get_tuples())
    if isinstance(state, MapState) and hasattr(state, "scan"):
        return (
            (*key, *value) if isinstance(value, tuple) else (*key, value)
            for chunk in state.scan()
            for key, value in chunk
        )
    raise TopologyError(
        f"{type(state).__name__} cannot list what it holds: it is no map of waterspout's, and "
        "has no get_tuples()"
    )
