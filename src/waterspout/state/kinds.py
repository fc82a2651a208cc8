"""From a kind of state to the map that keeps its promise."""

from __future__ import annotations

from typing import Any

from waterspout.state.base import BackingMap, StateKind
from waterspout.state.batched import BatchedMap
from waterspout.state.non_transactional import NonTransactionalMap
from waterspout.state.opaque import OpaqueMap
from waterspout.state.transactional import TransactionalMap

__all__ = ["make_map"]

_MAPS: dict[StateKind, type[BatchedMap[Any, Any]]] = {
    StateKind.OPAQUE: OpaqueMap,
    StateKind.TRANSACTIONAL: TransactionalMap,
    StateKind.NON_TRANSACTIONAL: NonTransactionalMap,
}


def make_map(
    kind: StateKind, backing: BackingMap[Any], *, name: str, partition: int = 0
) -> BatchedMap[Any, Any]:
    """Return the map of this kind over a backing map; `name` is what errors call it."""
    return _MAPS[kind](backing, name=name, partition=partition)
