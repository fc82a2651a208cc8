"""The opaque map: exact even if a batch comes back with other tuples in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from waterspout.errors import StaleBatchError
from waterspout.state.base import Key, StateKind, ValueUpdater
from waterspout.state.batched import BatchedMap
from waterspout.state.head import NOTHING, Claim, Head

__all__ = ["OpaqueMap", "OpaqueValue"]

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

    def _amend(self, record: OpaqueValue[V] | None, updater: ValueUpdater[V]) -> OpaqueValue[V]:
        if record is None:
            return OpaqueValue(0, 0, updater.update(None))
        # Into both values: the write stays, whether the record's batch commits or is replayed.
        value, prev = updater.update(record.value), updater.update(record.prev)
        return OpaqueValue(record.txid, record.attempt, value, prev)

    def _read(self, record: OpaqueValue[V] | None, head: Head | None) -> Any:
        if record is None:
            return None
        if head is None or head.holds(record.txid, record.attempt):
            return record.value
        return record.prev
