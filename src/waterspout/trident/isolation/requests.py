"""What somebody wants done with dead letters: a durable list that the running driver works off.

Anybody may add a request; only the driver that holds the lease takes them up, in the order of
their numbers. A letter is asked for once: its number stays taken until a run has begun that
finds the letters settled, so that no letter is replayed twice.
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
    ForeignStoreError,
    NewerFormatError,
    StoreError,
)
from waterspout.trident.isolation.letters import LetterKey, Request, RowLetter

__all__ = ["Requests"]

T = TypeVar("T")

_APPLICATION_ID = 0x57535251
_FORMAT = 1
_BUSY_S = 10.0
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
_COLUMNS = "id, action, letter, node, fields, row, position, failures, first_failed"


class Requests:
    """The requests of one topology. Nothing is created before the first is added."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._lock = threading.RLock()

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

        return self._transaction(write, create=True)

    def after(self, id: int, limit: int) -> list[Request]:
        """Return open requests with a greater number, in order."""
        return self._read("WHERE id > ? AND state = 'open' ORDER BY id LIMIT ?", id, limit)

    def some(self, ids: Sequence[int]) -> list[Request]:
        """Return requests by number."""
        return [request for id in ids for request in self._read("WHERE id = ?", id)]

    def states(self) -> dict[LetterKey, tuple[str, str, str | None]]:
        """Return action, state (open, refused, done) and reason of every letter asked for."""
        if not self._exists:
            return {}
        with self._lock, self._errors():
            rows = self._open().execute("SELECT letter, action, state, reason FROM requests")
            return {LetterKey.parse(letter): (a, s, r) for letter, a, s, r in rows.fetchall()}

    def refuse(self, id: int, reason: str) -> None:
        """Note why a request cannot be carried out; the letter stays."""
        self._transaction(
            lambda db: db.execute(
                "UPDATE requests SET state = 'refused', reason = ? WHERE id = ?", (reason, id)
            )
        )

    def done(self, ids: Sequence[int]) -> None:
        """Note that requests were carried out; may be said again."""
        if ids and self._exists:
            mark = "UPDATE requests SET state = 'done', row = NULL WHERE id = ?"
            self._transaction(lambda db: db.executemany(mark, [(id,) for id in ids]))

    def forget_done(self) -> None:
        """Remove what was carried out: called where the letters are known to be settled."""
        if self._exists:
            self._transaction(lambda db: db.execute("DELETE FROM requests WHERE state = 'done'"))

    def close(self) -> None:
        """Close the file; requests in memory stay."""
        with self._lock:
            if self._db is not None and self._path is not None:
                self._db.close()
                self._db = None

    @property
    def _exists(self) -> bool:
        return self._db is not None or (self._path is not None and self._path.exists())

    def _read(self, which: str, *parameters: Any) -> list[Request]:
        if not self._exists:
            return []
        with self._lock, self._errors():
            rows = self._open().execute(f"SELECT {_COLUMNS} FROM requests {which}", parameters)
            return [
                Request(id, action, LetterKey.parse(letter), *rest)
                for id, action, letter, *rest in rows.fetchall()
            ]

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
        db.execute("BEGIN IMMEDIATE")  # two that come first at once: one of them makes the table
        try:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application == 0 and tables == 0:
                db.execute(_SCHEMA)
                db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
                db.execute(f"PRAGMA user_version={_FORMAT}")
            elif application != _APPLICATION_ID:
                raise ForeignStoreError(f"{self._path} does not hold requests of waterspout")
            elif version > _FORMAT:
                raise NewerFormatError(
                    f"{self._path} has format {version}; this version of waterspout reads up to "
                    f"{_FORMAT}. Upgrade waterspout."
                )
        finally:
            db.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"the requests in {self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise DamagedStoreError(f"the requests in {self._path}: {error}") from error
