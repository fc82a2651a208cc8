"""Stores of rows through their suite: memory, SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import count

import psycopg
import pytest

from tests.rows.stores import PinnedState, PublishedState
from waterspout.state import MemoryMapState
from waterspout.state.postgres import PostgresState
from waterspout.state.postgres._connections import close_idle
from waterspout.state.sqlite import SQLiteState
from waterspout.testing.conformance import RowsConformance

NUMBERS = count()


class TestMemory(RowsConformance):
    def make_recipe(self, rows):
        return MemoryMapState.opaque().bind_rows(rows)

    def read(self, recipe, fields):
        tables = [table for _, table in sorted(recipe.store()._rows.items())]
        return [tuple(row.values()) for table in tables for row in table.to_pylist()]

    def lose_rows(self, recipe):
        recipe.store()._rows.clear()
        return True


class _InThisProcess(RowsConformance):
    def read(self, recipe, fields):
        return recipe.seen

    def lose_rows(self, recipe):
        recipe.place.shown, recipe.place.lines = [], []
        return True


class TestPublished(_InThisProcess):
    def make_recipe(self, rows):
        return PublishedState().bind_rows(rows)


class TestPinned(_InThisProcess):
    def make_recipe(self, rows):
        return PinnedState().bind_rows(rows)


class TestSQLite(RowsConformance):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "rows.db"

    def make_recipe(self, rows):
        return SQLiteState.opaque(self.path, table=f"rows{next(NUMBERS)}").bind_rows(rows)

    def grown(self, recipe, rows):
        return SQLiteState.opaque(self.path, table=recipe.table).bind_rows(rows)

    def read(self, recipe, fields):
        return self.execute(f"SELECT {', '.join(fields)} FROM {recipe.table}", recipe)

    def lose_rows(self, recipe):
        self.execute(f"DELETE FROM {recipe.table}", recipe)
        return True

    def occupy(self, recipe):
        self.execute(f"CREATE TABLE {recipe.table} (id INTEGER)")
        return True

    def execute(self, statement, recipe=None):
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            listed = "SELECT 1 FROM sqlite_master WHERE name = ?"
            if recipe and not db.execute(listed, (recipe.table,)).fetchall():
                return []
            return db.execute(statement).fetchall()


@pytest.fixture(scope="module")
def database(postgres_server):
    yield postgres_server.fresh_database()
    close_idle()


class TestPostgres(RowsConformance):
    @pytest.fixture(autouse=True)
    def _database(self, database):
        self.dsn = database

    def make_recipe(self, rows):
        return PostgresState.opaque(self.dsn, table=f"rows{next(NUMBERS)}").bind_rows(rows)

    def grown(self, recipe, rows):
        return recipe.recipe.bind_rows(rows)

    def read(self, recipe, fields):
        table = recipe.recipe.table
        if not self.execute(f"SELECT to_regclass('{table}') IS NOT NULL")[0][0]:
            return []
        return self.execute(f"SELECT {', '.join(fields)} FROM {table}")

    def lose_rows(self, recipe):
        self.execute(f"TRUNCATE {recipe.recipe.table}", rows=False)
        return True

    def occupy(self, recipe):
        self.execute(f"CREATE TABLE {recipe.recipe.table} (id bigint)", rows=False)
        return True

    def execute(self, statement, *, rows=True):
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if rows else []
