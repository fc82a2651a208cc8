"""SQLite states: the embedded default. One file, one table per state, readable columns.

    SELECT word, count FROM word_counts

Beside the user's columns a table has `_txid` and `_attempt` (who wrote the row), `_prev_*`
(an opaque state's value before that batch) and `_nulls`; one that rows are appended to has `_txid`,
`_attempt`, `_partition` and `_row`. The heads of all states of the file are in
`_waterspout_heads`. One driver writes; anyone may read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waterspout._schema import Schema
from waterspout.errors import StoreError
from waterspout.state._local_paths import SentWithItsPath
from waterspout.state._rows import refuse_kind
from waterspout.state._sql import check_name
from waterspout.state._store import StoreState
from waterspout.state.sqlite._file import file_at, refuse_unusable
from waterspout.state.sqlite._map import SQLiteMap
from waterspout.state.sqlite._rows import SQLiteRowsState

__all__ = ["SQLiteState"]


@dataclass(frozen=True)
class SQLiteState(SentWithItsPath, StoreState):
    """Recipe of a state in a table of an SQLite file.

    `driver_only=False` lets tasks write too; that is right only where every task runs on the
    machine that has the file.
    """

    path: str | Path
    table: str
    driver_only: bool = True

    backend = "sqlite"
    fenced = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "path", str(self.path))
        check_name(self.table, "table", reserved=("sqlite_", "_waterspout"))
        if sqlite3.sqlite_version_info < (3, 37):
            raise StoreError(f"SQLite 3.37 or newer is needed, this is {sqlite3.sqlite_version}")

    @property
    def title(self) -> str:
        return f"table {self.table!r} in {self.path}"

    def backing(self) -> SQLiteMap:
        return SQLiteMap(self._file, self.table, self.kind, self.columns)

    def _bind_appended(self, rows: Schema) -> SQLiteRowsState:
        refuse_kind(self.kind, self.title)
        return SQLiteRowsState(
            path=str(self.path), table=self.table, rows=rows, driver_only=self.driver_only
        )

    def within(self) -> Mapping[str, Any]:
        return {"table": self.table}

    def check(self) -> None:
        refuse_unusable(self._file, self.table)
        super().check()

    def location(self) -> str:
        return f"sqlite:{self._file}#{self.table.lower()}"

    @property
    def _file(self) -> Path:
        return file_at(self.path)
