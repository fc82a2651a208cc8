"""One table of an SQLite file and its head: connections, transactions, and whose table it is."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from waterspout._own_files import is_busy, make_private, transaction
from waterspout.errors import OutageError, SerdeError, StoreError
from waterspout.state._head import Head
from waterspout.state._header import StoreHeader
from waterspout.state._sql import HEAD_COLUMNS, HEADS

__all__ = ["STORE_HEAD", "SQLiteTable", "file_at", "refuse_unusable"]

_CREATE_HEADS = (
    f"CREATE TABLE IF NOT EXISTS {HEADS} (name TEXT PRIMARY KEY, format INTEGER NOT NULL,"
    " kind TEXT NOT NULL, layout TEXT NOT NULL, head TEXT NOT NULL, checksum TEXT NOT NULL)"
    " STRICT, WITHOUT ROWID"
)
STORE_HEAD = f"INSERT OR REPLACE INTO {HEADS} VALUES (?, ?, ?, ?, ?, ?)"
_BUSY_S = 30.0
_CACHE_KB = 64 * 1024  # taken only as it is filled
_LOG_BYTES = 64 * 1024 * 1024


class SQLiteTable(ABC):
    """What states in a table of an SQLite file share, be it a map or rows.

    A subclass has the statements that make the table, and those that give it columns that were
    added since.
    """

    _name: str
    _table: str
    _header: StoreHeader

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._may_write = False
        self._lock = threading.RLock()

    @abstractmethod
    def _create_statement(self) -> str:
        """Return what makes the table where there is none."""

    @abstractmethod
    def _add_statements(self, row: Sequence[Any]) -> Sequence[str]:
        """Return what adds the columns that a table with this head row has not got yet."""

    def read_head(self) -> Head | None:
        with self._lock, self._errors():
            db = self._connect(create=False)
            return None if db is None else self._stored_head(db)

    def check(self) -> None:
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is not None:
                self._has_own_table(db)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
                self._may_write = False

    def _create_tables(self, db: sqlite3.Connection) -> None:
        db.execute(_CREATE_HEADS)
        self._refuse_foreign(db)
        db.execute(self._create_statement())
        row = self._read_head_row(db)
        if row is None:
            self._store_head(db, None)
        elif added := self._add_statements(row):
            for statement in added:
                db.execute(statement)
            self._store_head(db, self._header.from_row(row))

    def _refuse_foreign(self, db: sqlite3.Connection) -> None:
        if self._has_table(db) and self._read_head_row(db) is None:
            raise self._header.foreign()

    def _stored_head(self, db: sqlite3.Connection) -> Head | None:
        return self._header.from_row(self._read_head_row(db))

    def _store_head(self, db: sqlite3.Connection, head: Head | None) -> None:
        db.execute(STORE_HEAD, (self._table, *self._header.row(head)))

    def _read_head_row(self, db: sqlite3.Connection) -> tuple[Any, ...] | None:
        if not _exists(db, HEADS):
            return None
        row: tuple[Any, ...] | None = db.execute(
            f"SELECT {HEAD_COLUMNS} FROM {HEADS} WHERE name = ?", (self._table,)
        ).fetchone()
        return row

    def _has_table(self, db: sqlite3.Connection) -> bool:
        return _exists(db, self._table)

    def _has_own_table(self, db: sqlite3.Connection) -> bool:
        """Tell whether the table is there; raise if it is not this state's."""
        self._refuse_foreign(db)
        self._stored_head(db)
        return self._has_table(db)

    def _write(self, write: Callable[[sqlite3.Connection], None]) -> None:
        with self._lock, self._errors():
            db = self._connect(create=True)
            assert db is not None
            with transaction(db):
                write(db)

    def _connect(self, *, create: bool) -> sqlite3.Connection | None:
        if self._db is None:
            if not create and not self._path.exists():
                return None
            if create:
                with suppress(OSError):  # SQLite says it better
                    make_private(self._path, follow=True)
            self._db = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        if create and not self._may_write:
            # Only for a writer: this changes the file, which may be somebody else's.
            _switch_to_wal(self._db)
            # The rows must be on disk before the batch is marked in another file.
            self._db.execute("PRAGMA synchronous=FULL")
            # With SQLite's own 2 MB the pages of a batch in a large table are written out, and
            # read again, while the batch is still at them: half as long again for a million keys.
            self._db.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            # And with its own 4 MB of log, each of its batches copies every page that it has
            # written from the log to the table before the next one may begin.
            (page,) = self._db.execute("PRAGMA page_size").fetchone()
            self._db.execute(f"PRAGMA wal_autocheckpoint={_LOG_BYTES // page}")
            # A statement that may fail in its middle keeps a copy of each page that it changes.
            self._db.execute("PRAGMA temp_store=MEMORY")
            self._may_write = True
        return self._db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self.close()
            text = f"{self._name} cannot be used: {error}"
            raise (OutageError("sqlite", text) if is_busy(error) else StoreError(text)) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise SerdeError(f"{self._name} cannot hold this: {error}") from error


def _switch_to_wal(db: sqlite3.Connection) -> None:
    # SQLite itself does not wait here for another connection that does the same.
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _exists(db: sqlite3.Connection, table: str) -> bool:
    row = db.execute(
        "SELECT 1 FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(?)",
        (table,),
    ).fetchone()
    return row is not None


def file_at(path: str | Path) -> Path:
    """Return the file that a recipe means."""
    return Path(path).expanduser().absolute()


def refuse_unusable(path: Path, table: str) -> None:
    """Refuse a file that cannot be made, or written, before a run."""
    if not path.parent.is_dir():
        raise StoreError(
            f"the folder {path.parent} of SQLite state {table!r} is not there; create it"
        )
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise StoreError(f"{target} is read-only, so SQLite cannot write to {path}")
