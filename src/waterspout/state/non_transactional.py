"""The non-transactional map: just the values, counted again when a batch is replayed."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from waterspout.state.base import Key, StateKind, ValueUpdater
from waterspout.state.batched import BatchedMap
from waterspout.state.head import Claim, Head

__all__ = ["NonTransactionalMap"]

V = TypeVar("V")


class NonTransactionalMap(BatchedMap[V, Any]):
    """At-least-once: the least to store, and no protection against a replay."""

    kind: ClassVar[StateKind] = StateKind.NON_TRANSACTIONAL

    def _open(self, record: Any, batch: Claim, key: Key) -> tuple[Any, bool]:
        return record, True

    def _close(self, start: Any, value: Any, batch: Claim) -> Any:
        return value

    def _amend(self, record: Any, updater: ValueUpdater[V]) -> Any:
        return updater.update(record)

    def _read(self, record: Any, head: Head | None) -> Any:
        return record
