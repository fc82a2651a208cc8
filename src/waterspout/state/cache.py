"""A cache of records in front of a backing map, for the one process that writes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from waterspout.errors import ConfigError
from waterspout.serde import encode_key
from waterspout.state.base import BackingMap, FencedMap, Key
from waterspout.state.head import Head, Stamp

__all__ = ["CachedMap"]

V = TypeVar("V")


class _ChangedError(Exception):
    """A record is not the one that was read."""


class CachedMap(FencedMap[V], Generic[V]):
    """Keep the `size` keys used last, also those known to be absent.

    A record is cached after the store took it, never before; if the store fails, what it holds
    is unknown, and the keys are dropped. Fenced if the map below is.
    """

    def __init__(self, backing: BackingMap[V], size: int) -> None:
        if size < 1:
            raise ConfigError(f"CachedMap needs a size of at least 1, not {size}")
        self._backing = backing
        self._size = size
        self._cache: OrderedDict[str, V | None] = OrderedDict()

    @property
    def fence(self) -> FencedMap[V] | None:
        """This map, if there is a fence below it."""
        return self if self._backing.fence is not None else None

    @property
    def undoes_lost_attempts(self) -> bool:  # type: ignore[override]
        """Whether the map below does."""
        below = self._backing.fence
        return below is not None and below.undoes_lost_attempts

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read from the cache, and the rest from the store in one call."""
        names = [encode_key(key) for key in keys]
        missing = {n: k for n, k in zip(names, keys, strict=True) if n not in self._cache}
        found: dict[str, V | None] = {}
        if missing:
            found = dict(zip(missing, self._backing.multi_get(list(missing.values())), strict=True))
        records = [found[name] if name in found else self._cache[name] for name in names]
        self._keep(names, records)
        return records

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Write to the store, then to the cache."""
        self._write(keys, values, lambda: self._backing.multi_put(keys, values))

    def fenced_put(self, stamp: Stamp, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Write to the store under its fence, then to the cache."""
        self._write(keys, values, lambda: self._below().fenced_put(stamp, keys, values))

    def multi_compare_and_put(
        self, keys: Sequence[Key], read: Sequence[V | None], values: Sequence[V]
    ) -> bool:
        """Write to the store, then to the cache; forget the keys if they had changed."""

        def write() -> None:
            if not self._below().multi_compare_and_put(keys, read, values):
                raise _ChangedError

        try:
            self._write(keys, values, write)
        except _ChangedError:
            return False
        return True

    def read_head(self) -> Head | None:
        """Return the head of the store: it is never cached."""
        return self._below().read_head()

    def move_head(self, expected: Head | None, new: Head) -> None:
        """Move the head of the store."""
        try:
            self._below().move_head(expected, new)
        finally:
            if expected is not None and expected.stamp.txid == new.stamp.txid and not new.committed:
                # An earlier attempt was undone in the store, under keys not known here.
                self._cache.clear()

    def _below(self) -> FencedMap[V]:
        below = self._backing.fence
        assert below is not None, "asked for a fence that is not there"
        return below

    def _write(self, keys: Sequence[Key], values: Sequence[V], write: Callable[[], None]) -> None:
        names = [encode_key(key) for key in keys]
        try:
            write()
        except BaseException:
            for name in names:
                self._cache.pop(name, None)
            raise
        self._keep(names, list(values))

    def _keep(self, names: Sequence[str], records: Sequence[V | None]) -> None:
        for name, record in zip(names, records, strict=True):
            self._cache[name] = record
            self._cache.move_to_end(name)
        while len(self._cache) > self._size:
            self._cache.popitem(last=False)
