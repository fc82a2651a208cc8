"""What somebody wants done with dead letters: a durable list that the running driver works off.

Anybody may add a request. Only the driver that holds the lease takes requests up, in the order of
their numbers. There is at most one request for a letter, and it stays in the list until a new run
has found all letters settled: so no letter is replayed twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from waterspout._letters import Asked, DeadLetter
from waterspout._own_files import FileKind, OwnFile
from waterspout.trident.isolation.letters import LetterRequest

__all__ = ["Requests"]

_SCHEMA = """
CREATE TABLE requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    action TEXT NOT NULL,
    letter TEXT NOT NULL UNIQUE,
    node TEXT NOT NULL,
    fields TEXT NOT NULL,
    row TEXT,
    position TEXT,
    failures INTEGER NOT NULL,
    first_failed REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'open',
    reason TEXT
) STRICT
"""
_KIND = FileKind("requests for dead letters", 0x57535251, 1, _SCHEMA)

# The attributes of a letter that a request needs, and the columns they are in.
_COLUMNS = {
    "id": "letter",
    "failed_in": "node",
    "fields": "fields",
    "content": "row",
    "position": "position",
    "failures": "failures",
    "first_failed": "first_failed",
}
_NAMES = ", ".join(_COLUMNS.values())
_INSERT = f"INSERT OR IGNORE INTO requests (action, {_NAMES}) VALUES (?{', ?' * len(_COLUMNS)})"


class Requests:
    """The requests of one topology. Nothing is created before the first is added."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = OwnFile(path, _KIND)

    def add(self, action: Literal["replay", "drop"], letters: Sequence[DeadLetter]) -> int:
        """Ask for letters, with the content to be replayed; return how many are new in the list.

        One that was refused before may be asked for again.
        """

        def write(db: sqlite3.Connection) -> int:
            added = 0
            for letter in letters:
                db.execute(
                    "DELETE FROM requests WHERE letter = ? AND state = 'refused'", (letter.id,)
                )
                values = (getattr(letter, name) for name in _COLUMNS)
                added += db.execute(_INSERT, (action, *values)).rowcount
            return added

        return self._file.transaction(write, create=True)

    def after(self, id: int, limit: int) -> list[LetterRequest]:
        """Return open requests with a greater number, in order."""
        return self._read("WHERE id > ? AND state = 'open' ORDER BY id LIMIT ?", id, limit)

    def some(self, ids: Sequence[int]) -> list[LetterRequest]:
        """Return requests by number."""
        return [request for id in ids for request in self._read("WHERE id = ?", id)]

    def asked(self) -> dict[str, Asked]:
        """Return what was asked for, by the ids of the letters."""
        rows = self._file.query("SELECT letter, action, state, reason FROM requests")
        return {letter: Asked(*rest) for letter, *rest in rows}

    def refuse(self, id: int, reason: str) -> None:
        """Note why a request cannot be carried out; the letter stays."""
        mark = "UPDATE requests SET state = 'refused', reason = ? WHERE id = ?"
        self._file.change(mark, [(reason, id)])

    def done(self, ids: Sequence[int]) -> None:
        """Note that requests were carried out; may be said again."""
        mark = "UPDATE requests SET state = 'done', row = NULL WHERE id = ?"
        self._file.change(mark, [(id,) for id in ids])

    def forget_done(self) -> None:
        """Remove what was carried out: called where the letters are known to be settled."""
        self._file.change("DELETE FROM requests WHERE state = ?", [("done",)])

    def close(self) -> None:
        """Close the file; requests in memory stay."""
        if self._path is not None:
            self._file.close()

    def _read(self, which: str, *parameters: Any) -> list[LetterRequest]:
        select = f"SELECT id, action, first_failed, {_NAMES} FROM requests {which}"
        return [
            LetterRequest(
                id, action, DeadLetter(last_failed=failed, **dict(zip(_COLUMNS, rest, strict=True)))
            )
            for id, action, failed, *rest in self._file.query(select, *parameters)
        ]
