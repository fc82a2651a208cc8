"""From a kind of state to the map that keeps its promise."""

from __future__ import annotations

from typing import Any, Self

from waterspout.state.base import BackingMap, StateKind
from waterspout.state.batched import BatchedMap
from waterspout.state.non_transactional import NonTransactionalMap
from waterspout.state.opaque import OpaqueMap
from waterspout.state.transactional import TransactionalMap

__all__ = ["EachKind", "make_map"]

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


class EachKind:
    """The recipe of a state of any kind; these take the arguments of the class."""

    @classmethod
    def opaque(cls, *args: Any, **options: Any) -> Self:
        """Keep each value with the one before it: exact for every replayable spout."""
        return cls(*args, kind=StateKind.OPAQUE, **options)  # type: ignore[call-arg]

    @classmethod
    def transactional(cls, *args: Any, **options: Any) -> Self:
        """Keep each value with its batch: exact for transactional spouts."""
        return cls(*args, kind=StateKind.TRANSACTIONAL, **options)  # type: ignore[call-arg]

    @classmethod
    def non_transactional(cls, *args: Any, **options: Any) -> Self:
        """Keep the value alone: replays count twice."""
        return cls(*args, kind=StateKind.NON_TRANSACTIONAL, **options)  # type: ignore[call-arg]
