"""Counts of groups, made in Python where the rows are made: see `Derive.counts`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.trident.operations.contracts import OperationContext

__all__ = ["COUNTED", "counted_schema", "run_counted"]

COUNTED = "_waterspout_counted"
"""How many rows of a group there were."""

_HELD_MAX = 100_000
"""How many groups a task holds before it passes them on: they may all be different ones."""

Run = Callable[[Iterable[pa.RecordBatch], Config, OperationContext], Iterable[pa.RecordBatch]]


def counted_schema(rows: Schema, keys: Sequence[str]) -> Schema:
    """Return the fields of groups with their numbers."""
    return Schema((*((key, rows.type_of(key)) for key in keys), (COUNTED, "bigint")))


def run_counted(
    run: Run,
    keys: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Run what makes the rows of a partition, and give each group with the number of its rows.

    A group may come more than once, with numbers that are to be added up.
    """
    held: list[pa.Table] = []
    for batch in run(batches, conf, context):
        held.append(_counted(pa.Table.from_batches([batch]), keys))
        if sum(table.num_rows for table in held) > _HELD_MAX:
            yield from _added_up(held, keys)
            held.clear()
    yield from _added_up(held, keys)


def _counted(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    grouped = _by_position(rows.select(list(keys))).group_by(_names(keys), use_threads=False)
    return _ordered(grouped.aggregate([([], "count_all")]), "count_all", keys)


def _added_up(held: Sequence[pa.Table], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if len(held) > 1:
        table = pa.concat_tables(held)
        grouped = _by_position(table).group_by(_names(keys), use_threads=False)
        number = f"c{len(keys)}"
        held = [_ordered(grouped.aggregate([(number, "sum")]), f"{number}_sum", keys)]
    for table in held:
        yield from table.combine_chunks().to_batches()


def _names(keys: Sequence[str]) -> list[str]:
    return [f"c{place}" for place in range(len(keys))]


def _by_position(table: pa.Table) -> pa.Table:
    """Return a table whose fields have names that no result of Arrow's has."""
    return table.rename_columns([f"c{place}" for place in range(table.num_columns)])


def _ordered(found: pa.Table, numbers: str, keys: Sequence[str]) -> pa.Table:
    """Return groups as `counted_schema` says, in whatever order Arrow gave the columns."""
    return found.select([*_names(keys), numbers]).rename_columns([*keys, COUNTED])
