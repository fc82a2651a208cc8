"""The records of a state in one table of PostgreSQL, each write one transaction.

A write sends its head check and its upsert at once and then commits: two round trips, whatever
the number of keys. The upsert takes whole columns as arrays (`unnest`): for 50,000 keys as quick
as COPY into a temporary table when both are sorted (273 and 288 ms here), in fewer round trips,
and without a table whose statistics the planner must guess.

A lost attempt is undone by reading the whole table when the next one claims the head: 0.15 s for
2 million rows. An index on `_txid` would make that quicker and every batch slower, by two thirds
here, as then no update leaves the indexes alone; replays are rare, batches are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
import pyarrow as pa
from psycopg import errors, postgres

from waterspout._schema import Schema
from waterspout.errors import (
    DamagedStoreError,
    SerdeError,
    StoreError,
)
from waterspout.state._base import Key, Keys, RecordColumns, Records, StateKind, Unclear
from waterspout.state._head import Head, check_stamp, goes_on, replaces_attempt
from waterspout.state._ordering import order_of
from waterspout.state._sql import TableMap, Upsert, placed
from waterspout.state.postgres._columns import array_of
from waterspout.state.postgres._connections import (
    Connection,
    pipelined,
)
from waterspout.state.postgres._sql import PostgresStatements
from waterspout.state.postgres._state import PostgresState
from waterspout.state.postgres._table import BEGIN, FewerColumns, PostgresTable

__all__ = ["PostgresMap"]

T = TypeVar("T")

_ROWS_MAX = 100_000
_SCAN_ROWS = 10_000
_MANY = 10_000
# Of a table: they are read, and joined, in half the time in which one of its rows is looked for.
_BYTES_A_KEY = 512
_OUTRUN_MAX = 100


class _Outrun(Exception):
    """A row came into being between two statements."""


class PostgresMap(PostgresTable, TableMap):
    """The records of one state in one table; writes check the head in their transaction."""

    def __init__(self, recipe: PostgresState) -> None:
        table, kind, layout = recipe.table, recipe.kind, recipe.columns
        self._sql = PostgresStatements(recipe.schema, table, kind, layout)
        TableMap.__init__(self, recipe.title, table, kind, layout, self._sql)
        PostgresTable.__init__(self, recipe.address, self._sql.head, self._sql)
        self._recipe = recipe
        self._types = [postgres.types[kind].oid for kind in self._sql.record_types]
        self._brief_types = self._types[: len(self._layout.value_names) + 1]

    def multi_get(self, keys: Keys) -> list[Any | None]:
        return self._read_all(keys, PostgresMap._records)

    def get_columns(self, keys: Keys, names: Sequence[str], unclear: Unclear) -> RecordColumns:
        # In an order in which neighbours in the index come together: a quarter of the time.
        order = order_of(pa.array(names, pa.string())).to_pylist()
        in_order = [keys[i] for i in order]
        stamped = self._kind is not StateKind.NON_TRANSACTIONAL

        def values(table: PostgresMap, keys: Keys, rows: list[Any]) -> RecordColumns | None:
            at, *columns = _by_column(rows, 1 + len(table._brief_types))
            txids = columns.pop() if stamped else ()
            if txids and unclear.has(txids):
                return None
            # Rows come in any order.
            return table._only_values(len(order), list(map(order.__getitem__, at)), columns)

        found = self._read_all(in_order, values, brief=True)
        if found is not None:
            return found
        whole = self._read_all(in_order, PostgresMap._as_columns)
        columns = (whole.values, whole.txids, whole.attempts, whole.prevs)
        # Those that this kind has not are empty.
        return RecordColumns(*(c and placed(order, c, len(c), None) for c in columns))

    def _read_all(
        self, keys: Keys, made: Callable[[PostgresMap, Keys, list[Any]], T], *, brief: bool = False
    ) -> T:
        """Return what is made of the rows of these keys: position and record columns."""
        columns = self._layout.key_columns(keys)

        def read(connection: Connection) -> T:
            with pipelined(connection):
                head = self._fetch_head(connection)
                found = self._wanted(connection, columns, brief=brief)
            self._require_own(connection, head.fetchone())
            return made(self, keys, self._found(found, brief=brief))

        try:
            return self._read(read, default=lambda: made(self, keys, []))
        except FewerColumns:
            older = self._read(self._older, default=lambda: None)
            # None: another process has added them since.
            return (older or self)._read_all(keys, made, brief=brief)

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, Any]]]:
        """Yield all keys and records of one moment, or of one shard of the keys by their hash.

        Not by position in the table: a row moves when it is updated, and could be in two shards
        or in none.
        """
        older = self._read(self._older, default=lambda: None)
        if older is not None:
            yield from older.scan(shard, shards)
            return
        if not self._read(self._is_as_made, default=lambda: False):
            return
        with self._errors(), self._client.lent() as connection:
            # A reader may pause between two chunks.
            connection.execute("BEGIN READ ONLY")
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            with connection.cursor("waterspout_scan", binary=True) as cursor:
                cursor.execute(self._sql.select_shard(shards), (shard,) if shards > 1 else None)
                while rows := self._rows(lambda: cursor.fetchmany(_SCAN_ROWS)):
                    yield self._pairs(rows)

    def multi_compare_and_put(self, keys: Keys, read: Records, values: Records) -> list[bool]:
        expected, rows = self._comparable(read), self._puts(None, keys, values)
        order = _order(rows).to_pylist()
        rows = _chosen(rows, order)

        def write(connection: Connection, unsure: bool) -> list[bool]:
            with pipelined(connection):
                connection.execute(BEGIN)
                head = self._fetch_head(connection)
                locked = self._wanted(connection, rows.key_columns, lock="FOR UPDATE")
            self._require_made(head.fetchone())
            there = {i: columns for i, *columns in self._rows(locked.fetchall)}
            same = [False] * len(keys)
            old: list[int] = []
            new: list[int] = []
            for at, i in enumerate(order):
                now = self._record(keys[i], there[at]) if at in there else None
                same[i] = self._comparable([now])[0] == expected[i]
                if same[i]:
                    (old if at in there else new).append(at)
            self._run(connection, self._sql.put, _chosen(rows, old))
            if self._run(connection, self._sql.insert_new, _chosen(rows, new)) != len(new):
                raise _Outrun
            if rows.removes:
                connection.execute(self._at.insert_head, self._removal_row)
            return same

        for _ in range(_OUTRUN_MAX):
            with suppress(_Outrun):
                return self._write(write, repeatable=False)
        raise StoreError(f"{self._name}: these keys change faster than they can be compared")

    def move_head(self, expected: Head | None, new: Head) -> None:
        def write(connection: Connection, unsure: bool) -> None:
            with pipelined(connection):
                connection.execute(BEGIN)
                locked = self._fetch_head(connection, lock="FOR UPDATE")
            row = locked.fetchone()
            stored = self._require_made(row)
            if unsure and stored == new:
                return  # what was committed was this, and only its answer was lost
            if stored != expected:
                raise self._header.moved(new, stored)
            with pipelined(connection):
                if replaces_attempt(expected, new) and self.undoes_lost_attempts:
                    for statement in self._sql.undo(new.stamp.txid):
                        connection.execute(statement)
                if goes_on(expected, new):
                    for statement in self._sql.sweep(new.stamp.txid, self._at.heads):
                        connection.execute(statement, self._removal_row[:1])
                name, *columns = self._head_row(new)
                connection.execute(self._at.update_head, [*columns, name])

        self._write(write, repeatable=True)

    def _upsert(self, rows: Upsert) -> None:
        if rows.stamp is None:
            rows = _last_of_each(rows)
        order, (statement, columns), stamp = _order(rows), self._sending(rows), rows.stamp

        def write(connection: Connection, unsure: bool) -> None:
            with pipelined(connection):
                connection.execute(BEGIN)
                # So that the head cannot move before this is committed; other tasks of the
                # same attempt may write meanwhile.
                head = self._fetch_head(connection, lock="FOR SHARE" if stamp else "")
                done = [self._send(connection, statement, columns, some) for some in _chunks(order)]
                if rows.removes:
                    connection.execute(self._at.insert_head, self._removal_row)
            at = self._require_made(head.fetchone())
            if stamp is not None:
                check_stamp(at, stamp, state=self._name)
            if rows.txids is not None and sum(c.rowcount for c in done) != len(rows.keys):
                found = self._found(self._wanted(connection, rows.key_columns))
                self._refuse_newer(rows, self._records(rows.keys, found))

        # A non-transactional value has no batch beside it: added to twice, it counts twice.
        adds = rows.adds and self._kind is StateKind.NON_TRANSACTIONAL
        try:
            self._write(write, repeatable=not adds, stamp=stamp)
        except SerdeError as error:
            if rows.merges is not None and isinstance(
                error.__cause__, errors.NumericValueOutOfRange
            ):
                self._refuse_too_large(rows, self.multi_get(rows.keys))
            raise

    def _wanted(
        self,
        connection: Connection,
        key_columns: Sequence[Sequence[Any]],
        lock: str = "",
        *,
        brief: bool = False,
    ) -> psycopg.Cursor[Any]:
        plain = self._are_plain(key_columns)
        matched = key_columns[: len(self._layout.key_names) + (not plain)]
        arrays = [array_of(column) for column in matched]
        count = len(key_columns[0])
        if plain and brief and len(matched) == 1 and count >= _MANY:
            bound = {"keys": arrays[0], "small": count * _BYTES_A_KEY}
            return connection.execute(self._sql.select_dense, bound, binary=True)
        statement = self._sql.select_wanted(lock, plain=plain, brief=brief)
        return connection.execute(statement, arrays, binary=True)

    def _are_plain(self, key_columns: Sequence[Sequence[Any]]) -> bool:
        """Whether keys say all that there is to be said of them: no mark, no long text."""
        width = len(self._layout.key_names)
        return width > 0 and not any(map(any, key_columns[width:]))

    def _found(self, cursor: psycopg.Cursor[Any], *, brief: bool = False) -> list[Any]:
        self._refuse_other_types(cursor, self._brief_types if brief else self._types)
        return self._rows(cursor.fetchall)

    def _refuse_other_types(self, cursor: psycopg.Cursor[Any], types: Sequence[int]) -> None:
        """Refuse columns that someone gave another type: their values would pass for ours."""
        found = [column.type_code for column in cursor.description or ()]
        if found[-len(types) :] != types:
            self._check_columns(cursor.connection)

    def _rows(self, fetch: Callable[[], list[Any]]) -> list[Any]:
        try:
            return fetch()
        except psycopg.DataError as error:
            # For example a date beyond those of Python; waterspout writes none.
            raise DamagedStoreError(
                f"{self._name} holds a row that cannot be read: {error}"
            ) from error

    def _sending(self, rows: Upsert) -> tuple[str, list[Sequence[Any]]]:
        """Return the statement that writes some rows, and the columns that it takes."""
        if rows.merges is None or not self._are_plain(rows.key_columns):
            return self._statement(rows), [*rows.key_columns, *rows.columns]
        assert rows.stamp is not None
        txid, attempt = rows.stamp.txid, rows.stamp.attempt
        statement = self._sql.combine(rows.merges, txid, attempt, self._sql.plain_rows)
        return statement, [*rows.key_columns[: len(self._layout.key_names)], *rows.columns]

    def _send(
        self,
        connection: Connection,
        statement: str,
        columns: Sequence[Sequence[Any]],
        order: pa.Array,
    ) -> psycopg.Cursor[Any]:
        return connection.execute(statement, [array_of(column, order) for column in columns])

    def _run(self, connection: Connection, statement: str, rows: Upsert) -> int:
        columns, every = [*rows.key_columns, *rows.columns], pa.array(range(len(rows.keys)))
        done = [self._send(connection, statement, columns, some) for some in _chunks(every)]
        return sum(cursor.rowcount for cursor in done)

    def _add_statements(self, row: Sequence[Any] | None) -> Sequence[str]:
        added = self._added(row)
        return self._sql.add(added) if added else ()

    def _older(self, connection: Connection) -> PostgresMap | None:
        """Return the map of the table as it is, if columns were added that it has not got yet."""
        if not self._exists(connection, self._at.heads):
            return None
        added = self._added(self._fetch_head(connection).fetchone())
        if not added:
            return None
        values = Schema(self._recipe.values.fields[: -len(added)])
        return PostgresMap(replace(self._recipe, values=values))


def _chosen(rows: Upsert, numbers: Sequence[int]) -> Upsert:
    def of(column: Sequence[Any]) -> list[Any]:
        return list(map(column.__getitem__, numbers))

    return Upsert(
        rows.stamp,
        of(rows.keys),
        [of(column) for column in rows.key_columns],
        [of(column) for column in rows.columns],
        None if rows.txids is None else of(rows.txids),
        rows.merges,
        rows.removes,
    )


def _order(rows: Upsert) -> pa.Array:
    """Return row numbers in the order of keys: two writers then never wait for each other."""
    *keys, marks, _ = rows.key_columns
    names = keys[0] if len(keys) == 1 and not any(marks) else list(zip(*keys, marks, strict=True))
    if set(map(type, names)) == {str}:
        return order_of(pa.array(names, pa.string()))
    return pa.array(sorted(range(len(names)), key=names.__getitem__), pa.int64())


def _by_column(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    # Not by zip(*rows), to which every row is an argument.
    return [[row[i] for row in rows] for i in range(width)]


def _last_of_each(rows: Upsert) -> Upsert:
    """Leave out what the same call replaces: one upsert may not touch a row twice."""
    last = {key: i for i, key in enumerate(zip(*rows.key_columns[:-1], strict=True))}
    return rows if len(last) == len(rows.keys) else _chosen(rows, list(last.values()))


def _chunks(order: pa.Array) -> Iterator[pa.Array]:
    for start in range(0, len(order), _ROWS_MAX):
        yield order.slice(start, _ROWS_MAX)
