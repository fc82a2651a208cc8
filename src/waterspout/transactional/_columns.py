"""Tuples of a batch by column. The attempt, which each of them carries, is in no column.

Where it would stand, as the first field of the stream, is a column of nulls: it takes no room, and
the others are at the places of their fields, where groupings look for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from waterspout._safe_repr import described
from waterspout._tuples import Origin
from waterspout.errors import EmitError
from waterspout.topology._column_batches import ColumnBatch, as_batch
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.waves.frames import Frame

__all__ = ["batch_of", "columns_of", "rows_of_attempt", "taken_columns"]


def batch_of(columns: ColumnBatch, names: Sequence[str], stream: str) -> pa.RecordBatch:
    """Return what was given as columns, of all fields but the first, as a batch of a stream."""
    first, *others = names
    if not others:
        raise EmitError(
            f"stream {stream!r} has no field besides {first!r}, the attempt's: emit_batch has no "
            "column; use emit([attempt])"
        )
    batch = as_batch(_without(first, columns, stream), others, stream)
    return _behind_nulls(batch.columns, names)


def _without(first: str, columns: ColumnBatch, stream: str) -> ColumnBatch:
    """Leave out a column by the name of the attempt's field: the empty one of a batch passed on."""
    if isinstance(columns, pa.RecordBatch | pa.Table):
        columns = dict(zip(columns.schema.names, columns.columns, strict=True))
    if not isinstance(columns, Mapping) or first not in columns:
        return columns
    if not pa.types.is_null(getattr(columns[first], "type", None) or pa.int8()):
        raise EmitError(
            f"emit_batch got a column for {first!r}, the first field of stream {stream!r}: the "
            "attempt goes with each row by itself; leave that column out"
        )
    return {name: column for name, column in columns.items() if name != first}


def _behind_nulls(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(len(columns[0])), *columns], names=list(names))


def taken_columns(columns: ColumnBatch, stream: str) -> pa.RecordBatch | list[pa.Array]:
    """Return columns as they can be kept where nobody knows the fields of the stream."""
    if isinstance(columns, pa.RecordBatch | pa.Table):
        return as_batch(columns, columns.schema.names, stream)
    if isinstance(columns, Mapping):
        return as_batch(columns, list(columns), stream)
    width = len(columns) if isinstance(columns, list | tuple) else 0
    arrays: list[pa.Array] = as_batch(columns, [str(n) for n in range(width)], stream).columns
    return arrays


def rows_of_attempt(
    batch: pa.RecordBatch, attempt: TransactionAttempt
) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a batch as tuples that carry their attempt."""
    columns = [column.to_pylist() for column in batch.columns[1:]]
    return zip(repeat(attempt, batch.num_rows), *columns, strict=True)


def columns_of(frame: Frame, origin: Origin) -> pa.RecordBatch:
    """Return the tuples of a frame, however they were emitted, as what `execute_batch` gets."""
    batch = frame.values if isinstance(frame.values, pa.RecordBatch) else _by_column(frame, origin)
    told = {"component": origin.component, "stream": origin.stream}
    return batch.replace_schema_metadata(told)


def _by_column(frame: Frame, origin: Origin) -> pa.RecordBatch:
    names = list(origin.fields)
    arrays = [pa.nulls(len(frame))]
    for name, values in zip(names[1:], frame.lists[1:], strict=True):
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise EmitError(
                f"{origin.component!r} emitted values for field {name!r} of stream "
                f"{origin.stream!r} that execute_batch cannot get as a column: {described(error)}. "
                "Emit values of one type, or write execute(tuple)"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, names=names)
