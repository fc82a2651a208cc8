"""The records of a state in one table of an SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._own_files import transaction
from waterspout.state._base import Key, Keys, RecordColumns, Records, StateKind, Unclear
from waterspout.state._columns import Layout
from waterspout.state._head import Head, check_stamp, goes_on, replaces_attempt
from waterspout.state._ordering import order_of
from waterspout.state._sql import HEADS, TableMap, Upsert
from waterspout.state._sql_statements import INTEGERS, TableStatements, quoted
from waterspout.state.sqlite._file import STORE_HEAD, SQLiteTable

__all__ = ["SQLiteMap", "SQLiteStatements"]

T = TypeVar("T")

_CHUNK = 10_000
_EXACT = 2**53
_READS_JSON = sqlite3.sqlite_version_info >= (3, 38)  # before, it was a matter of how it was built
_ESCAPED = r'["\\\x00-\x1f]'
"""What does not stand in JSON as it is."""
_ROWS = 16_000
"""How many rows a statement writes: a copy of each page that it changes is kept until its end."""

_Columns = Sequence[Sequence[Any]]

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
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
        # The same for one column of keys, which stand in a list.
        listed = (
            f"FROM json_each(?) w CROSS JOIN {self._table} t "
            f"ON t.{self._keys[0]} = w.value AND t._nulls = ''"
        )
        self.select_listed = f"SELECT w.key, {found} {listed}"
        # And each column of what is found in one text.
        joined = [f"group_concat(ifnull(t.{name}, 'null'))" for name in self._values]
        unclear = "_txid >= ? OR _txid IN (SELECT value FROM json_each(?))"
        if kind is StateKind.NON_TRANSACTIONAL:
            unclear = "? IS NULL OR ? IS NULL"  # which is never true
        self.select_joined = (
            f"SELECT max({unclear}), count(*), group_concat(w.key), {', '.join(joined)} {listed}"
        )
        self.find_removal = f"SELECT 1 FROM {HEADS} WHERE name = ?"
        self.holds_integers = set(self.record_types) == {self.integer}

    def combine_listed(self, merges: Sequence[str | None], txid: int, attempt: int) -> str:
        """Combine the values of a JSON object into the rows of its names; bound: the object."""
        return self.combine(merges, txid, attempt, _listed_rows)

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


def _listed_rows(types: Sequence[str], *constants: str) -> str:
    columns = ", ".join(["key", "''", "value", *constants])
    return f"SELECT {columns} FROM json_each(?) WHERE true"  # without WHERE the ON is a join's


class SQLiteMap(SQLiteTable, TableMap):
    """The records of one state in one table; writes check the head in their transaction."""

    def __init__(self, path: Path, table: str, kind: StateKind, layout: Layout) -> None:
        self._sql = SQLiteStatements(table, kind, layout)
        TableMap.__init__(self, f"table {table!r} in {path}", table, kind, layout, self._sql)
        SQLiteTable.__init__(self, path)

    def multi_get(self, keys: Keys) -> list[Any | None]:
        def found(table: SQLiteMap, db: sqlite3.Connection, columns: _Columns) -> list[Any | None]:
            return table._records(keys, table._select(db, columns))

        return self._read(keys, found, lambda: [None] * len(keys))

    def get_columns(self, keys: Keys, names: Sequence[str], unclear: Unclear) -> RecordColumns:
        def found(table: SQLiteMap, db: sqlite3.Connection, columns: _Columns) -> RecordColumns:
            values = table._select_values(db, columns, unclear)
            return values or table._as_columns(keys, table._select(db, columns))

        return self._read(keys, found, lambda: self._as_columns(keys, []))

    def _read(
        self,
        keys: Keys,
        found: Callable[[SQLiteMap, sqlite3.Connection, _Columns], T],
        nothing: Callable[[], T],
    ) -> T:
        """Return what is found under the key columns of these keys, in one transaction."""
        columns = self._layout.key_columns(keys)
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is None or not self._has_own_table(db):
                return nothing()
            older = self._older(db)
            if older is not None:
                with closing(older):
                    return older._read(keys, found, nothing)
            with transaction(db, "DEFERRED"):
                return found(self, db, columns)

    def multi_compare_and_put(self, keys: Keys, read: Records, values: Records) -> list[bool]:
        columns, expected = self._layout.key_columns(keys), self._comparable(read)
        same: list[bool] = []

        def write(db: sqlite3.Connection) -> None:
            self._stored_head(db)
            self._create_tables(db)
            now = self._comparable(self._records(keys, self._select(db, columns)))
            same[:] = [a == b for a, b in zip(now, expected, strict=True)]
            chosen = [i for i, ok in enumerate(same) if ok]
            rows = self._puts(None, [keys[i] for i in chosen], [values[i] for i in chosen])
            self._execute(db, rows)

        self._write(write)
        return same

    def move_head(self, expected: Head | None, new: Head) -> None:
        def write(db: sqlite3.Connection) -> None:
            if self._stored_head(db) != expected:
                raise self._header.moved(new)
            self._create_tables(db)
            if replaces_attempt(expected, new) and self.undoes_lost_attempts:
                for statement in self._sql.undo(new.stamp.txid):
                    db.execute(statement)
            removal = self._removal_row[:1]
            # Asked first: SQLite walks over all rows even where the condition that is the same for
            # each of them does not hold.
            if goes_on(expected, new) and db.execute(self._sql.find_removal, removal).fetchone():
                for statement in self._sql.sweep(new.stamp.txid, HEADS):
                    db.execute(statement, removal)
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
        try:
            done = self._upsert_all(db, rows)
        except sqlite3.IntegrityError:
            # A sum beyond 64 bits is a REAL to SQLite, which its column does not take.
            if rows.merges is not None:
                self._refuse_too_large(rows, self._stored(db, rows))
            raise
        if done != len(rows.keys):
            self._refuse_newer(rows, self._stored(db, rows))
        if rows.removes:
            db.execute(STORE_HEAD, self._removal_row)

    def _upsert_all(self, db: sqlite3.Connection, rows: Upsert) -> int:
        """Write all rows; return how many were written."""
        words = self._listed(rows.key_columns)
        numbers = rows.columns[0]
        if rows.merges is None or words is None or len(rows.columns) > 1 or not _are_exact(numbers):
            values = zip(*rows.key_columns, *rows.columns, strict=True)
            return db.executemany(self._statement(rows), values).rowcount
        assert rows.stamp is not None
        statement = self._sql.combine_listed(rows.merges, rows.stamp.txid, rows.stamp.attempt)
        # Many rows a statement: to bind row by row takes longer than to read JSON.
        return sum(db.execute(statement, (some,)).rowcount for some in _as_objects(words, numbers))

    def _select(self, db: sqlite3.Connection, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the rows of some keys: the position of each, and its record columns."""
        words = self._listed(columns)
        if words is not None:
            return db.execute(self._sql.select_listed, (_to_json(words),)).fetchall()
        db.execute(self._sql.create_wanted)
        db.execute(self._sql.clear_wanted)
        db.executemany(self._sql.insert_wanted, zip(count(), *columns, strict=False))
        return db.execute(self._sql.select_wanted).fetchall()

    def _select_values(
        self, db: sqlite3.Connection, columns: _Columns, unclear: Unclear
    ) -> RecordColumns | None:
        """Return the values alone, where they say all and the database can join them to texts.

        To make an object of every row and value takes longer than to look for it.
        """
        words = self._listed(columns)
        if words is None or not words or not self._sql.holds_integers:
            return None
        texts = pa.array(words, pa.string())
        order = order_of(texts)
        bound = (unclear.first, _to_json(list(unclear.others)), _as_list(texts.take(order)))
        ((judge, count, at, *found),) = db.execute(self._sql.select_joined, bound).fetchall()
        if judge:
            return None
        if count != len(words):  # else they are all there, in the order that was asked for
            order = order.take(pa.array(_numbers(at), pa.int64()))
        return self._only_values(len(words), order.to_pylist(), [_numbers(text) for text in found])

    def _listed(self, columns: Sequence[Sequence[Any]]) -> Sequence[str] | None:
        """Return the keys if they are texts of one column that SQLite reads back out of JSON."""
        if len(columns) != 2 or self._layout.key_codecs[0].storage != "TEXT" or not _READS_JSON:
            return None
        words, marks = columns
        # To its JSON a text ends at a NUL.
        return None if any(marks) or "\0" in "".join(words) else words

    def _stored(self, db: sqlite3.Connection, rows: Upsert) -> list[Any | None]:
        return self._records(rows.keys, self._select(db, rows.key_columns))

    def _older(self, db: sqlite3.Connection) -> SQLiteMap | None:
        """Return the map of the table as it is, if columns were added that it has not got yet."""
        added = self._added(self._read_head_row(db))
        if not added:
            return None
        return SQLiteMap(self._path, self._table, self._kind, self._narrow(added))

    def _create_statement(self) -> str:
        return self._sql.create

    def _add_statements(self, row: Sequence[Any]) -> Sequence[str]:
        added = self._added(row)
        return self._sql.add(added) if added else ()


def _as_objects(words: Sequence[str], numbers: Sequence[int]) -> Iterator[str]:
    r"""Yield the JSON of objects, in the order of the table.

    So that the rows of a page come together, however many pages there are.

    >>> list(_as_objects(["b", "a"], [1, -2])), list(_as_objects(['"', "a"], [1, 2]))
    (['{"a":-2,"b":1}'], ['{"\\"":1,"a":2}'])
    """
    texts, values = pa.array(words, pa.string()), pa.array(numbers, pa.int64())
    order = order_of(texts)
    for start in range(0, len(order), _ROWS):
        some = order.slice(start, _ROWS)
        names, numerals = _quoted(texts.take(some)), pc.cast(values.take(some), pa.string())
        yield f"{{{_joined(pc.binary_join_element_wise(names, numerals, ':'))}}}"


def _as_list(texts: pa.StringArray) -> str:
    return f"[{_joined(_quoted(texts))}]"


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    """Return texts as they stand in JSON."""
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return pa.array([_to_json(text) for text in texts.to_pylist()], pa.string())
    return pc.binary_join_element_wise('"', texts, '"', "")


def _joined(texts: pa.StringArray) -> str:
    whole = pa.ListArray.from_arrays([0, len(texts)], texts)
    joined: str = pc.binary_join(whole, ",")[0].as_py()
    return joined


def _numbers(text: str | None) -> list[Any]:
    found: list[Any] = json.loads(f"[{text or ''}]")
    return found


def _are_exact(numbers: Sequence[Any]) -> bool:
    """Whether these are whole numbers that nobody takes for others when they stand in JSON."""
    return set(map(type, numbers)) == {int} and -_EXACT < min(numbers) <= max(numbers) < _EXACT
