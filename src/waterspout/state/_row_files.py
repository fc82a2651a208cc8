"""Rows in Parquet files that tasks put down and a driver publishes: names, receipts, bytes. No I/O.

A file is written once, under a name that nobody else takes: it has the batch, the attempt, the
partition and a random part. A task that is tried again writes another file, and only the receipt of
the try that came through reaches the driver. So whether a file counts is never told by its being
there, and one that no receipt names can be removed by its name alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from waterspout._serde import decode_value, encode_value
from waterspout.errors import StoreError

__all__ = [
    "PartName",
    "RowFile",
    "check_there",
    "files_of",
    "parquet_bytes",
    "parquet_rows",
    "receipt_of",
    "with_columns",
]

_NAME = re.compile(r"part-([0-9]{10,19})-([0-9]{1,19})-([0-9]{5,19})-([0-9a-f]{16})\.parquet")


@dataclass(frozen=True, slots=True)
class PartName:
    """The name of a file of rows: whose attempt wrote it, and which partition."""

    txid: int
    attempt: int
    partition: int
    tag: str

    def __str__(self) -> str:
        return f"part-{self.txid:010d}-{self.attempt}-{self.partition:05d}-{self.tag}.parquet"

    @classmethod
    def new(cls, txid: int, attempt: int, partition: int) -> Self:
        """Return a name that was never used."""
        return cls(txid, attempt, partition, secrets.token_hex(8))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the name, or None if it is not one of ours."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        name = cls(int(match[1]), int(match[2]), int(match[3]), match[4])
        return name if str(name) == text else None


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows that was put down: what its receipt says of it.

    `more` is what a store wants to know of the rows when it publishes the file.
    """

    name: str
    size: int
    rows: int
    more: str = ""


def receipt_of(file: RowFile) -> str:
    """Return the receipt of a file."""
    return encode_value([file.name, file.size, file.rows, file.more])


def files_of(receipts: Iterable[str]) -> list[RowFile]:
    """Return the files of all receipts, each once, in the order of their names."""
    return sorted({RowFile(*decode_value(text)) for text in receipts}, key=lambda file: file.name)


def check_there(file: RowFile, size: int | None, title: str) -> None:
    """Refuse to publish a file that the driver does not find as its task has left it."""
    if size != file.size:
        found = "is not there" if size is None else f"has {size} bytes"
        raise StoreError(
            f"{title}: the file {file.name}, which a task has written with {file.size} bytes, "
            f"{found} when the driver looks. Tasks and driver must reach the same folder: on "
            "several machines that is a shared disk or an object store."
        )


def parquet_bytes(rows: pa.Table) -> pa.Buffer:
    """Return a table as the content of a Parquet file."""
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(rows, sink, compression="snappy")
    return sink.getvalue()


def parquet_rows(contents: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """Return the rows of all these Parquet files; null in columns that were added since."""
    from pyarrow import parquet

    tables = [parquet.read_table(pa.BufferReader(raw)) for raw in contents]
    return pa.concat_tables([with_columns(table, schema) for table in tables])


def with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with just these columns; null where they have none of that name."""
    for field in schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(schema.names).cast(schema)
