"""Small SQLite files of waterspout's own, each for one purpose; or the same in memory.

Opened when it is first needed, made when it is first written, for this user alone. Known by its
application id; a file of something else, or of a later format, is refused, and so is a link.

Whatever waterspout makes on a disk, it makes here: files with mode 0600, folders with 0700,
whatever the umask. What is there already keeps its mode: its owner may have opened it to others.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from waterspout.errors import DamagedStoreError, ForeignStoreError, NewerFormatError, StoreError

__all__ = [
    "FileKind",
    "OwnFile",
    "check_kind",
    "is_busy",
    "make_private",
    "open_private",
    "private_folder",
    "refuse_link",
    "shared_folder",
    "transaction",
]

T = TypeVar("T")

_BUSY_S = 10.0


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file holds, and how it is told from others. `holds` is what errors call it.

    `unmarked` is the one table of files that were made before files of this kind were marked.
    `remedy` says what to do about one that cannot be used.
    """

    holds: str
    application_id: int
    format: int
    schema: str
    unmarked: str | None = None
    remedy: str = ""

    def mark(self, db: sqlite3.Connection) -> None:
        """Make the tables of a new file, and say in it what it is."""
        db.execute(self.schema)
        db.execute(f"PRAGMA application_id={self.application_id}")
        db.execute(f"PRAGMA user_version={self.format}")


class OwnFile:
    """One file, one connection, any thread."""

    def __init__(self, path: Path | None, kind: FileKind) -> None:
        self._path = path
        self._kind = kind
        self._db: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    @property
    def exists(self) -> bool:
        """Whether anything was ever written."""
        return self._db is not None or (self._path is not None and self._path.exists())

    def transaction(self, work: Callable[[sqlite3.Connection], T], *, create: bool = False) -> T:
        """Do some work durably, or not at all."""
        with self._lock, self._errors():
            db = self._open(create=create)
            with transaction(db):
                return work(db)

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none if nothing was ever written."""
        if not self.exists:
            return []
        with self._lock, self._errors():
            return self._open().execute(sql, parameters).fetchall()

    def each(self, sql: str, *parameters: object) -> Iterator[Any]:
        """Yield the first column of a statement, row by row; nothing if nothing was written."""
        if not self.exists:
            return
        with self._lock, self._errors():
            for row in self._open().execute(sql, parameters):
                yield row[0]

    def change(self, sql: str, rows: Sequence[tuple[object, ...]]) -> int:
        """Execute a statement once for each row of parameters, all or none; return what changed.

        Nothing does if nothing was ever written.
        """
        if not rows or not self.exists:
            return 0
        # Once for each: SQLite takes only so many parameters in a statement.
        return self.transaction(lambda db: db.executemany(sql, rows).rowcount)

    def close(self) -> None:
        """Close the file; what is in memory only is gone."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _open(self, *, create: bool = False) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        if self._path is None:
            where, uri = ":memory:", False
        else:
            refuse_link(self._path)
            if create:
                private_folder(self._path.parent)
                make_private(self._path)
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
        if db.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            # As older versions left some: a copy of the file alone would not be whole.
            db.execute("PRAGMA journal_mode=DELETE")
        db.execute("PRAGMA synchronous=FULL")
        with transaction(db):  # of two that come first at once, one makes the table
            (application,) = db.execute("PRAGMA application_id").fetchone()
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master")]
            if application == 0 and tables in ([], [self._kind.unmarked]):
                self._kind.mark(db)
            else:
                check_kind(db, self._kind, self._path, self._kind.remedy)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise StoreError(f"the {self._kind.holds} in {self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            what, remedy = f"the {self._kind.holds} in {self._path}: {error}", self._kind.remedy
            raise DamagedStoreError(f"{what}; {remedy}" if remedy else what) from error


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else had the file for longer than was waited for."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def transaction(db: sqlite3.Connection, mode: str = "IMMEDIATE") -> Iterator[None]:
    """Commit what is done within, or none of it."""
    db.execute(f"BEGIN {mode}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def check_kind(db: sqlite3.Connection, kind: FileKind, path: Path | None, remedy: str = "") -> None:
    """Refuse a file of another program, and one of a later format."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != kind.application_id:
        raise ForeignStoreError(f"{path} does not hold {kind.holds}{remedy and f'; {remedy}'}")
    if version > kind.format:
        raise NewerFormatError(str(path), version, kind.format)


def refuse_link(path: Path) -> None:
    """Refuse a file or folder of our own that is a link: who made it may have meant another."""
    if path.is_symlink():
        raise ForeignStoreError(
            f"{path} is a symbolic link, and a store is never looked for behind one; move "
            "what it points to here, or set WATERSPOUT_HOME."
        )


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone."""
    missing = [level for level in (path, *path.parents) if not level.exists()]
    for level in reversed(missing):
        with suppress(FileExistsError):  # somebody was faster, and it is theirs
            os.mkdir(level, 0o700)
            os.chmod(level, 0o700)  # of which the umask may have taken something


def shared_folder(path: Path) -> None:
    """Make a folder as the user's umask has it: for tables that others read with other tools."""
    path.mkdir(parents=True, exist_ok=True)


def make_private(path: Path, *, follow: bool = False) -> None:
    """Make an empty file for this user alone, unless there is a file.

    A file that is there is not even opened. To close it again would take away the locks that
    SQLite has on it for other connections of this process: another process could then take itself
    for the only one, and remove the log that these write to.
    """
    target = os.path.realpath(path) if follow else path
    if not follow:
        refuse_link(Path(path))
    if os.path.lexists(target):
        return
    # Made under a name of its own: nobody can have it open before it has the real one.
    draft = f"{target}.{secrets.token_hex(8)}"
    os.close(open_private(draft, os.O_WRONLY | os.O_EXCL))
    try:
        os.link(draft, target)
    except FileExistsError:
        pass  # somebody was faster
    except OSError:  # a file system without links
        with suppress(FileExistsError):
            os.close(open_private(target, os.O_WRONLY | os.O_EXCL))
    finally:
        os.unlink(draft)


def open_private(path: str | Path, flags: int, *, follow: bool = False) -> int:
    """Open a file, made for this user alone where there is none, and return its descriptor.

    A link is followed only where the user has named the file.
    """
    name = os.path.realpath(path) if follow else path
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(name, flags & ~os.O_EXCL)
    os.fchmod(handle, 0o600)  # of which the umask may have taken something
    return handle
