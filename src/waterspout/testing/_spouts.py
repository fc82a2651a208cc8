"""Spouts for tests: a partitioned log whose partitions can be switched off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from waterspout._schema import FieldNames, Schema
from waterspout.spouts._base import BatchPlanner, BatchSpout, SpoutContext, SpoutKind
from waterspout.spouts._reads import Read, RowsRead

__all__ = ["MemoryLog"]


class MemoryLog(BatchSpout):
    """Rows in partitions, read as Kafka would be: a batch is a range of each partition.

    Opaque: each attempt takes what it can get from where the last batch ended, so a partition
    that is `disabled` is left out, and `take(partition)` may answer another size each time.
    Transactional: the ranges of the first attempt hold for all. `sized`: it takes as many rows as
    it is asked for, once somebody asks (`Config(batch_sizing=True)`).
    """

    def __init__(
        self,
        fields: FieldNames,
        partitions: Sequence[Sequence[Sequence[Any]]],
        *,
        kind: SpoutKind = SpoutKind.OPAQUE,
        take: Callable[[int], int] | int = 10,
        sized: bool = False,
    ) -> None:
        self._schema = Schema.parse(fields).require_types(where="MemoryLog")
        self._partitions = partitions
        self._take = take if callable(take) else (lambda _: take)
        self.kind = kind
        self.sized = sized
        self.disabled: set[int] = set()

    @property
    def schema(self) -> Schema:
        return self._schema

    def open(self, context: SpoutContext) -> BatchPlanner:
        return _LogPlanner(self)

    def read(self, metadata: Any) -> Read:
        ranges = list(enumerate(metadata["ranges"]))
        rows = [row for p, (start, end) in ranges for row in self._partitions[p][start:end]]
        positions = [f"{p}:{offset}" for p, (start, end) in ranges for offset in range(start, end)]
        return RowsRead(self._schema, rows, positions=positions)

    def plan_from(self, previous: Any, target: int | None = None) -> dict[str, Any]:
        """Return the next range of every partition."""
        ranges, left = [], target if self.sized else None
        for partition, rows in enumerate(self._partitions):
            start = 0 if previous is None else previous["ranges"][partition][1]
            wanted = 0
            if partition not in self.disabled:
                wanted = self._take(partition) if left is None else left
            end = min(len(rows), start + wanted)
            ranges.append([start, end])
            left = None if left is None else left - (end - start)
        return {"ranges": ranges}

    def waiting(self, position: Any) -> int:
        """Return how many rows come behind a position."""
        at = [0] * len(self._partitions)
        if position is not None:
            at = [end for _, end in position["ranges"]]
        return sum(len(rows) - end for rows, end in zip(self._partitions, at, strict=True))

    def has_more(self, position: Any) -> bool:
        """Whether an enabled partition goes on behind a position."""
        return any(
            partition not in self.disabled
            and (0 if position is None else position["ranges"][partition][1]) < len(rows)
            for partition, rows in enumerate(self._partitions)
        )

    def identity(self) -> Mapping[str, Any]:
        return {**super().identity(), "partitions": len(self._partitions)}


class _LogPlanner(BatchPlanner):
    def __init__(self, spout: MemoryLog) -> None:
        self._spout = spout

    def is_ready(self, previous: Any) -> bool:
        return self._spout.has_more(previous)

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        if self._spout.sized:
            return self._spout.plan_from(previous, target)
        return self._spout.plan_from(previous)

    def size_of(self, metadata: Any) -> int | None:
        if not self._spout.sized:
            return None
        return int(sum(end - start for start, end in metadata["ranges"]))

    def lag(self, previous: Any) -> Mapping[str, int]:
        return {"rows": self._spout.waiting(previous)} if self._spout.sized else {}

    def holds_data(self, metadata: Any) -> bool | None:
        return any(end > start for start, end in metadata["ranges"])
