"""The SQL of one SQLite state. Names are checked and quoted; values are always bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waterspout.state.base import StateKind
from waterspout.state.columns import Layout
from waterspout.state.opaque import OpaqueValue
from waterspout.state.transactional import TransactionalValue

__all__ = ["Statements"]

# Of a name that no state can have: an unqualified name means the temporary table first.
WANTED = "_waterspout_wanted"
_INTEGERS = ("bigint", "int", "smallint", "tinyint")
_MERGEABLE = {
    "sum": (*_INTEGERS, "double", "float"),
    # SQLite orders NaN and text its own way; min and max stay with types without surprises.
    "min": (*_INTEGERS, "date"),
    "max": (*_INTEGERS, "date"),
}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Statements:
    """Statements over one table, by kind of state."""

    def __init__(self, table: str, kind: StateKind, layout: Layout) -> None:
        self._kind = kind
        self._layout = layout
        self._table = _quote(table)
        self._keys = [_quote(name) for name in layout.key_names] + ["_nulls"]
        self._values = [_quote(name) for name in layout.value_names]
        self._prevs = [_quote(f"_prev_{name}") for name in layout.value_names]
        self._record_columns = list(self._values)
        if kind is not StateKind.NON_TRANSACTIONAL:
            self._record_columns += ["_txid", "_attempt"]
        if kind is StateKind.OPAQUE:
            self._record_columns += self._prevs

    # --- records and columns -----------------------------------------------------------------

    def columns(self, record: Any) -> tuple[Any, ...]:
        """Return a record as the columns after the key."""
        encode = self._layout.encode_values
        if self._kind is StateKind.NON_TRANSACTIONAL:
            return encode(record)
        stamp = (record.txid, record.attempt)
        if self._kind is StateKind.TRANSACTIONAL:
            return (*encode(record.value), *stamp)
        return (*encode(record.value), *stamp, *encode(record.prev))

    def record(self, columns: Sequence[Any]) -> Any:
        """Return the record that stands in the columns after the key."""
        n = len(self._values)
        decode = self._layout.decode_values
        value = decode(columns[:n])
        if self._kind is StateKind.NON_TRANSACTIONAL:
            return value
        txid, attempt = columns[n : n + 2]
        if self._kind is StateKind.TRANSACTIONAL:
            return TransactionalValue(txid, attempt, value)
        return OpaqueValue(txid, attempt, value, decode(columns[n + 2 :]))

    # --- reading -----------------------------------------------------------------------------

    @property
    def create_wanted(self) -> str:
        """A temporary table of the keys that are looked for."""
        columns = ", ".join(f"k{i}" for i in range(len(self._keys)))
        return f"CREATE TEMP TABLE IF NOT EXISTS {WANTED} (i INTEGER PRIMARY KEY, {columns})"

    @property
    def clear_wanted(self) -> str:
        """Forget the keys of the last search."""
        return f"DELETE FROM temp.{WANTED}"

    @property
    def insert_wanted(self) -> str:
        """One key that is looked for."""
        return f"INSERT INTO temp.{WANTED} VALUES ({_marks(len(self._keys) + 1)})"

    @property
    def select_wanted(self) -> str:
        """The records of the keys that are looked for, with their positions."""
        match = " AND ".join(f"t.{name} = w.k{i}" for i, name in enumerate(self._keys))
        columns = ", ".join(f"t.{name}" for name in self._record_columns)
        # CROSS JOIN keeps the order: walk over the wanted keys, look each up.
        return f"SELECT w.i, {columns} FROM temp.{WANTED} w CROSS JOIN {self._table} t ON {match}"

    @property
    def select_all(self) -> str:
        """All keys and records."""
        return f"SELECT {', '.join(self._keys + self._record_columns)} FROM {self._table}"

    # --- writing -----------------------------------------------------------------------------

    @property
    def create(self) -> str:
        """The table."""
        layout = self._layout
        columns = [
            f"{name} {codec.storage} NOT NULL"
            for name, codec in zip(self._keys[:-1], layout.key_codecs, strict=True)
        ]
        values = [
            f"{name} {codec.storage}"
            for name, codec in zip(self._values, layout.value_codecs, strict=True)
        ]
        columns += [*values, "_nulls TEXT NOT NULL DEFAULT ''"]
        if self._kind is not StateKind.NON_TRANSACTIONAL:
            columns += ["_txid INTEGER NOT NULL", "_attempt INTEGER NOT NULL"]
        if self._kind is StateKind.OPAQUE:
            columns += [
                f"{name} {codec.storage}"
                for name, codec in zip(self._prevs, layout.value_codecs, strict=True)
            ]
        return (
            f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(columns)}, "
            f"PRIMARY KEY ({', '.join(self._keys)})) STRICT, WITHOUT ROWID"
        )

    @property
    def put(self) -> str:
        """Store a record unless a later batch has written there."""
        columns = self._keys + self._record_columns
        updates = ", ".join(f"{name} = excluded.{name}" for name in self._record_columns)
        guard = (
            "" if self._kind is StateKind.NON_TRANSACTIONAL else " WHERE _txid <= excluded._txid"
        )
        return (
            f"INSERT INTO {self._table} ({', '.join(columns)}) VALUES ({_marks(len(columns))}) "
            f"ON CONFLICT ({', '.join(self._keys)}) DO UPDATE SET {updates}{guard}"
        )

    def can_combine(self, merge: str | None) -> bool:
        """Whether `combine` can express this for the one value column."""
        kinds = self._layout.values.types
        return len(kinds) == 1 and kinds[0] in _MERGEABLE.get(merge or "", ())

    def combine(self, merge: str, txid: int, attempt: int) -> str:
        """Combine a partial result into a key's row; parameters: the key, the partial."""
        keys, (value,), (prev,) = ", ".join(self._keys), self._values, self._prevs
        marks = _marks(len(self._keys) + 1)
        insert = f"INSERT INTO {self._table} ({keys}, {value}"
        conflict = f"ON CONFLICT ({keys}) DO UPDATE SET"
        if self._kind is StateKind.NON_TRANSACTIONAL:
            merged = self._merged(merge, value, value)
            return f"{insert}) VALUES ({marks}) {conflict} {value} = {merged}"
        stamp = f"_txid = {txid:d}, _attempt = {attempt:d}"
        insert = f"{insert}, _txid, _attempt) VALUES ({marks}, {txid:d}, {attempt:d})"
        if self._kind is StateKind.TRANSACTIONAL:
            merged = self._merged(merge, value, value)
            return f"{insert} {conflict} {value} = {merged}, {stamp} WHERE _txid < {txid:d}"
        start = f"CASE WHEN _txid = {txid:d} THEN {prev} ELSE {value} END"
        merged = self._merged(merge, start, value)
        return (
            f"{insert} {conflict} {prev} = {start}, {value} = {merged}, {stamp} "
            f"WHERE _txid <= {txid:d}"
        )

    def undo(self, txid: int) -> list[str]:
        """Take back every row of a lost attempt at `txid`."""
        back = [f"{v} = {p}" for v, p in zip(self._values, self._prevs, strict=True)]
        gone = [f"{p} = NULL" for p in self._prevs]
        empty = " AND ".join(f"{v} IS NULL" for v in self._values)
        return [
            f"UPDATE {self._table} SET {', '.join(back + gone)}, _txid = 0, _attempt = 0 "
            f"WHERE _txid = {txid:d}",
            f"DELETE FROM {self._table} WHERE _txid = 0 AND {empty}",
        ]

    def _merged(self, merge: str, start: str, value: str) -> str:
        new = f"excluded.{value}"
        if merge == "sum" and self._layout.values.types[0] in ("double", "float"):
            # NaN is stored as text, and SQLite makes inf - inf a NULL.
            both = (
                f"CASE WHEN typeof({start}) = 'text' OR typeof({new}) = 'text' THEN 'NaN' "
                f"ELSE coalesce(({start}) + {new}, 'NaN') END"
            )
        elif merge == "sum":
            both = f"({start}) + {new}"
        else:
            both = f"{merge}(({start}), {new})"
        return f"CASE WHEN ({start}) IS NULL THEN {new} ELSE {both} END"


def _marks(n: int) -> str:
    return ", ".join("?" * n)
