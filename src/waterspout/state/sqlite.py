"""SQLite states: the embedded default. One file, one table per state, readable columns.

    SELECT word, count FROM word_counts

Beside the user's columns a table has `_txid` and `_attempt` (who wrote the row), `_prev_*`
(an opaque state's value before that batch) and `_nulls`. The heads of all states of the file
are in `_waterspout_heads`. One driver writes; anyone may read.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from waterspout.config import Config
from waterspout.errors import (
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    NewerFormatError,
    SerdeError,
    StaleBatchError,
    StoreError,
    TopologyError,
)
from waterspout.schema import Schema
from waterspout.serde import checksum
from waterspout.state.base import Combiner, FencedMap, Key, StateFactory, StateKind
from waterspout.state.batched import BatchedMap
from waterspout.state.columns import Layout
from waterspout.state.head import Head, Stamp, check_stamp
from waterspout.state.kinds import make_map
from waterspout.state.sqlite_sql import Statements

__all__ = ["SQLiteMap", "SQLiteState"]

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_HEADS = (
    "CREATE TABLE IF NOT EXISTS _waterspout_heads (name TEXT PRIMARY KEY, format INTEGER NOT NULL,"
    " kind TEXT NOT NULL, layout TEXT NOT NULL, head TEXT NOT NULL, checksum TEXT NOT NULL)"
    " STRICT, WITHOUT ROWID"
)
_FORMAT = 1
_ANY_VALUE = Schema((("value", None),))
_BUSY_S = 30.0


class SQLiteMap(FencedMap[Any]):
    """The records of one state in one table; writes check the head in their transaction."""

    def __init__(self, path: Path, table: str, kind: StateKind, layout: Layout) -> None:
        self._path = path
        self._name = f"table {table!r} in {path}"
        self._table = table
        self._kind = kind
        self._layout = layout
        self._sql = Statements(table, kind, layout)
        self._db: sqlite3.Connection | None = None
        self._may_write = False
        self._lock = threading.RLock()

    @property
    def undoes_lost_attempts(self) -> bool:  # type: ignore[override]
        """True unless the rows have no `prev` to go back to."""
        return self._kind is StateKind.OPAQUE

    def multi_get(self, keys: Sequence[Key]) -> list[Any | None]:
        """Read the records of many keys with one join."""
        rows = self._layout.encode_keys(keys)
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is None or not self._has_own_table(db):
                return [None] * len(keys)
            with self._transaction(db, "DEFERRED"):
                return self._select(db, rows)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Store the records, creating the table if need be."""

        def write(db: sqlite3.Connection) -> None:
            self._stored_head(db)
            self._put(db, keys, values)

        self._write(write)

    def fenced_put(self, stamp: Stamp, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Store the records if the head has this stamp."""

        def write(db: sqlite3.Connection) -> None:
            check_stamp(self._stored_head(db), stamp, state=self._name)
            self._put(db, keys, values)

        self._write(write)

    def multi_compare_and_put(
        self, keys: Sequence[Key], read: Sequence[Any | None], values: Sequence[Any]
    ) -> bool:
        """Store the records if nobody has since the others were read."""
        same = True

        def write(db: sqlite3.Connection) -> None:
            nonlocal same
            self._stored_head(db)
            self._create_tables(db)
            now = self._select(db, self._layout.encode_keys(keys))
            same = self._comparable(now) == self._comparable(read)
            if same:
                self._put(db, keys, values)

        self._write(write)
        return same

    def can_combine(self, combiner: Combiner) -> bool:
        """Sums of numbers, least and greatest of plain values: SQLite does them as we would."""
        return self._sql.can_combine(combiner.merge)

    def fenced_combine(
        self, stamp: Stamp, keys: Sequence[Key], values: Sequence[Any], combiner: Combiner
    ) -> None:
        """Apply the kind's rule and the combiner in one upsert for all keys."""
        assert combiner.merge is not None
        codec, name = self._layout.value_codecs[0], self._layout.value_names[0]
        plain = codec.encode is None and set(map(type, values)) == {codec.python[0]}
        columns = values if plain else [codec.to_sql(v, name) for v in values]
        key_columns = self._layout.key_columns(keys)
        rows = list(zip(*key_columns, columns, strict=True))
        statement = self._sql.combine(combiner.merge, stamp.txid, stamp.attempt)

        def write(db: sqlite3.Connection) -> None:
            check_stamp(self._stored_head(db), stamp, state=self._name)
            done = db.executemany(statement, rows).rowcount
            if done != len(rows):
                encoded = list(zip(*key_columns, strict=True))
                self._refuse_newer(db, keys, encoded, [stamp.txid] * len(rows))

        self._write(write)

    def read_head(self) -> Head | None:
        """Return the head of this table; None where there is no table or no file yet."""
        with self._lock, self._errors():
            db = self._connect(create=False)
            return None if db is None else self._stored_head(db)

    def check(self) -> None:
        """Raise if the table cannot be this state's; writes nothing."""
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is not None:
                self._has_own_table(db)

    def move_head(self, expected: Head | None, new: Head) -> None:
        """Replace the head; undo the rows of an earlier attempt of the same batch with it."""

        def write(db: sqlite3.Connection) -> None:
            if self._stored_head(db) != expected:
                raise FencedError(f"{self._name}: another driver has moved the head")
            self._create_tables(db)
            if _replaces_attempt(expected, new) and self.undoes_lost_attempts:
                for statement in self._sql.undo(new.stamp.txid):
                    db.execute(statement)
            self._store_head(db, new)

        self._write(write)

    def rows(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield all keys and records."""
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is None or not self._has_own_table(db):
                return
            found = db.execute(self._sql.select_all).fetchall()
        width = len(self._layout.key_names) + 1
        for row in found:
            yield self._key(row[:width]), self._record(row[:width], row[width:])

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
                self._may_write = False

    # --- within a transaction --------------------------------------------------------------

    def _select(self, db: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> list[Any | None]:
        db.execute(self._sql.create_wanted)
        db.execute(self._sql.clear_wanted)
        db.executemany(self._sql.insert_wanted, ((i, *row) for i, row in enumerate(rows)))
        found: list[Any | None] = [None] * len(rows)
        for i, *columns in db.execute(self._sql.select_wanted):
            found[i] = self._record(rows[i], columns)
        return found

    def _comparable(self, records: Sequence[Any | None]) -> list[Any]:
        # As columns, where even a NaN is equal to itself.
        return [None if record is None else self._sql.columns(record) for record in records]

    def _key(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        try:
            return self._layout.decode_key(columns)
        except (ValueError, ArithmeticError) as error:
            raise DamagedStoreError(
                f"{self._name} holds a row whose key {tuple(columns)!r} cannot be read: {error}"
            ) from error

    def _record(self, key: Sequence[Any], columns: Sequence[Any]) -> Any:
        try:
            return self._sql.record(columns)
        except (ValueError, ArithmeticError) as error:
            raise DamagedStoreError(
                f"{self._name} holds a row that cannot be read, under key {self._key(key)!r}: "
                f"{error}"
            ) from error

    def _put(self, db: sqlite3.Connection, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self._create_tables(db)
        encoded = self._layout.encode_keys(keys)
        rows = [
            (*key, *self._sql.columns(record)) for key, record in zip(encoded, values, strict=True)
        ]
        done = db.executemany(self._sql.put, rows).rowcount
        if done != len(rows):
            self._refuse_newer(db, keys, encoded, [record.txid for record in values])

    def _refuse_newer(
        self,
        db: sqlite3.Connection,
        keys: Sequence[Key],
        encoded: list[tuple[Any, ...]],
        txids: Sequence[int],
    ) -> None:
        for key, txid, stored in zip(keys, txids, self._select(db, encoded), strict=True):
            if stored is not None and stored.txid > txid:
                raise StaleBatchError(txid, stored.txid, tuple(key))

    def _create_tables(self, db: sqlite3.Connection) -> None:
        db.execute(_HEADS)
        self._refuse_foreign(db)
        db.execute(self._sql.create)
        if self._head_row(db) is None:
            self._store_head(db, None)

    def _refuse_foreign(self, db: sqlite3.Connection) -> None:
        if self._has_table(db) and self._head_row(db) is None:
            raise ForeignStoreError(
                f"{self._name} exists, but waterspout did not make it. Use another table."
            )

    def _stored_head(self, db: sqlite3.Connection) -> Head | None:
        row = self._head_row(db)
        if row is None:
            return None
        form, kind, layout, text, check = row
        if form > _FORMAT:
            raise NewerFormatError(
                f"{self._name} was written by a newer waterspout (format {form}, this one knows "
                f"{_FORMAT}). Upgrade waterspout, or use another table."
            )
        if check != checksum(f"{kind}|{layout}|{text}"):
            raise DamagedStoreError(f"the head of {self._name} does not match its checksum")
        if (kind, layout) != (self._kind.value, self._layout.describe()):
            raise ForeignStoreError(
                f"{self._name} is a {kind} state of {layout}; this topology wants a "
                f"{self._kind.value} state of {self._layout.describe()}. Use another table."
            )
        return Head.from_text(text) if text else None

    def _store_head(self, db: sqlite3.Connection, head: Head | None) -> None:
        kind, layout = self._kind.value, self._layout.describe()
        text = "" if head is None else head.to_text()
        check = checksum(f"{kind}|{layout}|{text}")
        db.execute(
            "INSERT OR REPLACE INTO _waterspout_heads VALUES (?, ?, ?, ?, ?, ?)",
            (self._table, _FORMAT, kind, layout, text, check),
        )

    def _head_row(self, db: sqlite3.Connection) -> tuple[Any, ...] | None:
        if not _exists(db, "_waterspout_heads"):
            return None
        row: tuple[Any, ...] | None = db.execute(
            "SELECT format, kind, layout, head, checksum FROM _waterspout_heads WHERE name = ?",
            (self._table,),
        ).fetchone()
        return row

    def _has_table(self, db: sqlite3.Connection) -> bool:
        return _exists(db, self._table)

    def _has_own_table(self, db: sqlite3.Connection) -> bool:
        """Tell whether the table is there; raise if it is not this state's."""
        self._refuse_foreign(db)
        self._stored_head(db)
        return self._has_table(db)

    # --- the connection --------------------------------------------------------------------

    def _write(self, write: Callable[[sqlite3.Connection], None]) -> None:
        with self._lock, self._errors():
            db = self._connect(create=True)
            assert db is not None
            with self._transaction(db, "IMMEDIATE"):
                write(db)

    def _connect(self, *, create: bool) -> sqlite3.Connection | None:
        if self._db is None:
            if not create and not self._path.exists():
                return None
            self._db = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        if create and not self._may_write:
            # Not for a reader: it would change a file that may be somebody else's.
            _switch_to_wal(self._db)
            # The rows must be on disk before the batch is marked in another file.
            self._db.execute("PRAGMA synchronous=FULL")
            self._may_write = True
        return self._db

    @contextmanager
    def _transaction(self, db: sqlite3.Connection, mode: str) -> Iterator[None]:
        db.execute(f"BEGIN {mode}")
        try:
            yield
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"{self._name} cannot be used: {error}") from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise SerdeError(f"{self._name} cannot hold this: {error}") from error


@dataclass(frozen=True)
class SQLiteState(StateFactory):
    """Recipe of a state in a table of an SQLite file.

    `driver_only=False` lets tasks write too; that is right only where every task runs on the
    machine that has the file.
    """

    path: str
    table: str
    kind: StateKind = StateKind.OPAQUE
    driver_only: bool = True
    keys: Schema | None = None
    values: Schema = _ANY_VALUE

    def __post_init__(self) -> None:
        if not _TABLE.fullmatch(self.table) or self.table.lower().startswith(
            ("sqlite_", "_waterspout")
        ):
            raise TopologyError(
                f"{self.table!r} cannot be a table name; use letters, digits and _ (at most 63)"
            )
        if sqlite3.sqlite_version_info < (3, 37):
            raise StoreError(f"SQLite 3.37 or newer is needed, this is {sqlite3.sqlite_version}")

    @classmethod
    def opaque(cls, path: str | Path, table: str, *, driver_only: bool = True) -> SQLiteState:
        """Keep each value with the one before it: exact for every replayable spout."""
        return cls(str(path), table, StateKind.OPAQUE, driver_only)

    @classmethod
    def transactional(
        cls, path: str | Path, table: str, *, driver_only: bool = True
    ) -> SQLiteState:
        """Keep each value with its batch: exact for transactional spouts."""
        return cls(str(path), table, StateKind.TRANSACTIONAL, driver_only)

    @classmethod
    def non_transactional(
        cls, path: str | Path, table: str, *, driver_only: bool = True
    ) -> SQLiteState:
        """Keep the value alone: replays count twice."""
        return cls(str(path), table, StateKind.NON_TRANSACTIONAL, driver_only)

    def bind(self, keys: Schema, values: Schema) -> SQLiteState:
        """Return the state with one column per key and value field."""
        Layout(keys, values)
        return replace(self, keys=keys, values=values)

    def backing(self) -> SQLiteMap:
        """Return the map behind the state."""
        path = Path(self.path).expanduser().absolute()
        return SQLiteMap(path, self.table, self.kind, Layout(self.keys, self.values))

    def make_state(
        self, conf: Config, partition_index: int, num_partitions: int
    ) -> BatchedMap[Any, Any]:
        """Return the map of this kind over the table."""
        name = f"table {self.table!r} in {self.path}"
        return make_map(self.kind, self.backing(), name=name, partition=partition_index)

    def identity(self) -> Mapping[str, Any]:
        """Name backend, kind, table and columns; the file may be moved."""
        layout = Layout(self.keys, self.values)
        return {
            "backend": "sqlite",
            "kind": self.kind.value,
            "table": self.table,
            "layout": layout.describe(),
        }

    def check(self) -> None:
        """See that the folder is there and can be written, and that the table is ours."""
        path = Path(self.path).expanduser().absolute()
        if not path.parent.is_dir():
            raise StoreError(
                f"the folder {path.parent} of SQLite state {self.table!r} is not there; create it"
            )
        _refuse_read_only(path)
        backing = self.backing()
        try:
            backing.check()
        finally:
            backing.close()

    def location(self) -> str:
        """Name the file and the table."""
        return f"sqlite:{Path(self.path).expanduser().absolute()}#{self.table.lower()}"


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


def _replaces_attempt(expected: Head | None, new: Head) -> bool:
    return (
        expected is not None
        and not new.committed
        and expected.stamp.txid == new.stamp.txid
        and expected.stamp.attempt != new.stamp.attempt
    )


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
