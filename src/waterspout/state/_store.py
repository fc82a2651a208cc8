"""What the recipes of all states in a store have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Self

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import ConfigError, MissingDependencyError, TopologyError
from waterspout.state._base import BackingMap, Risk, StateFactory, StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._cache import CachedMap, cache_at
from waterspout.state._columns import Layout
from waterspout.state._kinds import EachKind, make_map
from waterspout.state._rows import key_and_value

__all__ = ["ANY_VALUE", "StoreState", "require_package"]

ANY_VALUE = Schema((("value", None),))


@dataclass(frozen=True, kw_only=True)
class StoreState(EachKind, StateFactory):
    """Recipe of a state in a store; `.opaque(...)` and its sisters take the class's arguments.

    `cache` keeps that many records in the memory of the driver, and makes the driver the only
    one who commits.
    """

    kind: StateKind = StateKind.OPAQUE
    keys: Schema | None = None
    values: Schema = ANY_VALUE
    cache: int = 0

    backend = "store"

    def __post_init__(self) -> None:
        if not isinstance(self.cache, int) or isinstance(self.cache, bool) or self.cache < 0:
            raise ConfigError(f"cache is a number of records, 0 for none, not {self.cache!r}")
        if self.cache:
            # A cache is right only in the process that writes.
            object.__setattr__(self, "driver_only", True)

    def _require_seconds(self, *options: str) -> None:
        for option in options:
            given = getattr(self, option)
            if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0.001:
                raise ConfigError(f"{option} is a number of seconds above 0, not {given!r}")

    @abstractmethod
    def backing(self) -> BackingMap[Any]:
        """Return the map behind the state, without a cache."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What errors call the state: where it is, without secrets."""

    @property
    def columns(self) -> Layout:
        """The columns of keys and values."""
        return Layout(self.keys, self.values)

    @property
    def _types(self) -> Layout:
        # Not `columns`, which are the store's own: what a state takes is the same in all stores.
        return Layout(self.keys, self.values)

    def bind(self, keys: Schema, values: Schema) -> Self:
        bound = replace(self, keys=keys, values=values)
        _ = bound.columns  # which refuses fields that cannot be columns
        return bound

    def bind_rows(
        self, rows: Schema, keys: tuple[str, ...] = (), order_by: str | None = None
    ) -> StateFactory:
        if keys:
            return self.bind(*key_and_value(rows, keys, self.title))
        return self._bind_appended(rows)

    def _bind_appended(self, rows: Schema) -> StateFactory:
        """Return the recipe of rows that are appended, where the store can do that."""
        raise TopologyError(
            f"{type(self).__name__} keeps values under keys, so rows without a key cannot be "
            "appended to it. Say which fields are the key, UpsertRows([...]), or append to a state "
            "that keeps rows, such as SQLiteState or PostgresState (see docs/rows.md)"
        )

    def make_state(
        self, conf: Config, partition_index: int, num_partitions: int
    ) -> BatchedMap[Any, Any]:
        backing = self.backing()
        if self.cache:
            backing = CachedMap(backing, cache_at(str(self.location()), self.cache))
        return make_map(
            self.kind, backing, name=self.title, partition=partition_index, types=self._types
        )

    def within(self) -> Mapping[str, Any]:
        """Return what names the state within its store (a table, a prefix), no secrets."""
        return {}

    def identity(self) -> Mapping[str, Any]:
        """Name backend, kind, table or prefix, and columns; the server may be moved."""
        return {
            "backend": self.backend,
            "kind": self.kind.value,
            **self.within(),
            "layout": self.columns.describe(),
        }

    def check(self) -> None:
        with closing(self.backing()) as backing:
            backing.check()

    def ask_risk(self) -> Risk | None:
        if self.risk is not None:
            return self.risk
        with closing(self.backing()) as backing:
            return backing.risk()


def require_package(module: str, package: str, extra: str) -> None:
    """Say at once, and how to get it, if the client library of a store is missing."""
    try:
        import_module(module)
    except ImportError as error:
        raise MissingDependencyError(package, extra) from error
