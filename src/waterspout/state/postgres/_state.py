"""PostgreSQL states: tables with typed columns that anyone may read, written by every task.

    SELECT word, count FROM word_counts

Beside the user's columns a table has `_txid` and `_attempt` (who wrote the row), `_prev_*`
(an opaque state's value before that batch), `_nulls` and `_long` (what is odd about a key). One
that rows are appended to has `_txid`, `_attempt`, `_partition` and `_row`. The heads of all states
of a schema are in its table `_waterspout_heads`. Needs PostgreSQL 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from waterspout._schema import Schema
from waterspout.state._rows import RowsStoreState, refuse_kind
from waterspout.state._sql import check_name
from waterspout.state._sql_rows import check_columns
from waterspout.state._store import StoreState, require_package
from waterspout.state.postgres._columns import PostgresLayout

if TYPE_CHECKING:
    from waterspout.state.postgres._connections import PostgresAddress
    from waterspout.state.postgres._map import PostgresMap
    from waterspout.state.postgres._rows import PostgresRows

__all__ = ["PostgresRowsState", "PostgresState"]


@dataclass(frozen=True)
class PostgresState(StoreState):
    """Recipe of a state in a table of a PostgreSQL database.

    Args:
        dsn: A URL (`postgresql://user@host:port/database`) or `key=value` pairs, as libpq takes
            them. `${NAME}` is replaced from the environment where the connection is made, and
            libpq's own variables, password and service files work. Never shown.
        table: The table, created if it is not there.
        schema: Where the table is; a schema must exist.
        connect_timeout_secs: How long to wait for a connection, at least 2.
        statement_timeout_secs: How long one statement may take.
        lock_timeout_secs: How long to wait for a row that another session holds. A writer that
            stops in the middle of a write is thrown out after the same time.
    """

    dsn: str = field(repr=False)
    table: str
    schema: str = "public"
    connect_timeout_secs: float = 10.0
    statement_timeout_secs: float = 120.0
    lock_timeout_secs: float = 10.0

    backend = "postgres"
    fenced = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.table, "table", reserved=("pg_", "_waterspout"))
        check_name(self.schema, "schema", reserved=("pg_",))
        self._require_seconds("connect_timeout_secs", "statement_timeout_secs", "lock_timeout_secs")
        require_package("psycopg", "psycopg", "postgres")
        self.address.check()

    @property
    def title(self) -> str:
        return f"table {self.schema}.{self.table} in PostgreSQL at {self.address.shown()}"

    @property
    def columns(self) -> PostgresLayout:
        return PostgresLayout(self.keys, self.values)

    def backing(self) -> PostgresMap:
        from waterspout.state.postgres._map import PostgresMap

        return PostgresMap(self)

    def _bind_appended(self, rows: Schema) -> PostgresRowsState:
        refuse_kind(self.kind, self.title)
        return PostgresRowsState(recipe=self, rows=rows, driver_only=self.driver_only)

    def within(self) -> Mapping[str, Any]:
        return {"schema": self.schema, "table": self.table}

    def location(self) -> str:
        return f"postgres:{self.address.shown()}#{self.schema}.{self.table}"

    @property
    def address(self) -> PostgresAddress:
        """Where the database is, and how long to wait for it."""
        from waterspout.state.postgres._connections import PostgresAddress

        timeouts = self.connect_timeout_secs, self.statement_timeout_secs, self.lock_timeout_secs
        return PostgresAddress(self.dsn, *timeouts)


@dataclass(frozen=True, kw_only=True)
class PostgresRowsState(RowsStoreState):
    """Recipe of a table that rows are appended to; `PostgresState` makes it."""

    recipe: PostgresState
    driver_only: bool = False

    backend: ClassVar[str] = "postgres"

    def __post_init__(self) -> None:
        check_columns(self.rows, PostgresLayout)

    @property
    def title(self) -> str:
        return self.recipe.title

    def store(self) -> PostgresRows:
        from waterspout.state.postgres._rows import PostgresRows

        return PostgresRows(self.recipe, self.rows)

    def within(self) -> Mapping[str, Any]:
        return self.recipe.within()

    def location(self) -> str:
        return self.recipe.location()
