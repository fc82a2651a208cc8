"""Partitions in memory, as transactional and as opaque spouts: for tests and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from waterspout.errors import TopologyError
from waterspout.topology._component import Component
from waterspout.topology._context import TopologyContext
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._bolts import BatchCollector
from waterspout.transactional._spouts import (
    OpaqueEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedTransactionalSpout,
    PartitionEmitter,
)

__all__ = ["MemoryTransactionalSpout", "OpaqueMemoryTransactionalSpout"]

Rows = Sequence[Sequence[Any]]


class _Memory(Component):
    """Rows by partition; a batch takes at most `take` from each."""

    def __init__(
        self,
        partitions: Mapping[int, Rows] | Sequence[Rows],
        fields: str | Sequence[str],
        take: int,
    ) -> None:
        given = partitions if isinstance(partitions, Mapping) else dict(enumerate(partitions))
        if sorted(given) != list(range(len(given))):
            raise TopologyError(f"partitions are numbered 0, 1, 2...; these are {sorted(given)}")
        if not isinstance(take, int) or take < 1:
            raise TopologyError(f"take is how many rows a batch has of a partition, not {take!r}")
        names = (fields,) if isinstance(fields, str) else tuple(fields)
        self.output_fields = ("tx", *names)
        self.rows = [[_row(row, names) for row in given[p]] for p in range(len(given))]
        self.take = take
        self.disabled: set[int] = set()

    def after(self, partition: int, last: Any) -> Any:
        """Return the range behind another one; a subclass may take more or fewer rows."""
        start = 0 if last is None else last[0] + last[1]
        count = min(self.take, len(self.rows[partition]) - start)
        return [start, count] if count > 0 else None

    def span(self, metadata: Any) -> tuple[int, int]:
        """Return where a range begins and ends, for `check_emitter`."""
        start, count = metadata
        return start, start + count

    def get_coordinator(
        self, conf: Mapping[str, Any], context: TopologyContext
    ) -> PartitionCoordinator:
        return _Ranges(self)


def _row(row: Any, names: Sequence[str]) -> tuple[Any, ...]:
    values = tuple(row) if isinstance(row, list | tuple) else (row,)
    if len(values) != len(names):
        raise TopologyError(f"row {row!r} has {len(values)} values; the fields are {names}")
    return values


class MemoryTransactionalSpout(_Memory, PartitionedTransactionalSpout):
    """Rows that are the same in every attempt at a batch."""

    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> PartitionEmitter:
        return _Ranges(self)


class OpaqueMemoryTransactionalSpout(_Memory, OpaquePartitionedTransactionalSpout):
    """Rows of partitions that can be switched off: a batch is then what the others have."""

    def set_disabled(self, partition: int, disabled: bool = True) -> None:
        """Switch a partition off (True) or on again; counts from the next attempt on."""
        if disabled:
            self.disabled.add(partition)
        else:
            self.disabled.discard(partition)

    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> OpaqueEmitter:
        return _Ranges(self)


class _Ranges(PartitionCoordinator, PartitionEmitter, OpaqueEmitter):
    """Coordinator and emitter of both spouts: a range is its first row, and how many."""

    def __init__(self, spout: _Memory) -> None:
        self._spout = spout

    def num_partitions(self) -> int:
        return len(self._spout.rows)

    def next_metadata(self, txid: int, partition: int, last: Any) -> Any:
        down = partition in self._spout.disabled
        return None if down else self._spout.after(partition, last)

    def lag(self, partition: int, last: Any) -> int:
        """Return how many rows are behind a range."""
        return len(self._spout.rows[partition]) - (0 if last is None else last[0] + last[1])

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: BatchCollector, partition: int, metadata: Any
    ) -> Any:
        start, count = metadata
        for row in self._spout.rows[partition][start : start + count]:
            collector.emit([attempt, *row])
        return metadata
