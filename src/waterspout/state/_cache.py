"""A cache of records in front of a backing map, for the one process that writes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from waterspout._connections import PerProcess
from waterspout._serde import encode_key
from waterspout.errors import ConfigError
from waterspout.state._base import BackingMap, Combiner, Keys, LayeredMap
from waterspout.state._head import Head, Stamp

__all__ = ["CachedMap", "RecordCache", "cache_at"]

V = TypeVar("V")


class RecordCache:
    """The `size` records used last, by encoded key; None for a key known to be absent."""

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"a cache needs a size of at least 1, not {size!r}")
        self.size = size
        self._records: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what is known of these keys."""
        with self._lock:
            return {name: self._records[name] for name in names if name in self._records}

    def keep(self, names: Iterable[str], records: Iterable[Any]) -> None:
        """Remember these records as the ones used last."""
        with self._lock:
            for name, record in zip(names, records, strict=True):
                self._records[name] = record
                self._records.move_to_end(name)
            while len(self._records) > self.size:
                self._records.popitem(last=False)

    def drop(self, names: Iterable[str]) -> None:
        """Forget these keys."""
        with self._lock:
            for name in names:
                self._records.pop(name, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._records.clear()


_caches: PerProcess[dict[tuple[str, int], RecordCache]] = PerProcess(dict)


def cache_at(location: str, size: int) -> RecordCache:
    """Return this process's cache of a state: whoever moves the head clears it for all."""
    return _caches.get().setdefault((location, size), RecordCache(size))


class CachedMap(LayeredMap[V]):
    """Keep the records used last, also of keys known to be absent.

    A record is cached after the store took it, never before; if the store fails, what it holds
    is unknown, and the keys are dropped. Everything is dropped when the head moves to another
    attempt at the same batch, or to another writer.
    """

    def __init__(self, backing: BackingMap[V], size: int | RecordCache) -> None:
        super().__init__(backing)
        self._cache = size if isinstance(size, RecordCache) else RecordCache(size)

    @property
    def uncached(self) -> BackingMap[V]:
        """The map below: whoever reads outside of a batch may not be the one who writes."""
        return self._backing.uncached

    def multi_get(self, keys: Keys) -> list[V | None]:
        names = [encode_key(key) for key in keys]
        found = self._cache.find(names)
        missing = {n: k for n, k in zip(names, keys, strict=True) if n not in found}
        if missing:
            read = self._backing.multi_get(list(missing.values()))
            found |= dict(zip(missing, read, strict=True))
        records = [found[name] for name in names]
        self._keep(names, records)
        return records

    def multi_put(self, keys: Keys, values: Sequence[V]) -> None:
        self._write(keys, values, lambda: self._backing.multi_put(keys, values))

    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Sequence[V], read: Sequence[V | None] | None = None
    ) -> None:
        self._write(keys, values, lambda: self._below.fenced_put(stamp, keys, values, read))

    def multi_compare_and_put(
        self, keys: Keys, read: Sequence[V | None], values: Sequence[V]
    ) -> list[bool]:
        """Write to the store and forget the keys: this is not the way a batch writes."""
        try:
            return self._below.multi_compare_and_put(keys, read, values)
        finally:
            self._cache.drop(encode_key(key) for key in keys)

    def can_combine(self, combiner: Combiner) -> bool:
        """Never: what the store makes of a record would not be known here."""
        return False

    def move_head(self, expected: Head | None, new: Head) -> None:
        """Move the head of the store; forget what a lost attempt or another writer has left."""
        try:
            self._below.move_head(expected, new)
        finally:
            if expected is None or not _goes_on(expected, new):
                self._cache.clear()

    def _write(self, keys: Keys, values: Sequence[V], write: Callable[[], None]) -> None:
        names = [encode_key(key) for key in keys]
        try:
            write()
        except BaseException:
            self._cache.drop(names)
            raise
        self._keep(names, values)

    def _keep(self, names: Sequence[str], records: Sequence[V | None]) -> None:
        # Not a record without a value: the store lets go of it when a later batch claims.
        gone = {n for n, r in zip(names, records, strict=True) if getattr(r, "value", r) is None}
        absent = {n for n, r in zip(names, records, strict=True) if r is None}
        self._cache.drop(gone - absent)
        kept = [(n, r) for n, r in zip(names, records, strict=True) if n not in gone - absent]
        self._cache.keep([n for n, _ in kept], [r for _, r in kept])


def _goes_on(expected: Head, new: Head) -> bool:
    """Whether the records of the head before are still those that were written under it."""
    if expected.stamp.writer != new.stamp.writer:
        return False
    return new.committed or new.stamp == expected.stamp or new.stamp.txid > expected.stamp.txid
