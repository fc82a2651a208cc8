"""States in this process's memory: for tests, and for trying things out."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._serde import decode_key, encode_key
from waterspout.errors import FencedError, TopologyError
from waterspout.state._base import FencedMap, Key, Keys, StateFactory, StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._columns import Layout
from waterspout.state._head import Head, Stamp, check_stamp, goes_on, takes_over
from waterspout.state._kinds import EachKind, make_map
from waterspout.state._rows import RowsStore, RowsStoreState, key_and_value, refuse_kind

__all__ = ["MemoryMap", "MemoryMapState", "MemoryRows", "MemoryRowsState"]

V = TypeVar("V")


class MemoryMap(FencedMap[V]):
    """A dictionary of records with a head.

    Lost attempts stay in it and are told apart on reading, as in a key-value server.
    """

    def __init__(self, name: str = "the memory state") -> None:
        self._name = name
        self._records: dict[str, V] = {}
        self._removed: set[str] = set()
        self._head: Head | None = None
        self._lock = threading.Lock()

    def multi_get(self, keys: Keys) -> list[V | None]:
        with self._lock:
            return [self._records.get(encode_key(key)) for key in keys]

    def multi_put(self, keys: Keys, values: Sequence[V]) -> None:
        with self._lock:
            self._store(keys, values)

    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Sequence[V], read: Sequence[V | None] | None = None
    ) -> None:
        with self._lock:
            check_stamp(self._head, stamp, state=self._name)
            self._store(keys, values)

    def multi_compare_and_put(
        self, keys: Keys, read: Sequence[V | None], values: Sequence[V]
    ) -> list[bool]:
        with self._lock:
            now = [self._records.get(encode_key(key)) for key in keys]
            same = [a == b or repr(a) == repr(b) for a, b in zip(now, read, strict=True)]
            chosen = [i for i, ok in enumerate(same) if ok]
            self._store([keys[i] for i in chosen], [values[i] for i in chosen])
            return same

    def read_head(self) -> Head | None:
        with self._lock:
            return self._head

    def move_head(self, expected: Head | None, new: Head) -> None:
        with self._lock:
            if self._head != expected:
                raise FencedError(f"{self._name}: the head has moved to {self._head}")
            if goes_on(expected, new):
                self._sweep(new)
            self._head = new

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, V]]]:
        yield list(self.items()[shard::shards])

    def items(self) -> list[tuple[tuple[Any, ...], V]]:
        """Return all keys and records."""
        with self._lock:
            return [(decode_key(name), record) for name, record in self._records.items()]

    def _store(self, keys: Keys, values: Sequence[V]) -> None:
        # All are encoded before any is stored, so that one bad key keeps all of them out.
        names = [encode_key(key) for key in keys]
        self._records.update(dict(zip(names, values, strict=True)))
        self._removed |= {n for n, v in zip(names, values, strict=True) if _is_empty(v)}

    def _sweep(self, head: Head) -> None:
        """Let go of the records without a value that no attempt can want back."""
        witnesses = {key for _, key in head.witnesses}
        for name in self._removed:
            record: Any = self._records.get(name)
            txid, attempt = getattr(record, "txid", 0), getattr(record, "attempt", 0)
            # Of a lost attempt, the value before counts. A witness was removed outside of any
            # batch, and will be asked for.
            if _is_empty(record) and head.holds(txid, attempt) and name not in witnesses:
                self._records.pop(name, None)
        self._removed.clear()


class MemoryRows(RowsStore):
    """A list of rows with a head."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: dict[tuple[int, int], pa.Table] = {}
        self._head: Head | None = None
        self._lock = threading.Lock()

    def read_head(self) -> Head | None:
        with self._lock:
            return self._head

    def move_head(self, expected: Head | None, new: Head) -> None:
        with self._lock:
            if self._head != expected:
                raise FencedError(f"{self._name}: the head has moved to {self._head}")
            if takes_over(expected, new):
                kept = {at: rows for at, rows in self._rows.items() if at[0] < new.stamp.txid}
                self._rows = kept
            self._head = new

    def write_rows(self, stamp: Stamp, partition: int, rows: pa.Table) -> None:
        with self._lock:
            check_stamp(self._head, stamp, state=self._name)
            self._rows[stamp.txid, partition] = rows

    def has_rows_of(self, txid: int, partition: int) -> bool:
        with self._lock:
            return (txid, partition) in self._rows

    def read_rows(self, last: int, shard: int = 0, shards: int = 1) -> Iterator[pa.Table]:
        with self._lock:
            found = [rows for (txid, _), rows in self._rows.items() if txid <= last]
        yield from found[shard::shards]


@dataclass(frozen=True, kw_only=True)
class MemoryRowsState(RowsStoreState):
    """Rows that live as long as this process; `MemoryMapState` makes it."""

    id: str

    backend = "memory"
    driver_only = True
    volatile = True

    @property
    def title(self) -> str:
        return f"memory state {self.id[:8]}"

    def store(self) -> MemoryRows:
        with _maps_lock:
            return _tables.setdefault(self.id, MemoryRows(self.title))

    def location(self) -> str:
        return f"memory:{self.id}"


def _is_empty(record: Any) -> bool:
    return getattr(record, "value", record) is None


_maps: dict[str, MemoryMap[Any]] = {}
_tables: dict[str, MemoryRows] = {}
_maps_lock = threading.Lock()


@dataclass(frozen=True)
class MemoryMapState(EachKind, StateFactory):
    """A state that lives as long as this process; opaque unless told otherwise."""

    kind: StateKind = StateKind.OPAQUE
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    types: Layout | None = field(default=None, compare=False, repr=False)

    driver_only = True
    volatile = True
    fenced = True

    def __post_init__(self) -> None:
        if not isinstance(self.kind, StateKind):
            raise TopologyError(
                f"MemoryMapState({self.kind!r}): the first argument is a StateKind; "
                f"a name is given by MemoryMapState().named({self.kind!r})"
            )

    def named(self, name: str) -> MemoryMapState:
        """Return a state that is found again under this name in this process."""
        return replace(self, id=name)

    def bind(self, keys: Schema, values: Schema) -> MemoryMapState:
        """Take the types, so that what a store with columns refuses is refused here too."""
        return replace(self, types=Layout(keys, values))

    def bind_rows(
        self, rows: Schema, keys: tuple[str, ...] = (), order_by: str | None = None
    ) -> StateFactory:
        if keys:
            return self.bind(*key_and_value(rows, keys, f"memory state {self.id[:8]}"))
        refuse_kind(self.kind, f"memory state {self.id[:8]}")
        return MemoryRowsState(id=self.id, rows=rows)

    def backing(self) -> MemoryMap[Any]:
        """Return the map behind the state, one for all partitions."""
        with _maps_lock:
            return _maps.setdefault(self.id, MemoryMap(f"memory state {self.id[:8]}"))

    def identity(self) -> Mapping[str, Any]:
        """Name the columns too, so that it is noticed when there are more."""
        layout = {} if self.types is None else {"layout": self.types.describe()}
        return {**super().identity(), **layout}

    def location(self) -> str:
        return f"memory:{self.id}"

    def make_state(
        self, conf: Config, partition_index: int, num_partitions: int
    ) -> BatchedMap[Any, Any]:
        name = f"memory state {self.id[:8]}"
        return make_map(
            self.kind, self.backing(), name=name, partition=partition_index, types=self.types
        )
