"""Custom groupings over the rows of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from waterspout.errors import ResultError
from waterspout.trident.runtime.rows import as_tuples

__all__ = ["PARTITION", "CustomRoute"]

PARTITION = "_waterspout_partition"
"""The column that says which partition a row goes to."""


class CustomRoute:
    """A grouping that is ready to choose among so many partitions."""

    def __init__(self, grouping: Any, partitions: int, title: str) -> None:
        self._grouping = grouping
        self._partitions = range(partitions)
        self._title = title
        prepare = getattr(grouping, "prepare", None)
        if prepare is not None:
            prepare(None, title, list(self._partitions))

    def dealt(self, batch: pa.RecordBatch, source: int) -> pa.RecordBatch:
        """Return each row once for every partition that it goes to, with that partition."""
        rows: list[int] = []
        numbers: list[int] = []
        for number, row in enumerate(as_tuples(batch, batch.schema.names)):
            chosen = self._checked(self._grouping.choose_tasks(source, list(row.values)))
            rows += [number] * len(chosen)
            numbers += chosen
        taken = batch.take(pa.array(rows, pa.int64()))
        columns = [*taken.columns, pa.array(numbers, pa.int32())]
        return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, PARTITION])

    def _checked(self, chosen: Sequence[int]) -> list[int]:
        for number in chosen:
            if number not in self._partitions:
                raise ResultError(
                    f"{self._title}: the grouping chose partition {number!r}; there are "
                    f"{len(self._partitions)}, from 0"
                )
        return list(chosen)
