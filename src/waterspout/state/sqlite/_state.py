"""SQLite states: the embedded default. One file, one table per state, readable columns.

    SELECT word, count FROM word_counts

Beside the user's columns a table has `_txid` and `_attempt` (who wrote the row), `_prev_*`
(an opaque state's value before that batch) and `_nulls`. The heads of all states of the file
are in `_waterspout_heads`. One driver writes; anyone may read.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from waterspout._own_files import is_busy, make_private, transaction
from waterspout.errors import OutageError, SerdeError, StoreError
from waterspout.state._base import Key, Keys, Records, StateKind
from waterspout.state._columns import Layout
from waterspout.state._head import Head, check_stamp, goes_on, replaces_attempt
from waterspout.state._sql import HEAD_COLUMNS, HEADS, TableMap, Upsert, check_name
from waterspout.state._sql_statements import INTEGERS, TableStatements, quoted
from waterspout.state._store import StoreState

__all__ = ["SQLiteMap", "SQLiteState", "SQLiteStatements"]

_CREATE_HEADS = (
    f"CREATE TABLE IF NOT EXISTS {HEADS} (name TEXT PRIMARY KEY, format INTEGER NOT NULL,"
    " kind TEXT NOT NULL, layout TEXT NOT NULL, head TEXT NOT NULL, checksum TEXT NOT NULL)"
    " STRICT, WITHOUT ROWID"
)
_STORE_HEAD = f"INSERT OR REPLACE INTO {HEADS} VALUES (?, ?, ?, ?, ?, ?)"
_BUSY_S = 30.0
_CACHE_KB = 64 * 1024  # taken only as it is filled
_CHUNK = 10_000
# No state may have this name: SQLite looks for a name among the temporary tables first.
_WANTED = "_waterspout_wanted"


class SQLiteStatements(TableStatements):
    """Statements over one table of an SQLite file, row by row."""

    integer = "INTEGER"
    text = "TEXT"
    table_options = "STRICT, WITHOUT ROWID"
    mergeable: ClassVar[Mapping[str, tuple[str, ...]]] = {
        # Only 64 bits: of a narrower sum SQLite would not know the limits.
        "sum": ("bigint", "double", "float"),
        # SQLite orders NaN and text its own way; min and max stay with types without surprises.
        "min": (*INTEGERS, "date"),
        "max": (*INTEGERS, "date"),
    }

    def __init__(self, table: str, kind: StateKind, layout: Layout) -> None:
        super().__init__(quoted(table), kind, layout)
        # The keys that are looked for stand in a temporary table, with their positions.
        columns = [f"k{i}" for i in range(len(self._keys))]
        marks = ", ".join("?" * (len(self._keys) + 1))
        match = " AND ".join(f"t.{k} = w.{c}" for k, c in zip(self._keys, columns, strict=True))
        found = ", ".join(f"t.{name}" for name in self._record_columns)
        self.create_wanted = (
            f"CREATE TEMP TABLE IF NOT EXISTS {_WANTED} "
            f"(i INTEGER PRIMARY KEY, {', '.join(columns)})"
        )
        self.clear_wanted = f"DELETE FROM temp.{_WANTED}"
        self.insert_wanted = f"INSERT INTO temp.{_WANTED} VALUES ({marks})"
        # CROSS JOIN keeps the order: walk over the wanted keys, look each up.
        self.select_wanted = (
            f"SELECT w.i, {found} FROM temp.{_WANTED} w CROSS JOIN {self._table} t ON {match}"
        )

    def _rows(self, types: Sequence[str], *constants: str) -> str:
        return f"VALUES ({', '.join(['?'] * len(types) + list(constants))})"

    def _both(self, merge: str, kind: str, start: str, new: str) -> str:
        if merge == "sum" and kind in ("double", "float"):
            # NaN is stored as text, and SQLite makes inf - inf a NULL.
            return (
                f"CASE WHEN typeof({start}) = 'text' OR typeof({new}) = 'text' THEN 'NaN' "
                f"ELSE coalesce(({start}) + {new}, 'NaN') END"
            )
        return f"({start}) + {new}" if merge == "sum" else f"{merge}(({start}), {new})"


class SQLiteMap(TableMap):
    """The records of one state in one table; writes check the head in their transaction."""

    def __init__(self, path: Path, table: str, kind: StateKind, layout: Layout) -> None:
        self._sql = SQLiteStatements(table, kind, layout)
        super().__init__(f"table {table!r} in {path}", table, kind, layout, self._sql)
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._may_write = False
        self._lock = threading.RLock()

    def multi_get(self, keys: Keys) -> list[Any | None]:
        columns = self._layout.key_columns(keys)
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is None or not self._has_own_table(db):
                return [None] * len(keys)
            older = self._older(db)
            if older is not None:
                with closing(older):
                    return older.multi_get(keys)
            with transaction(db, "DEFERRED"):
                return self._select(db, keys, columns)

    def multi_compare_and_put(self, keys: Keys, read: Records, values: Records) -> list[bool]:
        columns, expected = self._layout.key_columns(keys), self._comparable(read)
        same: list[bool] = []

        def write(db: sqlite3.Connection) -> None:
            self._stored_head(db)
            self._create_tables(db)
            now = self._comparable(self._select(db, keys, columns))
            same[:] = [a == b for a, b in zip(now, expected, strict=True)]
            chosen = [i for i, ok in enumerate(same) if ok]
            rows = self._puts(None, [keys[i] for i in chosen], [values[i] for i in chosen])
            self._execute(db, rows)

        self._write(write)
        return same

    def read_head(self) -> Head | None:
        with self._lock, self._errors():
            db = self._connect(create=False)
            return None if db is None else self._stored_head(db)

    def check(self) -> None:
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is not None:
                self._has_own_table(db)

    def move_head(self, expected: Head | None, new: Head) -> None:
        def write(db: sqlite3.Connection) -> None:
            if self._stored_head(db) != expected:
                raise self._header.moved(new)
            self._create_tables(db)
            if replaces_attempt(expected, new) and self.undoes_lost_attempts:
                for statement in self._sql.undo(new.stamp.txid):
                    db.execute(statement)
            if goes_on(expected, new):
                for statement in self._sql.sweep(new.stamp.txid, HEADS):
                    db.execute(statement, self._removal_row[:1])
            self._store_head(db, new)

        self._write(write)

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, Any]]]:
        """Yield all keys and records: a file has one reader, so the first shard is everything."""
        if shard:
            return
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is None or not self._has_own_table(db):
                return
            older = self._older(db)
            found = [] if older else db.execute(self._sql.select_all).fetchall()
        if older is not None:
            with closing(older):
                yield from older.scan()
        for start in range(0, len(found), _CHUNK):
            yield self._pairs(found[start : start + _CHUNK])

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
                self._may_write = False

    def _upsert(self, rows: Upsert) -> None:
        def write(db: sqlite3.Connection) -> None:
            head = self._stored_head(db)
            if rows.stamp is not None:
                check_stamp(head, rows.stamp, state=self._name)
            if rows.merges is None:
                self._create_tables(db)
            self._execute(db, rows)

        self._write(write)

    def _execute(self, db: sqlite3.Connection, rows: Upsert) -> None:
        if not rows.keys:
            return
        values = zip(*rows.key_columns, *rows.columns, strict=True)
        try:
            done = db.executemany(self._statement(rows), values).rowcount
        except sqlite3.IntegrityError:
            # A sum beyond 64 bits is a REAL to SQLite, which its column does not take.
            if rows.merges is not None:
                self._refuse_too_large(rows, self._select(db, rows.keys, rows.key_columns))
            raise
        if done != len(rows.keys):
            self._refuse_newer(rows, self._select(db, rows.keys, rows.key_columns))
        if rows.removes:
            db.execute(_STORE_HEAD, self._removal_row)

    def _select(
        self, db: sqlite3.Connection, keys: Keys, columns: Sequence[Sequence[Any]]
    ) -> list[Any | None]:
        db.execute(self._sql.create_wanted)
        db.execute(self._sql.clear_wanted)
        db.executemany(self._sql.insert_wanted, zip(range(len(keys)), *columns, strict=True))
        found: list[Any | None] = [None] * len(keys)
        for i, *record in db.execute(self._sql.select_wanted):
            found[i] = self._record(keys[i], record)
        return found

    def _create_tables(self, db: sqlite3.Connection) -> None:
        db.execute(_CREATE_HEADS)
        self._refuse_foreign(db)
        db.execute(self._sql.create)
        row = self._read_head_row(db)
        if row is None:
            self._store_head(db, None)
        elif added := self._added(row):
            for statement in self._sql.add(added):
                db.execute(statement)
            self._store_head(db, self._header.from_row(row))

    def _older(self, db: sqlite3.Connection) -> SQLiteMap | None:
        """Return the map of the table as it is, if columns were added that it has not got yet."""
        added = self._added(self._read_head_row(db))
        if not added:
            return None
        return SQLiteMap(self._path, self._table, self._kind, self._narrow(added))

    def _refuse_foreign(self, db: sqlite3.Connection) -> None:
        if self._has_table(db) and self._read_head_row(db) is None:
            raise self._header.foreign()

    def _stored_head(self, db: sqlite3.Connection) -> Head | None:
        return self._header.from_row(self._read_head_row(db))

    def _store_head(self, db: sqlite3.Connection, head: Head | None) -> None:
        db.execute(_STORE_HEAD, self._head_row(head))

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


@dataclass(frozen=True)
class SQLiteState(StoreState):
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

    def within(self) -> Mapping[str, Any]:
        return {"table": self.table}

    def check(self) -> None:
        path = self._file
        if not path.parent.is_dir():
            raise StoreError(
                f"the folder {path.parent} of SQLite state {self.table!r} is not there; create it"
            )
        _refuse_read_only(path)
        super().check()

    def location(self) -> str:
        return f"sqlite:{self._file}#{self.table.lower()}"

    @property
    def _file(self) -> Path:
        return Path(self.path).expanduser().absolute()


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


def _refuse_read_only(path: Path) -> None:
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise StoreError(f"{target} is read-only, so SQLite cannot write to {path}")
