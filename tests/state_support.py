"""What tests of states share: updaters, a spy, and someone who drives batches through a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, settings

from waterspout._serde import encode_key
from waterspout.state._base import BackingMap, FencedMap
from waterspout.testing._batches import (
    OWNER,
    Add,
    Batches,
    committed,
    keys_of,
)

__all__ = [
    "OWNER",
    "Add",
    "Batches",
    "SpyMap",
    "StoreDown",
    "committed",
    "examples",
    "fence_of",
    "keys_of",
    "pairs_of",
]


def examples(number: int = 100) -> settings:
    """Return the settings of a property test, whatever else the machine is doing today."""
    slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=max(10, number * settings().max_examples // 60),
        deadline=None,
        suppress_health_check=slow,
    )


class StoreDown(Exception):
    """What a store raises that is not there."""


class SpyMap(BackingMap[Any]):
    """A store with nothing but the two methods of a store author; notes how it is called."""

    def __init__(self, records: Mapping[tuple[Any, ...], Any] | None = None) -> None:
        self.records = {encode_key(key): record for key, record in (records or {}).items()}
        self.gets: list[list[tuple[Any, ...]]] = []
        self.puts: list[dict[tuple[Any, ...], Any]] = []
        self.fail_before_put = False
        self.fail_after_put = False

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[Any]:
        self.gets.append([tuple(key) for key in keys])
        return [self.records.get(encode_key(key)) for key in keys]

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[Any]) -> None:
        if self.fail_before_put:
            raise StoreDown
        self.puts.append({tuple(key): value for key, value in zip(keys, values, strict=True)})
        self.records.update(zip(map(encode_key, keys), values, strict=True))
        if self.fail_after_put:
            raise StoreDown

    def at(self, *key: Any) -> Any:
        return self.records.get(encode_key(key))


def fence_of(backing: BackingMap[Any]) -> FencedMap[Any]:
    fence = backing.fence
    assert fence is not None
    return fence


def pairs_of(backing: BackingMap[Any]) -> list[tuple[Any, Any]]:
    """Return all keys and records of a store."""
    return [pair for chunk in backing.scan() for pair in chunk]
