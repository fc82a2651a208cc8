"""What somebody wants done with dead letters: a durable list that the running driver works off.

Anybody may add a request; only the driver that holds the lease takes them up, in the order of
their numbers. A letter is asked for once: its number stays taken until a run has begun that
finds the letters settled, so that no letter is replayed twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waterspout.own_files import FileKind, OwnFile
from waterspout.trident.isolation.letters import LetterKey, Request, RowLetter

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
_COLUMNS = "id, action, letter, node, fields, row, position, failures, first_failed"


class Requests:
    """The requests of one topology. Nothing is created before the first is added."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = OwnFile(path, _KIND)

    def add(self, action: str, letters: Sequence[tuple[RowLetter, str | None]]) -> list[LetterKey]:
        """Ask for letters, each with the row to be sent; return those already asked for.

        One that was refused before may be asked for again.
        """

        def write(db: sqlite3.Connection) -> list[LetterKey]:
            taken = []
            for letter, row in letters:
                assert letter.key is not None
                db.execute(
                    "DELETE FROM requests WHERE letter = ? AND state = 'refused'",
                    (str(letter.key),),
                )
                done = db.execute(
                    "INSERT OR IGNORE INTO requests (action, letter, node, fields, row, position, "
                    "failures, first_failed) VALUES (?,?,?,?,?,?,?,?)",
                    (
                        *(action, str(letter.key), letter.node, letter.fields, row),
                        *(letter.position, letter.failures, letter.first_failed),
                    ),
                ).rowcount
                if not done:
                    taken.append(letter.key)
            return taken

        return self._file.transaction(write, create=True)

    def after(self, id: int, limit: int) -> list[Request]:
        """Return open requests with a greater number, in order."""
        return self._read("WHERE id > ? AND state = 'open' ORDER BY id LIMIT ?", id, limit)

    def some(self, ids: Sequence[int]) -> list[Request]:
        """Return requests by number."""
        return [request for id in ids for request in self._read("WHERE id = ?", id)]

    def states(self) -> dict[LetterKey, tuple[str, str, str | None]]:
        """Return action, state (open, refused, done) and reason of every letter asked for."""
        if not self._file.exists:
            return {}
        rows: Sequence[Any] = self._file.query("SELECT letter, action, state, reason FROM requests")
        return {LetterKey.parse(letter): (a, s, r) for letter, a, s, r in rows}

    def refuse(self, id: int, reason: str) -> None:
        """Note why a request cannot be carried out; the letter stays."""
        mark = "UPDATE requests SET state = 'refused', reason = ? WHERE id = ?"
        self._file.transaction(lambda db: db.execute(mark, (reason, id)))

    def done(self, ids: Sequence[int]) -> None:
        """Note that requests were carried out; may be said again."""
        if ids and self._file.exists:
            mark = "UPDATE requests SET state = 'done', row = NULL WHERE id = ?"
            self._file.transaction(lambda db: db.executemany(mark, [(id,) for id in ids]))

    def forget_done(self) -> None:
        """Remove what was carried out: called where the letters are known to be settled."""
        if self._file.exists:
            forget = "DELETE FROM requests WHERE state = 'done'"
            self._file.transaction(lambda db: db.execute(forget))

    def close(self) -> None:
        """Close the file; requests in memory stay."""
        if self._path is not None:
            self._file.close()

    def _read(self, which: str, *parameters: Any) -> list[Request]:
        if not self._file.exists:
            return []
        rows: Sequence[Any] = self._file.query(
            f"SELECT {_COLUMNS} FROM requests {which}", *parameters
        )
        return [
            Request(id, action, LetterKey.parse(letter), *rest)
            for id, action, letter, *rest in rows
        ]
