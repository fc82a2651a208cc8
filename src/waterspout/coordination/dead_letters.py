"""Dead letters of a core topology: messages that failed too often, kept until somebody decides.

One SQLite file beside the embedded coordination store. Only the driver that holds the lease adds
letters; anybody may list them, and ask for some to be sent through again: that is a mark in the
table, which the running driver finds.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from waterspout.errors import (
    DamagedStoreError,
    DeadLettersFullError,
    ForeignStoreError,
    NewerFormatError,
    SerdeError,
    StoreError,
)
from waterspout.serde import decode_value, encode_value
from waterspout.texts import shown
from waterspout.waves.spouts import Letter

__all__ = ["DeadLetters"]

T = TypeVar("T")

_FILE = "dead-letters.db"
_APPLICATION_ID = 0x5753444C
_FORMAT = 1
_BUSY_S = 10.0
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
_COLUMNS = (
    "id, component, stream, content, shown, message_id, failed_in, error, failures, "
    "first_failed, last_failed, target, wanted"
)


class DeadLetters:
    """The letters of one topology. Nothing is created before the first is added."""

    def __init__(self, folder: Path | None, *, limit: int = 100_000) -> None:
        self._path = None if folder is None else folder / _FILE
        self._limit = limit
        self._db: sqlite3.Connection | None = None
        self._lock = threading.RLock()

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

        self._transaction(write, create=True)

    def remove(self, ids: Sequence[int]) -> int:
        """Remove letters: they were replayed with success, or are not wanted any more."""
        if not self._exists:
            return 0

        def write(db: sqlite3.Connection) -> int:
            # One by one: SQLite takes only so many parameters in a statement.
            return db.executemany(
                "DELETE FROM letters WHERE id = ?", [(id,) for id in ids]
            ).rowcount

        return self._transaction(write)

    def want(self, ids: Sequence[int] | None = None) -> int:
        """Ask for letters to be sent through again (None: all that can be); return how many."""
        if not self._exists:
            return 0

        def write(db: sqlite3.Connection) -> int:
            mark = "UPDATE letters SET wanted = 1 WHERE content IS NOT NULL"
            if ids is None:
                return db.execute(mark).rowcount
            return db.executemany(f"{mark} AND id = ?", [(id,) for id in ids]).rowcount

        return self._transaction(write)

    def unwant(self, ids: Sequence[int]) -> None:
        """Take back that letters are to be sent through again."""
        if self._exists:
            mark = "UPDATE letters SET wanted = 0 WHERE id = ?"
            self._transaction(lambda db: db.executemany(mark, [(id,) for id in ids]))

    def wanted(self) -> list[Letter]:
        """Return the letters that are to be sent through again, oldest first."""
        if not self._exists:
            return []
        return self._read("WHERE wanted = 1 ORDER BY id")

    def all(self, limit: int | None = None) -> list[Letter]:
        """Return the letters, oldest first."""
        if not self._exists:
            return []
        return self._read("ORDER BY id" + ("" if limit is None else f" LIMIT {int(limit)}"))

    def get(self, id: int) -> Letter | None:
        """Return one letter."""
        if not self._exists:
            return None
        found = self._read("WHERE id = ?", id)
        return found[0] if found else None

    def __len__(self) -> int:
        if not self._exists:
            return 0
        with self._lock, self._errors():
            (count,) = self._open().execute("SELECT count(*) FROM letters").fetchone()
            return int(count)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @property
    def _exists(self) -> bool:
        return self._db is not None or (self._path is not None and self._path.exists())

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
        with self._lock, self._errors():
            rows = self._open().execute(f"SELECT {_COLUMNS} FROM letters {which}", parameters)
            return [_letter(row) for row in rows.fetchall()]

    def _transaction(self, work: Callable[[sqlite3.Connection], T], *, create: bool = False) -> T:
        with self._lock, self._errors():
            db = self._open(create=create)
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return result

    def _open(self, *, create: bool = False) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        if self._path is None:
            where, uri = ":memory:", False
        else:
            if create:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                # Messages are for this user alone, as all else that a topology keeps.
                os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
            where, uri = f"{self._path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}", True
        db = sqlite3.connect(
            where, uri=uri, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._check(db)
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _check(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA synchronous=FULL")
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables == 0:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_SCHEMA)
            db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={_FORMAT}")
            db.execute("COMMIT")
        elif application != _APPLICATION_ID:
            raise ForeignStoreError(f"{self._path} does not hold dead letters of waterspout")
        elif version > _FORMAT:
            raise NewerFormatError(
                f"{self._path} has format {version}; this version of waterspout reads up to "
                f"{_FORMAT}. Upgrade waterspout."
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"the dead letters in {self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise DamagedStoreError(f"the dead letters in {self._path}: {error}") from error


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
