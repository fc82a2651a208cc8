"""Rows from a list, some per batch: for tests, demonstrations and unit tests of topologies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waterspout._arrow import table_of_rows
from waterspout._schema import FieldNames, Schema
from waterspout.errors import SourceError, TopologyError
from waterspout.spouts._base import BatchPlanner, BatchSpout, RunsIn, SpoutContext, SpoutKind
from waterspout.spouts._inference import types_of
from waterspout.spouts._reads import Read, RowsRead

__all__ = ["FixedBatchSpout"]


class FixedBatchSpout(BatchSpout):
    """Emit `rows` in batches of at most `max_batch_size`, once or over and over.

    Transactional: a batch is a range of positions in the list. Types are taken from DDL
    (`"sentence string"`) or, for bare names, from the values.
    """

    read_in = RunsIn.DRIVER
    kind = SpoutKind.TRANSACTIONAL

    def __init__(
        self,
        fields: FieldNames,
        max_batch_size: int,
        rows: Sequence[Any],
        cycle: bool = False,
    ) -> None:
        names = Schema.parse(fields)
        if max_batch_size < 1:
            raise TopologyError(
                f"FixedBatchSpout needs a batch size of at least 1, not {max_batch_size}"
            )
        self._rows = [_as_row(row, len(names)) for row in rows]
        self._schema = names.fill_types(types_of(self._rows, len(names)))
        self._schema.require_types(where="FixedBatchSpout")
        _refuse_misfits(self._schema, self._rows)
        self._size = max_batch_size
        self._cycle = cycle and bool(self._rows)

    @property
    def schema(self) -> Schema:
        return self._schema

    def open(self, context: SpoutContext) -> BatchPlanner:
        return _FixedPlanner(None if self._cycle else len(self._rows), self._size)

    def read(self, metadata: Any) -> Read:
        """Take the rows of the range; those of a cycle go on at the start behind the last."""
        rows = self._rows
        wanted = range(metadata["start"], metadata["end"])
        if wanted.stop > len(rows) and not self._cycle:
            raise SourceError(
                f"FixedBatchSpout: an unfinished batch holds rows {wanted.start} to {wanted.stop}, "
                f"but there are {len(rows)} rows. Rows may be added, not taken away."
            )
        return RowsRead(self._schema, [rows[i % len(rows)] for i in wanted], start=wanted.start)

    def identity(self) -> Mapping[str, Any]:
        """The kind of spout and its fields; the rows may grow."""
        return {**super().identity(), "fields": str(self._schema)}

    def so_far(self, metadata: Any, folder: Path | None, spout_id: str) -> Any:
        return {**metadata, "start": 0}


class _FixedPlanner(BatchPlanner):
    def __init__(self, total: int | None, size: int) -> None:
        self._total = total
        self._size = size

    def is_ready(self, previous: Any) -> bool:
        return self._total is None or _end(previous) < self._total

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        start = _end(previous)
        end = start + self._size
        if self._total is not None:
            end = max(start, min(end, self._total))
        return {"start": start, "end": end}

    def lag(self, previous: Any) -> Mapping[str, int]:
        return {} if self._total is None else {"rows": max(0, self._total - _end(previous))}

    def holds_data(self, metadata: Any) -> bool | None:
        return bool(metadata["end"] > metadata["start"])


def _end(previous: Any) -> int:
    return 0 if previous is None else int(previous["end"])


def _as_row(row: Any, width: int) -> tuple[Any, ...]:
    values = tuple(row) if isinstance(row, (tuple, list)) else (row,)
    if len(values) != width:
        raise TopologyError(f"row {row!r} has {len(values)} values; the spout has {width} fields")
    return values


def _refuse_misfits(schema: Schema, rows: Sequence[tuple[Any, ...]]) -> None:
    try:
        table_of_rows(schema, rows, where="FixedBatchSpout")
    except TypeError as error:
        raise TopologyError(str(error)) from None
