"""Dead letters of a core topology: messages that failed too often, kept until somebody decides.

One SQLite file beside the embedded coordination store. Only the driver that holds the lease adds
letters; anybody may list them, and ask for some to be sent through again: that is a mark in the
table, which the running driver finds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waterspout.errors import DeadLettersFullError, SerdeError
from waterspout.own_files import FileKind, OwnFile
from waterspout.safe_repr import shown
from waterspout.serde import decode_value, encode_value
from waterspout.waves.spouts import Letter

__all__ = ["DeadLetters"]

_FILE = "dead-letters.db"
_TEXT_MAX = 10_000
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
_COLUMNS = (
    "id, component, stream, content, shown, message_id, failed_in, error, failures, "
    "first_failed, last_failed, target, wanted"
)


class DeadLetters:
    """The letters of one topology. Nothing is created before the first is added."""

    def __init__(self, folder: Path | None, *, limit: int = 100_000) -> None:
        self._file = OwnFile(None if folder is None else folder / _FILE, _KIND)
        self._limit = limit

    def add(self, letters: Sequence[Letter]) -> None:
        """Put letters aside, all of them durably or none; one with an id goes back to its place."""
        new = sum(letter.id is None for letter in letters)

        def write(db: sqlite3.Connection) -> None:
            (count,) = db.execute("SELECT count(*) FROM letters").fetchone()
            if count + new > self._limit:
                raise DeadLettersFullError(
                    f"there are {count:,} dead letters, and {self._limit:,} are kept at most "
                    f"(dead_letters_max); {new} more have come. None is dropped: the run stops "
                    "before it acks them. Replay or drop some (waterspout dead-letters), or raise "
                    "the limit, and run the same command again."
                )
            for letter in letters:
                self._write(db, letter)

        self._file.transaction(write, create=True)

    def remove(self, ids: Sequence[int]) -> int:
        """Remove letters: they were replayed with success, or are not wanted any more."""
        if not self._file.exists:
            return 0

        def write(db: sqlite3.Connection) -> int:
            # One by one: SQLite takes only so many parameters in a statement.
            return db.executemany(
                "DELETE FROM letters WHERE id = ?", [(id,) for id in ids]
            ).rowcount

        return self._file.transaction(write)

    def want(self, ids: Sequence[int] | None = None) -> int:
        """Ask for letters to be sent through again (None: all that can be); return how many."""
        if not self._file.exists:
            return 0

        def write(db: sqlite3.Connection) -> int:
            mark = "UPDATE letters SET wanted = 1 WHERE content IS NOT NULL"
            if ids is None:
                return db.execute(mark).rowcount
            return db.executemany(f"{mark} AND id = ?", [(id,) for id in ids]).rowcount

        return self._file.transaction(write)

    def unwant(self, ids: Sequence[int]) -> None:
        """Take back that letters are to be sent through again."""
        if self._file.exists:
            mark = "UPDATE letters SET wanted = 0 WHERE id = ?"
            self._file.transaction(lambda db: db.executemany(mark, [(id,) for id in ids]))

    def wanted(self) -> list[Letter]:
        """Return the letters that are to be sent through again, oldest first."""
        if not self._file.exists:
            return []
        return self._read("WHERE wanted = 1 ORDER BY id")

    def all(self, limit: int | None = None) -> list[Letter]:
        """Return the letters, oldest first."""
        if not self._file.exists:
            return []
        return self._read("ORDER BY id" + ("" if limit is None else f" LIMIT {int(limit)}"))

    def get(self, id: int) -> Letter | None:
        """Return one letter."""
        if not self._file.exists:
            return None
        found = self._read("WHERE id = ?", id)
        return found[0] if found else None

    def __len__(self) -> int:
        if not self._file.exists:
            return 0
        ((count,),) = self._file.query("SELECT count(*) FROM letters")
        return int(str(count))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @staticmethod
    def _write(db: sqlite3.Connection, letter: Letter) -> None:
        try:
            content: str | None = encode_value(list(letter.values))
        except SerdeError:
            content = None  # it can be looked at, but not sent through again
        db.execute(
            f"INSERT OR REPLACE INTO letters ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,0)",
            (
                *(
                    letter.id,
                    letter.component,
                    letter.stream,
                    content,
                    shown(list(letter.values), _TEXT_MAX),
                ),
                *(letter.message_id, letter.failed_in, letter.error),
                *(letter.failures, letter.first_failed, letter.last_failed, letter.target),
            ),
        )

    def _read(self, which: str, *parameters: Any) -> list[Letter]:
        rows = self._file.query(f"SELECT {_COLUMNS} FROM letters {which}", *parameters)
        return [_letter(row) for row in rows]


def _letter(row: Sequence[Any]) -> Letter:
    id, component, stream, content, shown, *rest = row
    message_id, failed_in, error, failures, first_failed, last_failed, target, wanted = rest
    values = () if content is None else tuple(decode_value(content))
    return Letter(
        component,
        stream,
        values,
        message_id,
        failed_in,
        error,
        failures,
        first_failed,
        last_failed,
        target,
        id=id,
        shown=shown,
        wanted=bool(wanted),
        can_be_replayed=content is not None,
    )
