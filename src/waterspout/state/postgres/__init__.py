"""PostgreSQL states: tables with typed columns that anyone may read, written by every task."""

from waterspout.state.postgres._state import PostgresState

__all__ = ["PostgresState"]
