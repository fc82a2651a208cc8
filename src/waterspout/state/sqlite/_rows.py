"""Rows that are appended to a table of an SQLite file.

SELECT id, amount FROM orders
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from waterspout._schema import Schema
from waterspout.state._columns import Layout
from waterspout.state._head import Head, Stamp, check_stamp, takes_over
from waterspout.state._header import ROW, StoreHeader
from waterspout.state._local_paths import SentWithItsPath
from waterspout.state._rows import RowsStore, RowsStoreState, rows_layout
from waterspout.state._sql_rows import RowsStatements, TableRows, check_columns, with_nulls
from waterspout.state._sql_statements import quoted
from waterspout.state.sqlite._file import SQLiteTable, file_at, refuse_unusable

__all__ = ["SQLiteRows", "SQLiteRowsState"]


class SQLiteRows(SQLiteTable, RowsStore):
    """The rows of one state in one table; writes check the head in their transaction."""

    undoes_lost_attempts = True

    def __init__(self, path: Path, table: str, rows: Schema) -> None:
        super().__init__(path)
        self._name = f"table {table!r} in {path}"
        self._table = table
        self._rows = rows
        layout = Layout(Schema(), rows)
        self._sql = RowsStatements(quoted(table), layout, "INTEGER", "STRICT, WITHOUT ROWID", "?")
        self._values = TableRows(self._name, layout)
        self._header = StoreHeader(
            self._name, "table", "opaque rows", rows_layout(rows), by_column=True
        )

    def move_head(self, expected: Head | None, new: Head) -> None:
        def write(db: sqlite3.Connection) -> None:
            if self._stored_head(db) != expected:
                raise self._header.moved(new)
            self._create_tables(db)
            if takes_over(expected, new):
                db.execute(self._sql.undo, (new.stamp.txid,))
            self._store_head(db, new)

        self._write(write)

    def write_rows(self, stamp: Stamp, partition: int, rows: pa.Table) -> None:
        at = (stamp.txid, stamp.attempt, partition)

        def write(db: sqlite3.Connection) -> None:
            check_stamp(self._stored_head(db), stamp, state=self._name)
            db.execute(self._sql.delete, at)
            db.executemany(self._sql.insert, self._values.stored(rows, *at))

        self._write(write)

    def has_rows_of(self, txid: int, partition: int) -> bool:
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is None or not self._has_own_table(db):
                return False
            return db.execute(self._sql.find, (txid, partition)).fetchone() is not None

    def read_rows(self, last: int, shard: int = 0, shards: int = 1) -> Iterator[pa.Table]:
        """Yield all rows: a file has one reader, so the first shard is everything."""
        if shard:
            return
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is None or not self._has_own_table(db):
                return
            row = self._read_head_row(db)
            assert row is not None, "a table of ours has a head row"
            missing = self._missing(row)
            found = [] if missing else db.execute(self._sql.select, (last,)).fetchall()
        if not missing:
            yield from self._values.tables(found)
            return
        older = SQLiteRows(self._path, self._table, Schema(self._rows.fields[:-missing]))
        with closing(older):
            for table in older.read_rows(last):
                yield with_nulls(table, self._rows)

    def _missing(self, row: Sequence[Any]) -> int:
        """Return how many columns a table with this head row has not got yet."""
        return self._header.added_to(row[ROW.index("layout")])

    def _create_statement(self) -> str:
        return self._sql.create

    def _add_statements(self, row: Sequence[Any]) -> Sequence[str]:
        missing = self._missing(row)
        return self._sql.add(self._rows.names[-missing:]) if missing else ()


@dataclass(frozen=True, kw_only=True)
class SQLiteRowsState(SentWithItsPath, RowsStoreState):
    """Recipe of a table that rows are appended to; `SQLiteState` makes it."""

    path: str
    table: str
    driver_only: bool = True

    backend: ClassVar[str] = "sqlite"

    def __post_init__(self) -> None:
        check_columns(self.rows, Layout)

    @property
    def title(self) -> str:
        return f"table {self.table!r} in {self.path}"

    def store(self) -> SQLiteRows:
        return SQLiteRows(file_at(self.path), self.table, self.rows)

    def within(self) -> Mapping[str, Any]:
        return {"table": self.table}

    def check(self) -> None:
        refuse_unusable(file_at(self.path), self.table)
        super().check()

    def location(self) -> str:
        return f"sqlite:{file_at(self.path)}#{self.table.lower()}"
