"""The transactional map: exact if a batch always comes back the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from waterspout.errors import StaleBatchError
from waterspout.state.base import Key, StateKind, ValueUpdater
from waterspout.state.batched import BatchedMap
from waterspout.state.head import Claim, Head

__all__ = ["TransactionalMap", "TransactionalValue"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TransactionalValue(Generic[V]):
    """A value and the batch (and attempt) that wrote it last."""

    txid: int
    attempt: int
    value: V | None


class TransactionalMap(BatchedMap[V, TransactionalValue[V]]):
    """Exactly-once over transactional spouts: a key that already has the batch is skipped.

    Readers outside a batch may see the batch that is being committed: there is no older value
    to show instead.
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

    def _amend(
        self, record: TransactionalValue[V] | None, updater: ValueUpdater[V]
    ) -> TransactionalValue[V]:
        if record is None:
            return TransactionalValue(0, 0, updater.update(None))
        return TransactionalValue(record.txid, record.attempt, updater.update(record.value))

    def _read(self, record: TransactionalValue[V] | None, head: Head | None) -> Any:
        return None if record is None else record.value
