"""The SQL of a table that rows are appended to, and the rows as its columns.

Beside the user's columns each row has the batch, the attempt and the partition that wrote it, and
its number there. That is its key: so no row can be there twice, and those of a lost attempt stand
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from waterspout._arrow import arrow_schema, table_of_rows
from waterspout._schema import Schema
from waterspout.errors import DamagedStoreError, TopologyError
from waterspout.state._columns import Layout
from waterspout.state._sql_statements import quoted

__all__ = ["RowsStatements", "TableRows", "check_columns", "with_nulls"]

_STAMP = ("_txid", "_attempt", "_partition", "_row")
_CHUNK = 10_000


def check_columns(rows: Schema, layout: type[Layout]) -> None:
    """Refuse fields that cannot be columns of a table; called when a topology is built."""
    layout(Schema(), rows)
    for name in rows.names:
        if name.lower() in _STAMP:
            raise TopologyError(f"field {name!r} cannot be a column: the name is reserved")
    arrow_schema(rows)


def with_nulls(table: pa.Table, rows: Schema) -> pa.Table:
    """Return rows of a table that has not got all its columns yet, with nulls in those."""
    for field in arrow_schema(rows):
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table


class RowsStatements:
    """Statements over one table. `integer` and `options` are the database's own words."""

    def __init__(self, table: str, layout: Layout, integer: str, options: str, mark: str) -> None:
        self.table = table
        self._layout = layout
        self._integer = integer
        self._options = options
        self.columns = ", ".join(quoted(n) for n in (*layout.value_names, *_STAMP))
        self.marks = ", ".join([mark] * (len(layout.value_names) + len(_STAMP)))
        self.insert = f"INSERT INTO {table} ({self.columns}) VALUES ({self.marks})"
        at = " AND ".join(f"{name} = {mark}" for name in _STAMP[:3])
        self.delete = f"DELETE FROM {table} WHERE {at}"
        self.undo = f"DELETE FROM {table} WHERE _txid >= {mark}"
        self.find = f"SELECT 1 FROM {table} WHERE _txid = {mark} AND _partition = {mark} LIMIT 1"
        self._chosen = ", ".join(quoted(n) for n in layout.value_names)
        self.select = f"SELECT {self._chosen} FROM {table} WHERE _txid <= {mark}"

    @property
    def definition(self) -> list[tuple[str, str, bool]]:
        """Name, type, and whether it must have a value, of each column in order."""
        layout = self._layout
        codecs = zip(layout.value_names, layout.value_codecs, strict=True)
        columns = [(name, codec.storage, False) for name, codec in codecs]
        return columns + [(name, self._integer, True) for name in _STAMP]

    @property
    def create(self) -> str:
        """The table."""
        columns = [
            f"{quoted(name)} {kind}{' NOT NULL' * needed}" for name, kind, needed in self.definition
        ]
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} ({', '.join(columns)}, "
            f"PRIMARY KEY ({', '.join(_STAMP)})) {self._options}"
        )

    def add(self, names: Sequence[str]) -> list[str]:
        """Add columns to a table that was made without them; all its rows have NULL there."""
        kinds = {name: kind for name, kind, _ in self.definition}
        return [
            f"ALTER TABLE {self.table} ADD COLUMN {quoted(name)} {kinds[name]}" for name in names
        ]


class TableRows:
    """Rows as the values that a table keeps, and back."""

    def __init__(self, title: str, layout: Layout) -> None:
        self._title = title
        self._layout = layout

    def stored(self, rows: pa.Table, *stamp: int) -> Iterator[tuple[Any, ...]]:
        """Yield each row as the table keeps it, with its batch, attempt, partition and number."""
        columns = [
            codec.column(rows.column(name).to_pylist(), name)
            for name, codec in zip(self._layout.value_names, self._layout.value_codecs, strict=True)
        ]
        for number, values in enumerate(zip(*columns, strict=True)):
            yield (*values, *stamp, number)

    def tables(self, found: Sequence[Sequence[Any]]) -> Iterator[pa.Table]:
        """Yield what was selected as tables, in chunks."""
        codecs = self._layout.value_codecs
        for start in range(0, len(found), _CHUNK):
            try:
                rows = [
                    [codec.to_python(value) for codec, value in zip(codecs, row, strict=True)]
                    for row in found[start : start + _CHUNK]
                ]
            except (ValueError, ArithmeticError) as error:
                raise DamagedStoreError(
                    f"{self._title} holds a row that cannot be read: {error}"
                ) from error
            yield table_of_rows(self._layout.values, rows, where=self._title)
