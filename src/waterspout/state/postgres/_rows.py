"""Rows that are appended to a table of PostgreSQL, each partition by one COPY.

The COPY is in the transaction that has found the head as it must be, and that has taken out what
an earlier try of the same task has left. Two tries at once (Spark may start a task a second time
while the first still runs) take turns by a lock of their own: else neither would see the other's
rows, and both would stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from waterspout._schema import Schema
from waterspout.state._head import Head, Stamp, check_stamp, takes_over
from waterspout.state._header import ROW, StoreHeader
from waterspout.state._rows import RowsStore, rows_layout
from waterspout.state._sql_rows import RowsStatements, TableRows, with_nulls
from waterspout.state.postgres._columns import PostgresLayout
from waterspout.state.postgres._connections import Connection, pipelined
from waterspout.state.postgres._sql import HeadStatements
from waterspout.state.postgres._table import BEGIN, PostgresTable

if TYPE_CHECKING:
    from waterspout.state.postgres._state import PostgresState

__all__ = ["PostgresRows"]

_SCAN_ROWS = 10_000


class PostgresRows(PostgresTable, RowsStore):
    """The rows of one state in one table; writes check the head in their transaction."""

    undoes_lost_attempts = True

    def __init__(self, recipe: PostgresState, rows: Schema) -> None:
        self._recipe = recipe
        self._rows = rows
        self._name = recipe.title
        self._table = recipe.table
        layout = PostgresLayout(Schema(), rows)
        heads = HeadStatements(recipe.schema, recipe.table)
        self._sql = RowsStatements(heads.table, layout, "bigint", "", "%s")
        self._values = TableRows(self._name, layout)
        self._header = StoreHeader(
            self._name, "table", "opaque rows", rows_layout(rows), by_column=True
        )
        super().__init__(recipe.address, heads, self._sql)

    def move_head(self, expected: Head | None, new: Head) -> None:
        def write(connection: Connection, unsure: bool) -> None:
            with pipelined(connection):
                connection.execute(BEGIN)
                locked = self._fetch_head(connection, lock="FOR UPDATE")
            stored = self._require_made(locked.fetchone())
            if unsure and stored == new:
                return  # what was committed was this, and only its answer was lost
            if stored != expected:
                raise self._header.moved(new, stored)
            with pipelined(connection):
                if takes_over(expected, new):
                    connection.execute(self._sql.undo, (new.stamp.txid,))
                connection.execute(self._at.update_head, [*self._header.row(new), self._table])

        self._write(write, repeatable=True)

    def write_rows(self, stamp: Stamp, partition: int, rows: pa.Table) -> None:
        at = (stamp.txid, stamp.attempt, partition)

        def write(connection: Connection, unsure: bool) -> None:
            with pipelined(connection):
                connection.execute(BEGIN)
                # So that the head cannot move before this is committed; other tasks of the
                # same attempt may write meanwhile.
                head = self._fetch_head(connection, lock="FOR SHARE")
                one = f"waterspout {self._at.table} {at}"
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (one,))
            check_stamp(self._require_made(head.fetchone()), stamp, state=self._name)
            connection.execute(self._sql.delete, at)
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {self._sql.table} ({self._sql.columns}) FROM STDIN") as copy,
            ):
                for row in self._values.stored(rows, *at):
                    copy.write_row(row)

        self._write(write, repeatable=True, stamp=stamp)

    def has_rows_of(self, txid: int, partition: int) -> bool:
        def read(connection: Connection) -> bool:
            found = connection.execute(self._sql.find, (txid, partition))
            return found.fetchone() is not None

        return self._read(read, default=lambda: False)

    def read_rows(self, last: int, shard: int = 0, shards: int = 1) -> Iterator[pa.Table]:
        """Yield all rows, or one shard of them by their numbers."""
        older = self._read(self._older, default=lambda: None)
        if older is not None:
            for table in older.read_rows(last, shard, shards):
                yield with_nulls(table, self._rows)
            return
        chosen = f"{self._sql.select} AND (_partition + _row) %% %s = %s"
        with self._errors(), self._client.lent() as connection:
            if not self._exists(connection, self._sql.table):
                return
            # A reader may pause between two chunks.
            connection.execute("BEGIN READ ONLY")
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            with connection.cursor("waterspout_rows", binary=True) as cursor:
                cursor.execute(chosen, (last, shards, shard))
                while rows := cursor.fetchmany(_SCAN_ROWS):
                    yield from self._values.tables(rows)

    def _older(self, connection: Connection) -> PostgresRows | None:
        if not self._exists(connection, self._at.heads):
            return None
        missing = self._missing(self._fetch_head(connection).fetchone())
        if not missing:
            return None
        return PostgresRows(self._recipe, Schema(self._rows.fields[:-missing]))

    def _missing(self, row: Sequence[Any] | None) -> int:
        """Return how many columns a table with this head row has not got yet."""
        return 0 if row is None else self._header.added_to(row[ROW.index("layout")])

    def _add_statements(self, row: Sequence[Any] | None) -> Sequence[str]:
        missing = self._missing(row)
        return self._sql.add(self._rows.names[-missing:]) if missing else ()
