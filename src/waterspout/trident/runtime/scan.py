"""A whole state as rows: read in parts by Spark's tasks, or at once where only the driver can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.state._batched import BatchedMap
from waterspout.state._rows import RowsState
from waterspout.trident.plan.plan import StateSpec
from waterspout.trident.runtime.rows import rows_to_batch

__all__ = ["ScanTask"]


@dataclass(frozen=True)
class ScanTask:
    """Reads the parts whose numbers it is given; picklable."""

    spec: StateSpec
    schema: Schema
    keys: int
    parts: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each part: keys first, then values."""
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from self.read(part)

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        title = f"state {self.spec.name}"
        state = self.spec.factory.make_state(Config(), 0, self.spec.partitions)
        if isinstance(state, RowsState):
            with closing(state):
                wanted = arrow_schema(self.schema)
                for table in state.scan(part, self.parts):
                    yield from table.select(wanted.names).cast(wanted).to_batches()
            return
        if not isinstance(state, BatchedMap):
            raise TopologyError(f"{title} is not one of waterspout's maps; it cannot be listed")
        try:
            finisher = self.spec.finisher
            for chunk in state.scan(part, self.parts):
                if finisher is not None:
                    chunk = [(key, finisher.finish(value)) for key, value in chunk]
                if chunk:
                    yield rows_to_batch([self._row(*pair) for pair in chunk], self.schema, title)
        finally:
            state.close()

    def everything(self) -> pa.Table:
        """Return all rows, read here."""
        found = [batch for part in range(self.parts) for batch in self.read(part)]
        return pa.Table.from_batches(found, schema=arrow_schema(self.schema))

    def _row(self, key: Any, value: Any) -> tuple[Any, ...]:
        return (*key, value) if len(self.schema) - self.keys == 1 else (*key, *value)
