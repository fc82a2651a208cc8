"""The contracts of states: what a store author writes and what a topology calls."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from waterspout._config import Config
from waterspout._safe_repr import shown
from waterspout._schema import Schema
from waterspout.errors import StoreError, TopologyError
from waterspout.state._head import Head, Stamp

__all__ = [
    "BackingMap",
    "Combiner",
    "FencedMap",
    "Key",
    "Keys",
    "LayeredMap",
    "MapState",
    "RecordColumns",
    "Records",
    "Risk",
    "Snapshottable",
    "State",
    "StateFactory",
    "StateKind",
    "Unclear",
    "ValueUpdater",
    "require_factory",
]

V = TypeVar("V")
Key = Sequence[Any]
Keys = Sequence[Key]
Records = Sequence[Any]
"""One record per key, or None where a key has none."""


class StateKind(Enum):
    """What a state remembers beside each value, and so what it can promise."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Risk:
    """Why a store may lose or replace what a batch has committed, unnoticed; and what to do."""

    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The records of many keys by column: their values, and as much more as their kind has.

    A key without a record has batch 0 and no values.
    """

    values: Sequence[Any]
    txids: Sequence[int] = ()
    attempts: Sequence[int] = ()
    prevs: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Unclear:
    """The batches whose records say nothing before they are judged: `first` and later, `others`."""

    first: int
    others: Collection[int] = ()

    def has(self, txids: Sequence[int]) -> bool:
        """Whether one of some records' batches is such a batch."""
        return max(txids) >= self.first or not set(self.others).isdisjoint(txids)


UNFENCED = Risk(
    "its store has no fence: the late write of an attempt that was given up can replace what was "
    "committed since",
    "Give its map a fence and its recipe fenced = True (see docs/stores.md)",
)


class ValueUpdater(ABC, Generic[V]):
    """How one key's value changes in a batch."""

    __slots__ = ()  # there is one for each key of a batch

    @abstractmethod
    def update(self, stored: V | None) -> V | None:
        """Return the new value.

        Called once per batch and key; again, from the same stored value, in a replay.
        """


class Combiner(ABC):
    """What a state needs of a combiner aggregator."""

    merge: ClassVar[str | None] = None
    """`sum`, `min` or `max` if `combine` is just that, so that a store may do it itself."""

    @property
    def merges(self) -> tuple[str | None, ...]:
        """The `merge` of each column of the value; most values have one."""
        return (self.merge,)

    @abstractmethod
    def combine(self, left: Any, right: Any) -> Any:
        """Return both partial results as one."""


class State(ABC):  # noqa: B024  (both hooks are optional)
    """Something a topology updates or queries.

    For each batch and partition with tuples: `begin_commit`, then the updates, then `commit`,
    in txid order. A replay of a batch calls all three again with the same txid.
    """

    def begin_commit(self, txid: int | None) -> None:  # noqa: B027  (optional hook)
        """Learn that the updates of batch `txid` follow; None on a DRPC stream."""

    def commit(self, txid: int | None) -> None:  # noqa: B027  (optional hook)
        """Learn that the updates of batch `txid` are complete: they must now be durable."""

    def close(self) -> None:  # noqa: B027  (optional hook)
        """Give up connections. Not called if the process dies."""


class MapState(State, Generic[V]):
    """Values under keys; a key is a tuple or list of values, also for one field."""

    @abstractmethod
    def multi_get(self, keys: Keys) -> list[V | None]:
        """Return one value per key, in order; None where there is none."""

    @abstractmethod
    def multi_update(self, keys: Keys, updaters: Sequence[ValueUpdater[V]]) -> list[V | None]:
        """Apply one updater per key and return the new values. A key may come twice."""

    @abstractmethod
    def multi_put(self, keys: Keys, values: Sequence[V | None]) -> None:
        """Set values whatever was there."""

    def multi_remove(self, keys: Keys) -> None:
        """Leave these keys without a value: None for a reader, and not listed any more."""
        self.multi_put(keys, [None] * len(keys))


class Snapshottable(State, Generic[V]):
    """One value, such as a global count."""

    @abstractmethod
    def get(self) -> V | None:
        """Return the value."""

    @abstractmethod
    def update(self, updater: ValueUpdater[V]) -> V | None:
        """Change the value and return the new one."""

    @abstractmethod
    def set(self, value: V | None) -> None:
        """Set the value whatever was there."""


class BackingMap(ABC, Generic[V]):
    """Batched key-value storage that knows nothing of transactions.

    A store author writes these two methods; the maps of this package make exactly-once
    states of them. What is stored under a key is a record (`OpaqueValue`,
    `TransactionalValue`) or, below a non-transactional map, the value itself.
    """

    @property
    def fence(self) -> FencedMap[V] | None:
        """The same map with a fence, if the store has one."""
        return None

    @property
    def uncached(self) -> BackingMap[V]:
        """The map that reads the store itself; a cache in front of it says which."""
        return self

    @property
    def forgets(self) -> bool:
        """Whether a record may be gone because it was asked to expire."""
        return False

    @abstractmethod
    def multi_get(self, keys: Keys) -> list[V | None]:
        """Return one record per key, in order; None where there is none."""

    @abstractmethod
    def multi_put(self, keys: Keys, values: Sequence[V]) -> None:
        """Store all pairs. May be called again with the same pairs."""

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, V]]]:
        """Yield all keys and records in chunks, or only those of one of `shards` equal shards.

        Every record is in exactly one shard. What changes meanwhile may be seen or not.
        """
        raise StoreError(f"{type(self).__name__} cannot list what it holds")

    def check(self) -> None:
        """Raise if what is in the store cannot be this map's; writes nothing."""

    def risk(self) -> Risk | None:
        """Ask the store whether it may lose or replace what it has acknowledged; None: it does not.

        Called before a run.
        """
        return None

    def close(self) -> None:
        """Give up connections; the next call opens them again."""


class FencedMap(BackingMap[V]):
    """A backing map whose store can check the head in the transaction of a write."""

    @property
    def undoes_lost_attempts(self) -> bool:
        """Whether `move_head` takes back the records of an attempt that was lost."""
        return False

    @property
    def fence(self) -> FencedMap[V] | None:
        return self

    def check(self) -> None:
        """Look at the head, which tells whose the store is."""
        self.read_head()

    @abstractmethod
    def read_head(self) -> Head | None:
        """Return the head, or None where there is none."""

    @abstractmethod
    def move_head(self, expected: Head | None, new: Head) -> None:
        """Replace the head if it still is `expected`, else raise FencedError.

        If `undoes_lost_attempts`: when `new` is a later attempt of the batch at the head, the
        records of the earlier one become what they were before, in the same transaction.
        """

    @abstractmethod
    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Sequence[V], read: Sequence[V | None] | None = None
    ) -> None:
        """Store all pairs or none; raise FencedError unless the head has this stamp.

        Keys are distinct. `read` has the records that this attempt found there: of use to a
        store that compares key by key (`ComparingMap`), no matter to one that checks the head.
        """

    @abstractmethod
    def multi_compare_and_put(
        self, keys: Keys, read: Sequence[V | None], values: Sequence[V]
    ) -> list[bool]:
        """Store each pair whose key still has the record that was read; say which were stored.

        Keys are distinct. For writes outside of any batch, which no head puts in order with
        those of a batch.
        """

    by_column: ClassVar[bool] = False
    """Whether it has the next two methods, which spare an object for each record."""

    def get_columns(self, keys: Keys, names: Sequence[str], unclear: Unclear) -> RecordColumns:
        """Return what `multi_get` returns, by column; `names` are the texts of the keys.

        Only the values, if no record is of a batch that is unclear.
        """
        raise AssertionError(f"{type(self).__name__} has no columns")

    def fenced_put_columns(
        self,
        stamp: Stamp,
        keys: Keys,
        names: Sequence[str],
        values: Sequence[Any],
        prevs: Records,
        *,
        as_stored: bool,
    ) -> None:
        """Do what `fenced_put` does with the records of the attempt that `stamp` names.

        `values` are the new ones, `prevs` those from before the batch; `names` as above.
        `as_stored` if each of `prevs` is the value that the store has there, so that it need not
        be sent.
        """
        raise AssertionError(f"{type(self).__name__} has no columns")

    def can_combine(self, combiner: Combiner) -> bool:
        """Whether `fenced_combine` can do this combiner's work inside the store."""
        return False

    def fenced_combine(self, stamp: Stamp, keys: Keys, values: Records, combiner: Combiner) -> None:
        """Combine one value into each key's record by the rule of the map above, in the store.

        Keys are distinct. Only called where `can_combine` says yes.
        """
        raise AssertionError(f"{type(self).__name__} cannot combine {combiner!r}")


class LayeredMap(FencedMap[V]):
    """A map in front of another map, fenced if that one is. A subclass says what it adds."""

    def __init__(self, backing: BackingMap[V]) -> None:
        self._backing = backing

    @property
    def fence(self) -> FencedMap[V] | None:
        return self if self._backing.fence is not None else None

    @property
    def undoes_lost_attempts(self) -> bool:
        below = self._backing.fence
        return below is not None and below.undoes_lost_attempts

    @property
    def forgets(self) -> bool:
        return self._backing.forgets

    def read_head(self) -> Head | None:
        return self._below.read_head()

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, V]]]:
        return self._backing.scan(shard, shards)

    def check(self) -> None:
        self._backing.check()

    def risk(self) -> Risk | None:
        return self._backing.risk()

    def close(self) -> None:
        self._backing.close()

    @property
    def _below(self) -> FencedMap[V]:
        below = self._backing.fence
        assert below is not None, "asked for a fence that is not there"
        return below


class StateFactory(ABC):
    """Picklable recipe of a state. Only `make_state`, where it runs, touches the world."""

    kind: StateKind | None = None
    """What the state promises; None if it is the user's own and promises nothing."""

    driver_only: bool = False
    """True if the store is reached only from the driver (its memory, a local file)."""

    volatile: bool = False
    """True if the state ends with this process."""

    fenced: bool = False
    """True if the map that it makes has a fence, so that no old attempt can write any more.

    A state that says so is looked at before a run. One that does not is not exactly-once.
    """

    keeps_rows: bool = False
    """True if the state is a table of rows (`RowsState`), not values under keys."""

    pins_batches: bool = False
    """True if the store cannot take back what a lost attempt at a batch has written to it.

    Once an attempt has begun to commit a batch, every later one is then given the same rows.
    """

    weakness: str | None = None
    """What this store cannot promise (order of writes, durability), in words for `explain()`."""

    @abstractmethod
    def make_state(self, conf: Config, partition_index: int, num_partitions: int) -> State:
        """Build the live state of one partition. Called where it is used, once per batch."""

    def bind(self, keys: Schema, values: Schema) -> StateFactory:
        """Return this recipe for these key and value fields; called when a topology is built."""
        return self

    def bind_rows(
        self, rows: Schema, keys: tuple[str, ...] = (), order_by: str | None = None
    ) -> StateFactory:
        """Return this recipe for rows of these fields: appended, or upserted by some `keys`.

        Called when a topology is built. `order_by` is the field by which the later of two rows of
        a key is known, if there is one.
        """
        raise TopologyError(
            f"{type(self).__name__} keeps values under keys; it cannot take rows. Use SQLiteState, "
            "PostgresState, or another state with bind_rows (see docs/rows.md)"
        )

    def identity(self) -> Mapping[str, Any]:
        """Return what must not change while a topology lives (backend, table), no secrets."""
        kind = {} if self.kind is None else {"kind": self.kind.value}
        return {"backend": type(self).__qualname__, **kind}

    def location(self) -> str | None:
        """Name what is written to, so that two states that share it are found out."""
        return None

    @property
    def risk(self) -> Risk | None:
        """What makes the state not exactly-once, as far as the recipe tells; None: nothing."""
        return None if self.fenced else UNFENCED

    def ask_risk(self) -> Risk | None:
        """Return the same, having asked the store how it is set up. Called before a run."""
        return self.risk

    def check(self) -> None:  # noqa: B027  (optional hook)
        """Raise if the store cannot be used as it is; writes nothing. Called before a run."""


def _class_of(thing: object) -> type:
    return thing if isinstance(thing, type) else type(thing)


def require_factory(given: object, where: str = "") -> None:
    """Refuse what is no recipe of a state, such as a class or the path of a table."""
    if isinstance(given, StateFactory):
        return
    before = f"{where}: " if where else ""
    if inspect.isroutine(given):
        owner = getattr(given, "__self__", None)
        name = given.__name__ if owner is None else f"{_class_of(owner).__name__}.{given.__name__}"
        raise TopologyError(f"{before}{name} is not a StateFactory; call it: {name}(...)")
    shape = f"the class {given.__name__}" if isinstance(given, type) else shown(given)
    raise TopologyError(
        f"{before}{shape} is not a StateFactory; a state is made by a recipe, such as "
        "SQLiteState.opaque(path, table=...)"
    )
