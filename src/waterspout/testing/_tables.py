"""What a spout describes, read in plain Python: the in-process engine's sources."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from waterspout._arrow import arrow_schema, table_of_rows
from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.spouts._emission import emitted
from waterspout.spouts._malformed import (
    OnMalformed,
    TooLong,
    letter_of_record,
    letter_of_too_long,
    malformed,
)
from waterspout.spouts._reads import (
    POSITION,
    EmitRead,
    FilesRead,
    FrameRead,
    KafkaRead,
    RangeRead,
    Read,
    RowsRead,
)
from waterspout.testing._json import rows_of_record
from waterspout.testing._kafka import read_messages
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.isolation.letters import ASIDE, to_aside

__all__ = ["read_table", "rows_of"]


def read_table(
    read: Read,
    conf: Config | None = None,
    attempt: TransactionAttempt | None = None,
    *,
    tasks: int | None = None,
    with_position: bool = False,
    address: str = "",
) -> pa.Table:
    """Return the rows of a described batch, and where each stands in its source if asked.

    With an address, the last column has the letters of malformed records, under that name.
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
            return _files(read, conf or Config(), with_position=with_position, address=address)
        case KafkaRead():
            given = conf or Config()
            return read_messages(read, given, with_position=with_position, address=address)
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


def _files(read: FilesRead, conf: Config, *, with_position: bool, address: str) -> pa.Table:
    chosen = read.malformed_are(conf)
    schema = _maybe_with_positions(read.schema, with_position=with_position)
    wanted = arrow_schema(Schema((*schema.fields, (ASIDE, "string"))) if address else schema)
    tables = []
    for path in read.paths:
        table, letters = _file(read, path, chosen, address)
        if with_position:
            # As on Spark: only of a Parquet file it is known which row is which.
            counted = read.format == "parquet"
            positions = [f"{path}#{n}" if counted else path for n in range(table.num_rows)]
            table = _with_positions(table, positions)
        if address:
            table = table.append_column(ASIDE, pa.nulls(table.num_rows, pa.string()))
            tables.append(pa.Table.from_pylist([{ASIDE: to_aside(x)} for x in letters], wanted))
        tables.append(table)
    return pa.concat_tables(tables) if tables else wanted.empty_table()


def _file(
    read: FilesRead, path: str, chosen: OnMalformed, address: str
) -> tuple[pa.Table, list[DeadLetter]]:
    """Return the rows of a file, and the letters of its malformed records."""
    if read.format == "parquet":
        from pyarrow import parquet

        wanted = arrow_schema(read.schema)
        return parquet.read_table(path).select(wanted.names).cast(wanted), []
    if read.format not in ("text", "json"):
        raise TopologyError(f"the in-process engine cannot read {read.format}; run it on Spark")
    long = [record for record in read.too_long if record.path == path]
    letters = [letter_of_too_long(address, record, read.max_record_bytes) for record in long]
    rows: list[tuple[Any, ...]] = []
    for text in _records(path, long):
        made, bad = rows_of(read, text)
        if bad and chosen is OnMalformed.FAIL:
            raise malformed(path, text, read.format, read.schema)
        if bad and chosen is OnMalformed.DEAD_LETTER:
            letters.append(letter_of_record(address, text, path, read.format, read.schema))
        elif not (bad and chosen is OnMalformed.DROP):
            rows += made
    return table_of_rows(read.schema, rows, where=path), letters


def rows_of(read: FilesRead, text: str) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the rows of a record, and whether it is malformed; then there are nulls in them."""
    if read.format == "text":
        return [(text,)], False
    rows, bad = rows_of_record(text, read.schema)
    name = read.options.get("columnNameOfCorruptRecord", "_corrupt_record")
    if bad and name in read.schema.names:
        at = read.schema.names.index(name)
        rows = [(*row[:at], text, *row[at + 1 :]) for row in rows]
    return rows, bad


def _records(path: str, without: Sequence[TooLong]) -> Iterator[str]:
    """Yield the lines of a file, as Spark parts them, without those that are too long."""
    with open(path, "rb") as file:
        data = file.read()
    for record in reversed(without):
        data = data[: record.start] + data[record.start + record.size :]
    lines = re.split(rb"\r\n|\n|\r", data.removeprefix(b"\xef\xbb\xbf"))
    for line in lines if lines[-1] else lines[:-1]:
        yield line.decode("utf-8", "replace")


def _with_positions(table: pa.Table, positions: Sequence[str]) -> pa.Table:
    return table.append_column(POSITION, pa.array(positions, pa.string()))


def _maybe_with_positions(schema: Schema, *, with_position: bool) -> Schema:
    return Schema((*schema.fields, (POSITION, "string"))) if with_position else schema
