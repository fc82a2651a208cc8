"""The three maps, one for each kind of state, and one value in a map of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from waterspout.errors import StaleBatchError, StoreError
from waterspout.state._base import (
    BackingMap,
    Key,
    RecordColumns,
    Snapshottable,
    StateKind,
    ValueUpdater,
)
from waterspout.state._batched import BatchedMap
from waterspout.state._columns import Layout
from waterspout.state._head import NOTHING, Claim, Head

__all__ = [
    "EachKind",
    "NonTransactionalMap",
    "OpaqueMap",
    "OpaqueValue",
    "SnapshottableMap",
    "TransactionalMap",
    "TransactionalValue",
    "make_map",
]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class OpaqueValue(Generic[V]):
    """A value, the batch and attempt that wrote it, and the value before that batch."""

    txid: int
    attempt: int
    value: V | None
    prev: V | None = None

    def before(
        self, txid: int, resolved: Mapping[int, int] = NOTHING, key: object = None
    ) -> V | None:
        """Return the value that batch `txid` must start from.

        Of this txid: `prev`, because the earlier attempt must leave no trace. Of an older one:
        `value`, unless `resolved` says that another attempt of that batch is the one that
        committed; then this record was never part of the stream's history, and `prev` counts.

        >>> OpaqueValue(2, 0, 4, prev=1).before(3), OpaqueValue(2, 0, 4, prev=1).before(2)
        (4, 1)
        """
        if txid < self.txid:
            raise StaleBatchError(txid, self.txid, key)
        if txid == self.txid:
            return self.prev
        return self.value if resolved.get(self.txid, self.attempt) == self.attempt else self.prev


class OpaqueMap(BatchedMap[V, OpaqueValue[V]]):
    """Exactly-once over transactional and opaque spouts; readers see committed values.

    A replayed batch may hold other tuples than before, or none for some key.
    """

    kind: ClassVar[StateKind] = StateKind.OPAQUE

    def _open(self, record: OpaqueValue[V] | None, batch: Claim, key: Key) -> tuple[Any, bool]:
        if record is None:
            return None, True
        return record.before(batch.attempt.txid, batch.resolved, key), True

    def _close(self, start: Any, value: Any, batch: Claim) -> OpaqueValue[V]:
        return OpaqueValue(batch.attempt.txid, batch.attempt.attempt_id, value, start)

    def _from_columns(self, found: RecordColumns) -> Iterable[OpaqueValue[V]]:
        return map(OpaqueValue, found.txids, found.attempts, found.values, found.prevs)

    def _amend(self, record: OpaqueValue[V] | None, updater: ValueUpdater[V]) -> OpaqueValue[V]:
        if record is None:
            return OpaqueValue(0, 0, updater.update(None))
        # Into both values: the write stays, whether the record's batch commits or is replayed.
        value, prev = updater.update(record.value), updater.update(record.prev)
        return OpaqueValue(record.txid, record.attempt, value, prev)

    def put_back_lost(self, resolved: Mapping[int, int]) -> bool:
        fence = self._backing.fence
        if fence is None or fence.undoes_lost_attempts:
            return super().put_back_lost(resolved)
        try:
            for chunk in self._backing.uncached.scan():
                lost = [(k, r) for k, r in chunk if resolved.get(r.txid, r.attempt) != r.attempt]
                keys, read = [key for key, _ in lost], [record for _, record in lost]
                before = [OpaqueValue(0, 0, record.prev) for record in read]
                if lost and not all(fence.multi_compare_and_put(keys, read, before)):
                    return False
        except StoreError:  # it cannot list; or it is down, which the next step will say
            return False
        return True

    def _read(self, record: OpaqueValue[V] | None, head: Head | None) -> Any:
        if record is None:
            return None
        if head is None or head.holds(record.txid, record.attempt):
            return record.value
        return record.prev


@dataclass(frozen=True, slots=True)
class TransactionalValue(Generic[V]):
    """A value and the batch (and attempt) that wrote it last."""

    txid: int
    attempt: int
    value: V | None


class TransactionalMap(BatchedMap[V, TransactionalValue[V]]):
    """Exactly-once over transactional spouts: a key that already has the batch is skipped.

    Readers outside a batch may see the batch that is being committed: there is no older value
    to show instead. Told to `wait_for_commits`, they wait until it has committed.
    """

    kind: ClassVar[StateKind] = StateKind.TRANSACTIONAL

    def _open(
        self, record: TransactionalValue[V] | None, batch: Claim, key: Key
    ) -> tuple[Any, bool]:
        if record is None:
            return None, True
        txid = batch.attempt.txid
        if record.txid > txid:
            raise StaleBatchError(txid, record.txid, key)
        return record.value, record.txid < txid

    def _close(self, start: Any, value: Any, batch: Claim) -> TransactionalValue[V]:
        return TransactionalValue(batch.attempt.txid, batch.attempt.attempt_id, value)

    def _from_columns(self, found: RecordColumns) -> Iterable[TransactionalValue[V]]:
        return map(TransactionalValue, found.txids, found.attempts, found.values)

    def _amend(
        self, record: TransactionalValue[V] | None, updater: ValueUpdater[V]
    ) -> TransactionalValue[V]:
        if record is None:
            return TransactionalValue(0, 0, updater.update(None))
        return TransactionalValue(record.txid, record.attempt, updater.update(record.value))

    def _read(self, record: TransactionalValue[V] | None, head: Head | None) -> Any:
        return None if record is None else record.value

    def _await_commit(
        self, head: Head | None, records: Sequence[TransactionalValue[V] | None]
    ) -> None:
        if self._pause is None or head is None:
            return
        # What was read stays what the batch gives, whichever attempt commits it.
        newest = max((record.txid for record in records if record is not None), default=0)
        while not head.has(newest):
            self._pause(f"batch {newest} is being committed to {self._name}")
            head = self.read_head() or head


class NonTransactionalMap(BatchedMap[V, Any]):
    """At-least-once: the least to store, and no protection against a replay."""

    kind: ClassVar[StateKind] = StateKind.NON_TRANSACTIONAL

    def _open(self, record: Any, batch: Claim, key: Key) -> tuple[Any, bool]:
        return record, True

    def _close(self, start: Any, value: Any, batch: Claim) -> Any:
        return value

    def _from_columns(self, found: RecordColumns) -> Iterable[Any]:
        return found.values

    def _amend(self, record: Any, updater: ValueUpdater[V]) -> Any:
        return updater.update(record)

    def _read(self, record: Any, head: Head | None) -> Any:
        return record


_MAPS: dict[StateKind, type[BatchedMap[Any, Any]]] = {
    StateKind.OPAQUE: OpaqueMap,
    StateKind.TRANSACTIONAL: TransactionalMap,
    StateKind.NON_TRANSACTIONAL: NonTransactionalMap,
}


def make_map(
    kind: StateKind,
    backing: BackingMap[Any],
    *,
    name: str,
    partition: int = 0,
    types: Layout | None = None,
) -> BatchedMap[Any, Any]:
    """Return the map of this kind over a backing map; `name` is what errors call it."""
    return _MAPS[kind](backing, name=name, partition=partition, types=types)


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
