"""SQLite states: the embedded default. One file, one table per state, readable columns."""

from waterspout.state.sqlite._state import SQLiteState

__all__ = ["SQLiteState"]
