"""One value in a map: a global aggregate under a fixed key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from waterspout.state.base import Key, Snapshottable, ValueUpdater
from waterspout.state.batched import BatchedMap
from waterspout.state.head import NOTHING

__all__ = ["SnapshottableMap"]

V = TypeVar("V")


class SnapshottableMap(Snapshottable[V]):
    """The value under one key of a map, with the map's own guarantee."""

    def __init__(self, state: BatchedMap[V, object], key: Key = ()) -> None:
        self.map = state
        self._key = tuple(key)

    def begin_commit(
        self, txid: int | None, attempt: int = 0, resolved: Mapping[int, int] = NOTHING
    ) -> None:
        self.map.begin_commit(txid, attempt, resolved)

    def commit(self, txid: int | None) -> None:
        self.map.commit(txid)

    def get(self) -> V | None:
        return self.map.multi_get([self._key])[0]

    def update(self, updater: ValueUpdater[V]) -> V | None:
        return self.map.multi_update([self._key], [updater])[0]

    def set(self, value: V | None) -> None:
        self.map.multi_put([self._key], [value])
