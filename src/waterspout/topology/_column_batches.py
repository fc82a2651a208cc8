"""Tuples by column: what a bolt that takes whole batches emits, and where its rows go.

A batch of columns is an Arrow record batch of a stream's fields. Its rows are tuples like all
others, each with an anchor of its own; but nothing here costs Python a step for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterspout._safe_repr import described, shown
from waterspout._tuples import Fields
from waterspout.errors import EmitError
from waterspout.topology._grouping import Grouping, GroupingKind, OneFieldRoute, Route

__all__ = [
    "BatchRoute",
    "ColumnBatch",
    "ColumnBox",
    "Indices",
    "RowPositions",
    "as_batch",
    "as_indices",
    "make_batch_route",
    "rows_of",
]

Column: TypeAlias = pa.Array | pa.ChunkedArray | npt.NDArray[Any] | Sequence[Any]
"""The values of one field, one for each row."""

ColumnBatch: TypeAlias = pa.RecordBatch | pa.Table | Mapping[str, Column] | Sequence[Column]
"""Rows by column: with names, or in the order of a stream's fields."""

RowPositions: TypeAlias = pa.Array | pa.ChunkedArray | npt.NDArray[Any] | Sequence[int]
"""Positions of rows in a batch, from 0."""

Indices = npt.NDArray[np.int64]

BatchRoute = Callable[[pa.RecordBatch], Sequence[tuple[int, Indices | None]]]
"""From a batch to the tasks that get rows of it, and which rows; None: all of them."""


@dataclass(slots=True)
class ColumnBox:
    """Rows on their way to one task, and what each is anchored to, as in a `Box`."""

    batch: pa.RecordBatch
    anchors: Indices

    def __len__(self) -> int:
        return int(self.batch.num_rows)


def as_batch(columns: ColumnBatch, names: Sequence[str], stream: str) -> pa.RecordBatch:
    """Return what was given as columns as a batch of a stream's fields, in their order.

    It may be a record batch or a table, a dict of columns by name, or a list of columns in the
    order of the fields; a column is an Arrow or numpy array, or a list.
    """
    if isinstance(columns, pa.Table):
        columns = columns.combine_chunks()
    if isinstance(columns, pa.RecordBatch | pa.Table):
        columns = dict(zip(columns.schema.names, columns.columns, strict=True))
    if isinstance(columns, Mapping):
        if set(columns) != set(names):
            raise EmitError(
                f"stream {stream!r} has the fields {', '.join(names)}, but emit_batch got columns "
                f"{', '.join(map(str, columns)) or 'without a name'}"
            )
        given = [columns[name] for name in names]
    elif isinstance(columns, list | tuple):
        given = list(columns)
    else:
        raise EmitError(
            "emit_batch takes columns: a pyarrow RecordBatch, a dict of arrays by field, or a list "
            f"of arrays in the order of the fields; not {shown(columns)}"
        )
    if len(given) != len(names):
        raise EmitError(
            f"stream {stream!r} has {len(names)} fields ({', '.join(names)}) but emit_batch got "
            f"{len(given)} columns"
        )
    arrays = [_array(column, name, stream) for column, name in zip(given, names, strict=True)]
    sizes = {len(array) for array in arrays}
    if len(sizes) > 1:
        told = ", ".join(f"{n}: {len(a)}" for n, a in zip(names, arrays, strict=True))
        raise EmitError(f"the columns for stream {stream!r} are not of one length ({told})")
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _array(column: Any, name: str, stream: str) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return column
    if isinstance(column, str | bytes) or not hasattr(column, "__len__"):
        raise EmitError(
            f"field {name!r} of stream {stream!r}: a column is an array or a list, not "
            f"{shown(column)}"
        )
    try:
        return pa.array(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise EmitError(
            f"field {name!r} of stream {stream!r} cannot be a column: {described(error)}"
        ) from None


def as_indices(given: RowPositions, what: str, size: int, *, lowest: int = 0) -> Indices:
    """Return positions of rows as numbers; refuse one that is not from `lowest` to below `size`."""
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, pa.Array):
        if given.null_count:
            raise EmitError(f"{what} has nulls; it is the position of a row, for each")
        given = given.to_numpy(zero_copy_only=False)
    found = np.asarray(given)
    if found.dtype == bool or (found.size and found.dtype.kind not in "iu") or found.ndim != 1:
        raise EmitError(f"{what} is a list of positions of rows, not {shown(given)}")
    indices: Indices = found.astype(np.int64)
    if indices.size and (indices.min() < lowest or indices.max() >= size):
        wrong = indices[(indices < lowest) | (indices >= size)][0]
        raise EmitError(f"{what} has {wrong}, but the batch has the rows 0 to {size - 1}")
    return indices


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows of a batch as tuples of Python's own values."""
    if not batch.num_columns:
        return [()] * int(batch.num_rows)
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def make_batch_route(
    grouping: Grouping, fields: Fields, tasks: Sequence[int], route: Route, turn: int
) -> BatchRoute:
    """Return how the rows of batches are dealt among `tasks`; equal keys go where `route` sends.

    `route` is the same grouping's for single tuples, and `turn` as there.
    """
    ordered = tuple(sorted(tasks))
    match grouping.kind:
        case GroupingKind.ALL:
            return lambda batch: [(task, None) for task in ordered]
        case GroupingKind.GLOBAL:
            return lambda batch: [(ordered[0], None)]
        case GroupingKind.FIELDS:
            return _by_key([fields.position(name) for name in grouping.fields], len(fields), route)
        case GroupingKind.SHUFFLE | GroupingKind.LOCAL_OR_SHUFFLE | GroupingKind.NONE:
            return _dealt(ordered, turn)
    return _row_by_row(route)


def _dealt(tasks: tuple[int, ...], turn: int) -> BatchRoute:
    """Deal neighbouring rows to one task: as many to each, and single ones to all in turn."""
    at = turn * len(tasks) >> 32

    def deal(batch: pa.RecordBatch) -> Sequence[tuple[int, Indices | None]]:
        nonlocal at
        if len(tasks) == 1:
            return [(tasks[0], None)]
        parts = np.array_split(np.arange(batch.num_rows), min(len(tasks), batch.num_rows))
        chosen = [(tasks[(at + n) % len(tasks)], part) for n, part in enumerate(parts)]
        at += len(parts)
        return chosen

    return deal


def _by_key(positions: Sequence[int], width: int, route: Route) -> BatchRoute:
    """Ask `route` once for each key, not for each row."""

    def by_key(batch: pa.RecordBatch) -> Sequence[tuple[int, Indices | None]]:
        codes, keys = _keys([batch.column(position) for position in positions])
        chosen = _tasks_of(keys, positions, width, route)
        return _parted(chosen[codes], np.unique(chosen))

    return by_key


def _tasks_of(
    keys: Sequence[tuple[Any, ...]], positions: Sequence[int], width: int, route: Route
) -> Indices:
    """Return the task of each key."""
    if isinstance(route, OneFieldRoute):
        return _tasks_of_values([value for (value,) in keys], route)
    blank: list[Any] = [None] * width
    chosen = np.empty(len(keys), np.int64)
    for number, key in enumerate(keys):
        for position, value in zip(positions, key, strict=True):
            blank[position] = value
        (chosen[number],) = route(tuple(blank))
    return chosen


def _tasks_of_values(values: Sequence[Any], route: OneFieldRoute) -> Indices:
    """Return the task of each value; most of them were met before."""
    try:
        known: list[int | None] = list(map(route.known.get, values))
    except TypeError:  # one of them is no key of a dict
        known = [None] * len(values)
    if None in known:
        found = zip(known, values, strict=True)
        known = [route.task_of(value) if task is None else task for task, value in found]
    return np.array(known, np.int64)


def _keys(columns: Sequence[pa.Array]) -> tuple[Indices, list[tuple[Any, ...]]]:
    """Return, for each row, the number of its key; and the keys by number."""
    numbers: Indices | None = None
    values: list[list[Any]] = []
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        found = encoded.dictionary.to_pylist()
        if numbers is None:
            numbers, values = codes, [[value] for value in found]
            continue
        both = numbers * max(1, len(found)) + codes
        pairs, numbers = np.unique(both, return_inverse=True)
        before = values
        values = [
            [*before[pair // len(found)], found[pair % len(found)]] for pair in pairs.tolist()
        ]
    assert numbers is not None, "a grouping by fields has some"
    return numbers, [tuple(value) for value in values]


def _parted(tasks: Indices, known: Indices) -> Sequence[tuple[int, Indices | None]]:
    """Return the rows of each task, in their order; `known` are the tasks that there are."""
    if len(known) == 1:
        return [(int(known[0]), None)]
    return [(int(task), np.flatnonzero(tasks == task)) for task in known]


def _row_by_row(route: Route) -> BatchRoute:
    def by_row(batch: pa.RecordBatch) -> Sequence[tuple[int, Indices | None]]:
        found: dict[int, list[int]] = {}
        for index, values in enumerate(rows_of(batch)):
            for task in route(values):
                found.setdefault(task, []).append(index)
        return [(task, np.array(rows, np.int64)) for task, rows in found.items()]

    return by_row
