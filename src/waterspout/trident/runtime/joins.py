"""Operations over several streams at once: joins and multi-reducers, on the tuples of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._serde import encode_key
from waterspout._tuples import TridentTuple, field_index
from waterspout.trident.operations.contracts import (
    GroupedMultiReducer,
    OperationContext,
    TridentCollector,
)
from waterspout.trident.plan.nodes import Join, MultiReduce
from waterspout.trident.runtime.rows import as_tuples, prepared, rows_to_batch

__all__ = [
    "STREAM",
    "join_tables",
    "pack_tables",
    "packed_name",
    "packed_schema",
    "run_multi_reduce",
]

STREAM = "_stream"
"""The column that says which stream a packed row came from."""


def packed_name(stream: int, column: int) -> str:
    """Return the column that holds a stream's field in rows of all streams."""
    return f"_s{stream}_{column}"


def packed_schema(node: MultiReduce) -> Schema:
    """Return the fields of rows of all streams: which one, the group, and each one's own."""
    fields: list[tuple[str, str | None]] = [(STREAM, "int")]
    if node.groups is not None:
        first = node.parents[0].schema
        fields += [(f"_g{i}", first.type_of(name)) for i, name in enumerate(node.groups[0])]
    for number, (parent, names) in enumerate(zip(node.parents, node.fields, strict=True)):
        kinds = [parent.schema.type_of(name) for name in names]
        fields += [(packed_name(number, i), kind) for i, kind in enumerate(kinds)]
    return Schema(tuple(fields))


def pack_tables(node: MultiReduce, tables: Sequence[pa.Table]) -> list[pa.RecordBatch]:
    """Return the rows of all tables as rows with columns for each of them."""
    schema = arrow_schema(packed_schema(node))
    found = []
    for number, table in enumerate(tables):
        columns = {STREAM: pa.array([number] * table.num_rows, pa.int32())}
        if node.groups is not None:
            columns |= {f"_g{i}": table.column(n) for i, n in enumerate(node.groups[number])}
        for i, name in enumerate(node.fields[number]):
            columns[packed_name(number, i)] = table.column(name)
        empty = {f.name: pa.nulls(table.num_rows, f.type) for f in schema}
        found.append(pa.table([{**empty, **columns}[name] for name in schema.names], schema=schema))
    batches: list[pa.RecordBatch] = pa.concat_tables(found).combine_chunks().to_batches()
    return batches


def run_multi_reduce(
    node: MultiReduce, batches: Iterable[pa.RecordBatch], conf: Config, context: OperationContext
) -> Iterator[pa.RecordBatch]:
    """Reduce the packed rows of a partition."""
    with prepared([node.reducer], conf, context):
        reducing = _Reducing(node)
        for batch in batches:
            for stream, group, row in _unpacked(node, batch):
                reducing.take(stream, group, row)
        yield rows_to_batch(reducing.finish(), node.schema, node.title)


class _Reducing:
    """The values of all groups; a reducer without groups has one, also for no tuples."""

    def __init__(self, node: MultiReduce) -> None:
        self._reducer = node.reducer
        self._grouped = node.groups is not None
        self._index = field_index(node.groups[0] if node.groups else ())
        self._groups: dict[str, tuple[TridentTuple, Any, TridentCollector]] = {}
        if not self._grouped:
            self._start("", ())

    def take(self, stream: int, key: tuple[Any, ...], row: TridentTuple) -> None:
        name = encode_key(key) if self._grouped else ""
        if name not in self._groups:
            self._start(name, key)
        group, value, collector = self._groups[name]
        if self._grouped:
            self._reducer.execute(value, stream, group, row, collector)
        else:
            self._reducer.execute(value, stream, row, collector)

    def finish(self) -> list[Sequence[Any]]:
        rows: list[Sequence[Any]] = []
        for group, value, collector in self._groups.values():
            if self._grouped:
                self._reducer.complete(value, group, collector)
                rows += [(*group.values, *row) for row in collector.rows]
            else:
                self._reducer.complete(value, collector)
                rows += collector.rows
        return rows

    def _start(self, name: str, key: tuple[Any, ...]) -> None:
        collector, group = TridentCollector(), TridentTuple(key, self._index)
        if isinstance(self._reducer, GroupedMultiReducer):
            value = self._reducer.init(collector, group)
        else:
            value = self._reducer.init(collector)
        self._groups[name] = (group, value, collector)


def _unpacked(
    node: MultiReduce, batch: pa.RecordBatch
) -> Iterator[tuple[int, tuple[Any, ...], TridentTuple]]:
    width = len(node.groups[0]) if node.groups else 0
    keys = as_tuples(batch, [f"_g{i}" for i in range(width)])
    indexes = [field_index(names) for names in node.fields]
    packed = [
        as_tuples(batch, [packed_name(number, i) for i in range(len(names))])
        for number, names in enumerate(node.fields)
    ]
    for row, stream in enumerate(batch.column(STREAM).to_pylist()):
        values = packed[stream][row].values
        yield stream, keys[row].values, TridentTuple(values, indexes[stream])


def join_tables(node: Join, tables: Sequence[pa.Table]) -> pa.Table:
    """Join the tables of one batch, here; on Spark, Spark does it."""
    sides: list[dict[str, list[tuple[Any, ...]]]] = []
    keys: dict[str, tuple[Any, ...]] = {}
    for table, names in zip(tables, node.keys, strict=True):
        rows: dict[str, list[tuple[Any, ...]]] = {}
        found = zip(as_tuples(table, names), as_tuples(table, table.column_names), strict=True)
        for given, row in found:
            name = encode_key(given.values)
            keys.setdefault(name, given.values)
            rows.setdefault(name, []).append(row.values)
        sides.append(rows)
    made: list[Sequence[Any]] = []
    for name, key in keys.items():
        there = [side.get(name, []) for side in sides]
        if any(not rows and not may for rows, may in zip(there, node.optional, strict=True)):
            continue
        absent: Sequence[tuple[Any, ...] | None] = [None]
        padded = [rows or absent for rows in there]
        made += [_joined(node, key, choice) for choice in itertools.product(*padded)]
    batch = rows_to_batch(made, node.schema, node.title)
    return pa.Table.from_batches([batch])


def _joined(
    node: Join, key: tuple[Any, ...], choice: Sequence[tuple[Any, ...] | None]
) -> tuple[Any, ...]:
    first = node.once if node.preserve else len(key)
    values: list[Any] = list(key[:first])
    for parent, names, row in zip(node.parents, node.keys, choice, strict=True):
        for column, name in enumerate(parent.schema.names):
            if name not in names[:first]:
                values.append(None if row is None else row[column])
    return tuple(values)
