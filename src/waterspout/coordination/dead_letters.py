"""The store of a core topology's dead letters: messages that failed too often.

It is one SQLite file in the topology's folder. Only the driver that holds the lease adds letters.
Anybody may list or drop them, or ask for a replay: that sets a mark in the table, which the
running driver finds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waterspout._letters import Asked, DeadLetter, refuse_when_full
from waterspout._own_files import FileKind, OwnFile

__all__ = ["DeadLetters"]

_FILE = "dead-letters.db"
_SCHEMA = """
CREATE TABLE letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    component TEXT NOT NULL,
    stream TEXT NOT NULL,
    content TEXT,
    shown TEXT NOT NULL,
    message_id TEXT NOT NULL,
    failed_in TEXT NOT NULL,
    error TEXT NOT NULL,
    failures INTEGER NOT NULL,
    first_failed REAL NOT NULL,
    last_failed REAL NOT NULL,
    target INTEGER,
    wanted INTEGER NOT NULL DEFAULT 0
)
"""
_KIND = FileKind("dead letters of waterspout", 0x5753444C, 1, _SCHEMA)

# The attributes of a letter and the columns they are in; `id`, `shown` and `wanted` come first.
_COLUMNS = {
    "spout": "component",
    "stream": "stream",
    "content": "content",
    "message_id": "message_id",
    "failed_in": "failed_in",
    "error": "error",
    "failures": "failures",
    "first_failed": "first_failed",
    "last_failed": "last_failed",
    "task": "target",
}
_NAMES = f"id, shown, wanted, {', '.join(_COLUMNS.values())}"
_INSERT = f"INSERT OR REPLACE INTO letters ({_NAMES}) VALUES (?, ?, 0{', ?' * len(_COLUMNS)})"


class DeadLetters:
    """The letters of one topology. Nothing is created before the first is added."""

    def __init__(self, folder: Path | None, *, limit: int = 100_000) -> None:
        self._file = OwnFile(None if folder is None else folder / _FILE, _KIND)
        self._limit = limit

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Store letters, all or none of them. One that has an id replaces what is stored there."""
        new = [letter for letter in letters if not letter.id]

        def write(db: sqlite3.Connection) -> None:
            (count,) = db.execute("SELECT count(*) FROM letters").fetchone()
            refuse_when_full(count, new, self._limit, "it acks them")
            db.executemany(_INSERT, map(_to_row, letters))

        self._file.transaction(write, create=True)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove letters that were replayed or are not wanted any more; return how many."""
        return self._change("DELETE FROM letters WHERE id = ?", ids)

    def want(self, ids: Sequence[str] | None = None) -> int:
        """Ask for letters to be replayed (None: all); return how many of them can be."""
        if ids is None:
            ids = [letter.id for letter in self.all()]
        mark = "UPDATE letters SET wanted = 1 WHERE content IS NOT NULL AND id = ?"
        return self._change(mark, ids)

    def unwant(self, ids: Sequence[str]) -> None:
        """Take back that letters are to be replayed."""
        self._change("UPDATE letters SET wanted = 0 WHERE id = ?", ids)

    def wanted(self) -> list[DeadLetter]:
        """Return the letters that are to be replayed, oldest first."""
        return self._read("WHERE wanted = 1")

    def all(self) -> list[DeadLetter]:
        """Return the letters, oldest first."""
        return self._read("")

    def __len__(self) -> int:
        return sum(count for (count,) in self._file.query("SELECT count(*) FROM letters"))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _change(self, statement: str, ids: Sequence[str]) -> int:
        return self._file.change(statement, [(id,) for id in ids])

    def _read(self, which: str) -> list[DeadLetter]:
        rows = self._file.query(f"SELECT {_NAMES} FROM letters {which} ORDER BY id")
        return [_from_row(row) for row in rows]


def _to_row(letter: DeadLetter) -> tuple[Any, ...]:
    return letter.id or None, letter.shown, *(getattr(letter, name) for name in _COLUMNS)


def _from_row(row: Sequence[Any]) -> DeadLetter:
    id, shown, wanted, *rest = row
    values = dict(zip(_COLUMNS, rest, strict=True))
    looks = shown if values["content"] is None else None
    asked = Asked("replay") if wanted else None
    return DeadLetter(id=str(id), looks=looks, asked=asked, **values)
