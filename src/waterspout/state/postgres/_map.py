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

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
from psycopg import errors, postgres

from waterspout._schema import Schema
from waterspout.errors import (
    DamagedStoreError,
    ForeignStoreError,
    OutageError,
    SerdeError,
    StoreError,
    WaterspoutError,
)
from waterspout.state._base import Key, Keys, Records, StateKind
from waterspout.state._head import Head, Stamp, check_stamp, goes_on, replaces_attempt
from waterspout.state._sql import TableMap, Upsert
from waterspout.state.postgres._columns import array_of
from waterspout.state.postgres._connections import (
    Connection,
    PostgresClient,
    is_outage,
    pipelined,
)
from waterspout.state.postgres._sql import PostgresStatements
from waterspout.state.postgres._state import PostgresState

__all__ = ["PostgresMap"]

T = TypeVar("T")

_log = logging.getLogger("waterspout.state.postgres")
_BEGIN = "BEGIN READ WRITE"
_ROWS_MAX = 100_000
_SCAN_ROWS = 10_000
_OUTRUN_MAX = 100
_OLDEST = 120000
_MISSING = (errors.UndefinedTable, errors.InvalidSchemaName)


class _Unmade(Exception):
    """There is no head row, so the table is still to be made; or it has not got all columns yet."""


class _FewerColumns(Exception):
    """The table has not got all columns yet."""


class _Outrun(Exception):
    """A row came into being between two statements."""


class PostgresMap(TableMap):
    """The records of one state in one table; writes check the head in their transaction."""

    def __init__(self, recipe: PostgresState) -> None:
        table, kind, layout = recipe.table, recipe.kind, recipe.columns
        self._sql = PostgresStatements(recipe.schema, table, kind, layout)
        super().__init__(recipe.title, table, kind, layout, self._sql)
        self._recipe = recipe
        self._schema = recipe.schema
        self._address = recipe.address
        self._client = PostgresClient(self._address)
        self._types = [postgres.types[kind].oid for kind in self._sql.record_types]

    def multi_get(self, keys: Keys) -> list[Any | None]:
        columns = self._layout.key_columns(keys)

        def read(connection: Connection) -> list[Any | None]:
            with pipelined(connection):
                head = self._fetch_head(connection)
                found = self._wanted(connection, columns)
            self._require_own(connection, head.fetchone())
            return self._found(keys, found)

        try:
            return self._read(read, default=lambda: [None] * len(keys))
        except _FewerColumns:
            older = self._read(self._older, default=lambda: None)
            # None: another process has added them since.
            return (older or self).multi_get(keys)

    def read_head(self) -> Head | None:

        def read(connection: Connection) -> Head | None:
            return self._require_own(connection, self._fetch_head(connection).fetchone())

        return self._read(read, default=lambda: None)

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
        order = _order(rows)
        rows = _chosen(rows, order)

        def write(connection: Connection, unsure: bool) -> list[bool]:
            with pipelined(connection):
                connection.execute(_BEGIN)
                head = self._fetch_head(connection)
                locked = self._wanted(connection, rows.key_columns, lock="FOR UPDATE")
            self._require_made(head.fetchone())
            there = {i - 1: columns for i, *columns in self._rows(locked.fetchall)}
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
                connection.execute(self._sql.insert_head, self._removal_row)
            return same

        for _ in range(_OUTRUN_MAX):
            with suppress(_Outrun):
                return self._write(write, repeatable=False)
        raise StoreError(f"{self._name}: these keys change faster than they can be compared")

    def move_head(self, expected: Head | None, new: Head) -> None:
        def write(connection: Connection, unsure: bool) -> None:
            with pipelined(connection):
                connection.execute(_BEGIN)
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
                    for statement in self._sql.sweep(new.stamp.txid, self._sql.heads):
                        connection.execute(statement, self._removal_row[:1])
                name, *columns = self._head_row(new)
                connection.execute(self._sql.update_head, [*columns, name])

        self._write(write, repeatable=True)

    def _upsert(self, rows: Upsert) -> None:
        if rows.stamp is None:
            rows = _last_of_each(rows)
        rows = _chosen(rows, _order(rows))
        statement, stamp = self._statement(rows), rows.stamp

        def write(connection: Connection, unsure: bool) -> None:
            with pipelined(connection):
                connection.execute(_BEGIN)
                # So that the head cannot move before this is committed; other tasks of the
                # same attempt may write meanwhile.
                head = self._fetch_head(connection, lock="FOR SHARE" if stamp else "")
                done = [self._send(connection, statement, chunk) for chunk in _chunks(rows)]
                if rows.removes:
                    connection.execute(self._sql.insert_head, self._removal_row)
            found = self._require_made(head.fetchone())
            if stamp is not None:
                check_stamp(found, stamp, state=self._name)
            if rows.txids is not None and sum(c.rowcount for c in done) != len(rows.keys):
                stored = self._found(rows.keys, self._wanted(connection, rows.key_columns))
                self._refuse_newer(rows, stored)

        # A non-transactional value has no batch beside it: added to twice, it counts twice.
        adds = rows.merges is not None and self._kind is StateKind.NON_TRANSACTIONAL
        try:
            self._write(write, repeatable=not adds, stamp=stamp)
        except SerdeError as error:
            if rows.merges is not None and isinstance(
                error.__cause__, errors.NumericValueOutOfRange
            ):
                self._refuse_too_large(rows, self.multi_get(rows.keys))
            raise

    def _fetch_head(self, connection: Connection, lock: str = "") -> psycopg.Cursor[Any]:
        return connection.execute(self._sql.select_head(lock), (self._table,))

    def _wanted(
        self, connection: Connection, key_columns: Sequence[Sequence[Any]], lock: str = ""
    ) -> psycopg.Cursor[Any]:
        matched = key_columns[: len(self._layout.key_names) + 1]
        arrays = [array_of(column) for column in matched]
        return connection.execute(self._sql.select_wanted(lock), arrays, binary=True)

    def _found(self, keys: Keys, cursor: psycopg.Cursor[Any]) -> list[Any | None]:
        self._refuse_other_types(cursor)
        found: list[Any | None] = [None] * len(keys)
        for i, *columns in self._rows(cursor.fetchall):
            found[i - 1] = self._record(keys[i - 1], columns)
        return found

    def _refuse_other_types(self, cursor: psycopg.Cursor[Any]) -> None:
        """Refuse columns that someone gave another type: their values would pass for ours."""
        found = [column.type_code for column in cursor.description or ()]
        if found[-len(self._types) :] != self._types:
            self._check_columns(cursor.connection)

    def _rows(self, fetch: Callable[[], list[Any]]) -> list[Any]:
        try:
            return fetch()
        except psycopg.DataError as error:
            # For example a date beyond those of Python; waterspout writes none.
            raise DamagedStoreError(
                f"{self._name} holds a row that cannot be read: {error}"
            ) from error

    def _send(self, connection: Connection, statement: str, rows: Upsert) -> psycopg.Cursor[Any]:
        arrays = [array_of(column) for column in (*rows.key_columns, *rows.columns)]
        return connection.execute(statement, arrays)

    def _run(self, connection: Connection, statement: str, rows: Upsert) -> int:
        return sum(self._send(connection, statement, chunk).rowcount for chunk in _chunks(rows))

    def check(self) -> None:

        def look(connection: Connection) -> None:
            self._check_server(connection)
            if self._own_row(connection) is not None:
                (self._older(connection) or self)._check_columns(connection)

        with self._errors():
            self._client.read(look)

    def _check_server(self, connection: Connection) -> None:
        found = connection.execute(
            "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), "
            "current_setting('server_version'), current_setting('server_encoding'), "
            "to_regnamespace(%s) IS NOT NULL, "
            "(SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit')",
            (self._sql.schema,),
        ).fetchone()
        assert found is not None
        number, is_replica, version, encoding, has_schema, durability = found
        if number < _OLDEST:
            raise StoreError(
                f"PostgreSQL 12 or newer is needed, {self._address.shown()} is {version}"
            )
        if is_replica:
            raise StoreError(
                f"{self._address.shown()} is a replica, which only reads; name the primary"
            )
        if encoding != "UTF8":
            raise StoreError(
                f"the database {self._address.shown()} has the encoding {encoding}, which cannot "
                "hold every string; use one with UTF8"
            )
        if not has_schema:
            raise StoreError(
                f"there is no schema {self._schema!r} in {self._address.shown()}; "
                f"create it: CREATE SCHEMA {self._schema}"
            )
        self._check_rights(connection)
        if durability == "off":
            _log.warning(
                "synchronous_commit is off at %s; our own sessions turn it on, because a batch "
                "is marked as done once its COMMIT was answered",
                self._address.shown(),
            )

    def _check_rights(self, connection: Connection) -> None:
        usable = connection.execute(
            "SELECT has_schema_privilege(%s, 'USAGE')", (self._schema,)
        ).fetchone()
        if usable != (True,):
            raise self._lacking(f"USAGE on schema {self._schema}")
        for table in (self._sql.heads, self._sql.table):
            if self._exists(connection, table):
                needed = ["SELECT", "INSERT", "UPDATE", "DELETE"]
                query = "SELECT " + ", ".join(["has_table_privilege(%s, %s)"] * len(needed))
                pairs = [word for right in needed for word in (table, right)]
                what = f"{', '.join(needed)} on table {table}"
            else:
                query, pairs = "SELECT has_schema_privilege(%s, 'CREATE')", [self._schema]
                what = f"CREATE on schema {self._schema}"
            answers = connection.execute(query, pairs).fetchone()
            if answers is None or not all(answers):
                raise self._lacking(what)

    def _lacking(self, right: str) -> StoreError:
        return StoreError(f"{self._name} cannot be used without the right to {right}: GRANT it")

    def _check_columns(self, connection: psycopg.Connection[Any]) -> None:
        found = dict(
            connection.execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                (self._sql.table,),
            ).fetchall()
        )
        for name, kind, _ in self._sql.definition:
            if found.get(name) != kind:
                is_there = f"is {found[name]}" if name in found else "is missing"
                raise ForeignStoreError(
                    f"{self._name} is not as waterspout made it: column {name!r} {is_there} "
                    f"and should be {kind}. Restore it, or use another table."
                )

    def _require_made(self, row: Sequence[Any] | None) -> Head | None:
        """Return the head; refuse one that is another state's; have it made if there is none."""
        if row is None:
            raise _Unmade
        head = self._header.from_row(row)
        if self._added(row):
            raise _Unmade  # in part
        return head

    def _older(self, connection: Connection) -> PostgresMap | None:
        """Return the map of the table as it is, if columns were added that it has not got yet."""
        if not self._exists(connection, self._sql.heads):
            return None
        added = self._added(self._fetch_head(connection).fetchone())
        if not added:
            return None
        values = Schema(self._recipe.values.fields[: -len(added)])
        return PostgresMap(replace(self._recipe, values=values))

    def _require_own(self, connection: Connection, row: Sequence[Any] | None) -> Head | None:
        """Return the head; refuse a table without one, and one that is another state's."""
        if row is None and self._exists(connection, self._sql.table):
            # Another driver may have made both since the row was looked for, in one transaction.
            if self._exists(connection, self._sql.heads):
                row = self._fetch_head(connection).fetchone()
            if row is None:
                raise self._header.foreign()
        return self._header.from_row(row)

    def _own_row(self, connection: Connection) -> Sequence[Any] | None:
        """Return the head row, also where there is no table of heads yet."""
        row = None
        if self._exists(connection, self._sql.heads):
            row = self._fetch_head(connection).fetchone()
        self._require_own(connection, row)
        return row

    def _is_as_made(self, connection: Connection) -> bool:
        """Tell whether there is a table; refuse one that is not, or no longer, this state's."""
        row = self._fetch_head(connection).fetchone()
        self._require_own(connection, row)
        if row is not None:
            self._explain(connection)
        return row is not None

    def _exists(self, connection: Connection, table: str) -> bool:
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        return row is not None and bool(row[0])

    def _make_tables(self) -> None:
        def write(connection: Connection, unsure: bool) -> None:
            connection.execute(_BEGIN)
            # CREATE TABLE IF NOT EXISTS fails where two come at once.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", (f"waterspout {self._schema}",)
            )
            connection.execute(self._sql.create_heads)
            row = self._fetch_head(connection).fetchone()
            self._require_own(connection, row)
            connection.execute(self._sql.create)
            connection.execute(self._sql.insert_head, self._head_row(None))
            # Locked: a driver whose columns are fewer must not move the head meanwhile.
            row = self._fetch_head(connection, lock="FOR UPDATE").fetchone()
            if added := self._added(row):
                for statement in self._sql.add(added):
                    connection.execute(statement)
                name, *columns = self._head_row(self._header.from_row(row))
                connection.execute(self._sql.update_head, [*columns, name])

        with self._errors():
            self._client.write(write, repeatable=True)

    def _read(self, read: Callable[[Connection], T], *, default: Callable[[], T]) -> T:
        with self._errors():
            try:
                return self._client.read(read)
            except _MISSING:
                self._client.read(self._refuse_half)
                return default()
            except errors.UndefinedColumn:
                if self._client.read(self._older) is not None:
                    raise _FewerColumns from None
                self._client.read(self._explain)
                raise
            except errors.ProgrammingError:
                self._client.read(self._explain)
                raise

    def _write(
        self,
        write: Callable[[Connection, bool], T],
        *,
        repeatable: bool,
        stamp: Stamp | None = None,
    ) -> T:
        with self._errors():
            for is_last in (False, True):
                try:
                    return self._client.write(write, repeatable=repeatable)
                except (_Unmade, *_MISSING):
                    self._client.read(self._refuse_half)
                    if stamp is not None:
                        check_stamp(None, stamp, state=self._name)
                    if is_last:
                        raise
                    self._make_tables()
                except errors.UndefinedColumn:
                    if is_last or self._client.read(self._older) is None:
                        self._client.read(self._explain)
                        raise
                    self._make_tables()
                except errors.ProgrammingError:
                    self._client.read(self._explain)
                    raise
        raise AssertionError("unreachable")

    def _refuse_half(self, connection: Connection) -> None:
        """Refuse a table without its head, and a head without its table."""
        if self._own_row(connection) is not None and not self._exists(connection, self._sql.table):
            raise StoreError(
                f"{self._name} is gone, but its head is still in {self._sql.heads}. Restore the "
                "table, or delete that row too and start over."
            )

    def _explain(self, connection: Connection) -> None:
        """Say what is wrong with a table that a statement did not fit."""
        self._refuse_half(connection)
        self._check_columns(connection)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except WaterspoutError:
            raise
        except (psycopg.DataError, errors.ProgramLimitExceeded) as error:
            raise SerdeError(
                f"{self._name} cannot hold this: {self._said(error)}"
            ) from self._address.secrets.cause(error)
        except errors.QueryCanceled as error:
            raise OutageError(
                "postgres",
                f"{self._name}: a statement was given up after "
                f"{self._address.statement_timeout_secs:g} s: {self._said(error)}",
            ) from self._address.secrets.cause(error)
        except psycopg.Error as error:
            text = f"{self._name} cannot be used: {self._said(error)}"
            found = OutageError("postgres", text) if is_outage(error) else StoreError(text)
            raise found from self._address.secrets.cause(error)
        except _Unmade as error:
            raise StoreError(f"{self._name} vanished while it was being used") from error

    def _said(self, error: psycopg.Error) -> str:
        return self._address.secrets.hidden(error.diag.message_primary or str(error))


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


def _order(rows: Upsert) -> list[int]:
    """Return row numbers in the order of keys: two writers then never wait for each other."""
    *keys, marks, _ = rows.key_columns
    names = keys[0] if len(keys) == 1 and not any(marks) else list(zip(*keys, marks, strict=True))
    return sorted(range(len(names)), key=names.__getitem__)


def _last_of_each(rows: Upsert) -> Upsert:
    """Leave out what the same call replaces: one upsert may not touch a row twice."""
    last = {key: i for i, key in enumerate(zip(*rows.key_columns[:-1], strict=True))}
    return rows if len(last) == len(rows.keys) else _chosen(rows, list(last.values()))


def _chunks(rows: Upsert) -> Iterator[Upsert]:
    if len(rows.keys) <= _ROWS_MAX:
        if rows.keys:
            yield rows
        return
    for start in range(0, len(rows.keys), _ROWS_MAX):
        yield _chosen(rows, range(start, min(start + _ROWS_MAX, len(rows.keys))))
