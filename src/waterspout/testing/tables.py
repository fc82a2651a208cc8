"""What a spout describes, read in plain Python: the in-process engine's sources."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from waterspout.arrow import arrow_schema
from waterspout.errors import TopologyError
from waterspout.schema import Schema
from waterspout.spouts.reads import FilesRead, RangeRead, Read, RowsRead

__all__ = ["read_table"]


def read_table(read: Read) -> pa.Table:
    """Return the rows of a described batch."""
    match read:
        case RowsRead(schema, rows):
            return _table(schema, list(rows))
        case RangeRead(schema, start, end, epoch, rate):
            zero = dt.datetime.fromtimestamp(epoch, dt.UTC)
            values = ((n, zero + dt.timedelta(seconds=n / rate)) for n in range(start, end))
            return _table(schema, list(values))
        case FilesRead():
            return _files(read)


def _files(read: FilesRead) -> pa.Table:
    if not read.paths:
        return _table(read.schema, [])
    if read.format == "text":
        return _table(read.schema, [(line,) for path in read.paths for line in _lines(path)])
    if read.format == "json":
        from pyarrow import json

        tables = [json.read_json(path) for path in read.paths]
    elif read.format == "parquet":
        from pyarrow import parquet

        tables = [parquet.read_table(path) for path in read.paths]
    else:
        raise TopologyError(f"the in-process engine cannot read {read.format}; run it on Spark")
    wanted = arrow_schema(read.schema)
    return pa.concat_tables([table.select(wanted.names).cast(wanted) for table in tables])


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def _table(schema: Schema, rows: list[Any]) -> pa.Table:
    arrow = arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)],
        schema=arrow,
    )
