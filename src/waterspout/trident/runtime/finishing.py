"""States whose values a combiner finishes on their way to a reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from waterspout.errors import UserCodeError
from waterspout.state._base import Key, MapState, Snapshottable, State, ValueUpdater
from waterspout.trident.plan.plan import Finisher

__all__ = ["finishing"]

_READ_ONLY = "a query may only read its state: use an updater to write"


def finishing(state: State, combiner: Finisher) -> State:
    """Return a view of a state for readers: values as `combiner.finish` shows them."""
    if isinstance(state, Snapshottable):
        return _FinishedValue(state, combiner)
    if isinstance(state, MapState):
        return _FinishedMap(state, combiner)
    return state


class _FinishedMap(MapState[Any]):
    def __init__(self, state: MapState[Any], combiner: Finisher) -> None:
        self._state = state
        self._combiner = combiner

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        return [_shown(self._combiner, value) for value in self._state.multi_get(keys)]

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, Any]]]:
        listed: Any = self._state
        for chunk in listed.scan(shard, shards):
            yield [(key, _shown(self._combiner, value)) for key, value in chunk]

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        raise UserCodeError(_READ_ONLY)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        raise UserCodeError(_READ_ONLY)

    def close(self) -> None:
        self._state.close()


class _FinishedValue(Snapshottable[Any]):
    def __init__(self, state: Snapshottable[Any], combiner: Finisher) -> None:
        self._state = state
        self._combiner = combiner

    def get(self) -> Any:
        return _shown(self._combiner, self._state.get())

    def update(self, updater: ValueUpdater[Any]) -> Any:
        raise UserCodeError(_READ_ONLY)

    def set(self, value: Any) -> None:
        raise UserCodeError(_READ_ONLY)

    def close(self) -> None:
        self._state.close()


def _shown(combiner: Finisher, value: Any) -> Any:
    return None if value is None else combiner.finish(value)
