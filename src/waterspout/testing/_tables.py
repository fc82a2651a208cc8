"""What a spout describes, read in plain Python: the in-process engine's sources."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa

from waterspout._arrow import arrow_schema, table_of_rows
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.spouts._emission import emitted
from waterspout.spouts._reads import (
    POSITION,
    EmitRead,
    FilesRead,
    FrameRead,
    RangeRead,
    Read,
    RowsRead,
)
from waterspout.transactional._attempt import TransactionAttempt

__all__ = ["read_table"]


def read_table(
    read: Read,
    conf: Config | None = None,
    attempt: TransactionAttempt | None = None,
    *,
    tasks: int | None = None,
    with_position: bool = False,
) -> pa.Table:
    """Return the rows of a described batch, and where each stands in its source if asked.

    `tasks`: how many emitters there are to be, for sources that are read by emitters.
    """
    match read:
        case RowsRead(schema, rows):
            table = table_of_rows(schema, rows, where=read.where)
            return _with_positions(table, read.row_positions()) if with_position else table
        case RangeRead(schema, start, end, epoch, rate):
            zero = dt.datetime.fromtimestamp(epoch, dt.UTC)
            values = [(n, zero + dt.timedelta(seconds=n / rate)) for n in range(start, end)]
            table = table_of_rows(schema, values, where="the spout")
            positions = [str(n) for n in range(start, end)]
            return _with_positions(table, positions) if with_position else table
        case FilesRead():
            return _files(read, with_position=with_position)
        case EmitRead():
            number = attempt or TransactionAttempt(1, 0)
            return _emitted(read, conf or Config(), number, tasks or 1, with_position=with_position)
        case FrameRead(where=where):
            raise TopologyError(f"{where} is read by Spark: the in-process engine cannot; run it")


def _emitted(
    read: EmitRead, conf: Config, attempt: TransactionAttempt, tasks: int, *, with_position: bool
) -> pa.Table:
    schema = _maybe_with_positions(read.schema, with_position=with_position)
    batches = [
        batch
        for index in range(tasks)
        for batch in emitted(read, conf, attempt, index, tasks, with_position=with_position)
    ]
    return pa.Table.from_batches(batches, schema=arrow_schema(schema))


def _files(read: FilesRead, *, with_position: bool) -> pa.Table:
    wanted = arrow_schema(_maybe_with_positions(read.schema, with_position=with_position))
    tables = []
    for path in read.paths:
        table = _file(read, path)
        if with_position:
            # As on Spark: only of a Parquet file it is known which row is which.
            counted = read.format == "parquet"
            positions = [f"{path}#{n}" if counted else path for n in range(table.num_rows)]
            table = _with_positions(table, positions)
        tables.append(table)
    return pa.concat_tables(tables) if tables else wanted.empty_table()


def _file(read: FilesRead, path: str) -> pa.Table:
    if read.format == "text":
        return table_of_rows(read.schema, [(line,) for line in _lines(path)], where=path)
    if read.format == "json":
        from pyarrow import json

        table = json.read_json(path)
    elif read.format == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(path)
    else:
        raise TopologyError(f"the in-process engine cannot read {read.format}; run it on Spark")
    wanted = arrow_schema(read.schema)
    return table.select(wanted.names).cast(wanted)


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def _with_positions(table: pa.Table, positions: Sequence[str]) -> pa.Table:
    return table.append_column(POSITION, pa.array(positions, pa.string()))


def _maybe_with_positions(schema: Schema, *, with_position: bool) -> Schema:
    return Schema((*schema.fields, (POSITION, "string"))) if with_position else schema
