"""One table of PostgreSQL and its head: transactions, errors, rights, and whose table it is."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import errors

from waterspout.errors import (
    ForeignStoreError,
    OutageError,
    SerdeError,
    StoreError,
    WaterspoutError,
)
from waterspout.state._head import Head, Stamp, check_stamp
from waterspout.state._header import StoreHeader
from waterspout.state.postgres._connections import (
    Connection,
    PostgresAddress,
    PostgresClient,
    is_outage,
)
from waterspout.state.postgres._sql import HeadStatements

__all__ = ["BEGIN", "FewerColumns", "PostgresTable", "Statements"]

T = TypeVar("T")

_log = logging.getLogger("waterspout.state.postgres")
BEGIN = "BEGIN READ WRITE"
_OLDEST = 120000
_MISSING = (errors.UndefinedTable, errors.InvalidSchemaName)


class _Unmade(Exception):
    """There is no head row, so the table is still to be made; or it has not got all columns yet."""


class FewerColumns(Exception):
    """The table has not got all columns yet."""


class Statements(Protocol):
    """What makes a table, and what it is then."""

    @property
    def create(self) -> str:
        """The table."""

    @property
    def definition(self) -> list[tuple[str, str, bool]]:
        """Name, type, and whether it must have a value, of each column in order."""


class PostgresTable(ABC):
    """What states in a table of PostgreSQL share, be it a map or rows.

    A subclass says which columns were added since a table was made, and how it is read until it
    has them.
    """

    _name: str
    _table: str
    _header: StoreHeader

    def __init__(
        self, address: PostgresAddress, heads: HeadStatements, statements: Statements
    ) -> None:
        self._address = address
        self._client = PostgresClient(address)
        self._at = heads
        self._form = statements

    @abstractmethod
    def _add_statements(self, row: Sequence[Any] | None) -> Sequence[str]:
        """Return what adds the columns that a table with this head row has not got yet."""

    @abstractmethod
    def _older(self, connection: Connection) -> Any:
        """Return the state of the table as it is, if it has not got all columns yet; else None."""

    def read_head(self) -> Head | None:

        def read(connection: Connection) -> Head | None:
            return self._require_own(connection, self._fetch_head(connection).fetchone())

        return self._read(read, default=lambda: None)

    def _fetch_head(self, connection: Connection, lock: str = "") -> psycopg.Cursor[Any]:
        return connection.execute(self._at.select_head(lock), (self._table,))

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
            (self._at.schema,),
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
                f"there is no schema {self._at.name!r} in {self._address.shown()}; "
                f"create it: CREATE SCHEMA {self._at.name}"
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
            "SELECT has_schema_privilege(%s, 'USAGE')", (self._at.name,)
        ).fetchone()
        if usable != (True,):
            raise self._lacking(f"USAGE on schema {self._at.name}")
        for table in (self._at.heads, self._at.table):
            if self._exists(connection, table):
                needed = ["SELECT", "INSERT", "UPDATE", "DELETE"]
                query = "SELECT " + ", ".join(["has_table_privilege(%s, %s)"] * len(needed))
                pairs = [word for right in needed for word in (table, right)]
                what = f"{', '.join(needed)} on table {table}"
            else:
                query, pairs = "SELECT has_schema_privilege(%s, 'CREATE')", [self._at.name]
                what = f"CREATE on schema {self._at.name}"
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
                (self._at.table,),
            ).fetchall()
        )
        for name, kind, _ in self._form.definition:
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
        if self._add_statements(row):
            raise _Unmade  # in part
        return head

    def _require_own(self, connection: Connection, row: Sequence[Any] | None) -> Head | None:
        """Return the head; refuse a table without one, and one that is another state's."""
        if row is None and self._exists(connection, self._at.table):
            # Another driver may have made both since the row was looked for, in one transaction.
            if self._exists(connection, self._at.heads):
                row = self._fetch_head(connection).fetchone()
            if row is None:
                raise self._header.foreign()
        return self._header.from_row(row)

    def _own_row(self, connection: Connection) -> Sequence[Any] | None:
        """Return the head row, also where there is no table of heads yet."""
        row = None
        if self._exists(connection, self._at.heads):
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
            connection.execute(BEGIN)
            # CREATE TABLE IF NOT EXISTS fails where two come at once.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", (f"waterspout {self._at.name}",)
            )
            connection.execute(self._at.create_heads)
            row = self._fetch_head(connection).fetchone()
            self._require_own(connection, row)
            connection.execute(self._form.create)
            connection.execute(self._at.insert_head, (self._table, *self._header.row(None)))
            # Locked: a driver whose columns are fewer must not move the head meanwhile.
            row = self._fetch_head(connection, lock="FOR UPDATE").fetchone()
            if added := self._add_statements(row):
                for statement in added:
                    connection.execute(statement)
                stored = self._header.row(self._header.from_row(row))
                connection.execute(self._at.update_head, [*stored, self._table])

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
                    raise FewerColumns from None
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
        if self._own_row(connection) is not None and not self._exists(connection, self._at.table):
            raise StoreError(
                f"{self._name} is gone, but its head is still in {self._at.heads}. Restore the "
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
