"""What tests of PostgreSQL states share: recipes, batches, a look from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.state._base import StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state.postgres import PostgresState

WORD_COUNT = "SELECT word, count FROM word_counts ORDER BY word"


@dataclass(frozen=True)
class Database:
    """A database of a test's own."""

    dsn: str

    def recipe(
        self,
        keys: str | None = "word string",
        values: str = "count bigint",
        *,
        kind: StateKind = StateKind.OPAQUE,
        table: str = "word_counts",
        **options: Any,
    ) -> PostgresState:
        """Return a recipe; by default that of an opaque word count."""
        recipe = PostgresState(self.dsn, table, kind=kind, **options)
        return recipe if keys is None else recipe.bind(Schema.parse(keys), Schema.parse(values))

    def state(self, *args: Any, **options: Any) -> BatchedMap[Any, Any]:
        """Return the live state of a recipe."""
        return self.recipe(*args, **options).make_state(Config(), 0, 1)

    def select(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a query as anyone would who has the database."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(sql, parameters).fetchall()

    def change(self, sql: str, *parameters: Any) -> None:
        """Change the database behind the state's back."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute(sql, parameters)

    def counts(self) -> dict[str, int]:
        """Return what a reader of the table sees."""
        return dict(self.select(WORD_COUNT))
