"""The SQL of one SQLite state: its dialect, and how many keys are looked up at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from waterspout.state.base import StateKind
from waterspout.state.columns import Layout
from waterspout.state.sql_statements import INTEGERS, Dialect, TableStatements, quoted

__all__ = ["Statements"]

# No state may have this name: SQLite looks for a name among the temporary tables first.
WANTED = "_waterspout_wanted"


class _SQLite(Dialect):
    integer = "INTEGER"
    text = "TEXT"
    table_options = "STRICT, WITHOUT ROWID"
    mergeable: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sum": (*INTEGERS, "double", "float"),
        # SQLite orders NaN and text its own way; min and max stay with types without surprises.
        "min": (*INTEGERS, "date"),
        "max": (*INTEGERS, "date"),
    }

    def rows(self, types: Sequence[str], constants: Sequence[str]) -> str:
        return f"VALUES ({', '.join(['?'] * len(types) + list(constants))})"

    def both(self, merge: str, kind: str, start: str, new: str) -> str:
        if merge == "sum" and kind in ("double", "float"):
            # NaN is stored as text, and SQLite makes inf - inf a NULL.
            return (
                f"CASE WHEN typeof({start}) = 'text' OR typeof({new}) = 'text' THEN 'NaN' "
                f"ELSE coalesce(({start}) + {new}, 'NaN') END"
            )
        return f"({start}) + {new}" if merge == "sum" else f"{merge}(({start}), {new})"


class Statements(TableStatements):
    """Statements over one table of an SQLite file, row by row."""

    def __init__(self, table: str, kind: StateKind, layout: Layout) -> None:
        super().__init__(quoted(table), kind, layout, _SQLite())

    @property
    def create_wanted(self) -> str:
        """A temporary table of the keys that are looked for."""
        columns = ", ".join(f"k{i}" for i in range(len(self._keys)))
        return f"CREATE TEMP TABLE IF NOT EXISTS {WANTED} (i INTEGER PRIMARY KEY, {columns})"

    @property
    def clear_wanted(self) -> str:
        """Forget the keys of the last search."""
        return f"DELETE FROM temp.{WANTED}"

    @property
    def insert_wanted(self) -> str:
        """One key that is looked for."""
        marks = ", ".join("?" * (len(self._keys) + 1))
        return f"INSERT INTO temp.{WANTED} VALUES ({marks})"

    @property
    def select_wanted(self) -> str:
        """The records of the keys that are looked for, with their positions."""
        match = " AND ".join(f"t.{name} = w.k{i}" for i, name in enumerate(self._keys))
        columns = ", ".join(f"t.{name}" for name in self._record_columns)
        # CROSS JOIN keeps the order: walk over the wanted keys, look each up.
        return f"SELECT w.i, {columns} FROM temp.{WANTED} w CROSS JOIN {self._table} t ON {match}"
