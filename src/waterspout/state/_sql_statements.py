"""The SQL of one state's table, by kind of state. Names are quoted; values are always bound.

The rule of each kind is one upsert: `put` stores records that were computed outside, `combine`
computes them in the store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from waterspout.state._base import StateKind
from waterspout.state._columns import Layout
from waterspout.state._kinds import OpaqueValue, TransactionalValue

__all__ = ["INTEGERS", "REPLACE", "TableStatements", "quoted"]

REPLACE = "replace"
"""The merge that only keeps what is there as the value from before the batch."""

INTEGERS = ("bigint", "int", "smallint", "tinyint")


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


class TableStatements(ABC):
    """Statements over one table. In upserts, `t` is the row that is there.

    A database says with a subclass what differs in statements that are otherwise the same.
    """

    integer: ClassVar[str]
    text: ClassVar[str]
    table_options: ClassVar[str]
    parameter: ClassVar[str] = "?"
    key_options: ClassVar[Mapping[str, str]] = {}
    """What follows the type of a key column, for each type that needs something."""

    mergeable: ClassVar[Mapping[str, tuple[str, ...]]]
    """For each merge the Spark types for which the database computes what Python does."""

    def __init__(self, table: str, kind: StateKind, layout: Layout) -> None:
        self._table = table
        self._kind = kind
        self._layout = layout
        self._keys = [quoted(name) for name in (*layout.key_names, "_nulls")]
        self._key_columns = self._keys + [quoted(name) for name, _ in layout.beside_key]
        self._values = [quoted(name) for name in layout.value_names]
        self._prevs = [quoted(f"_prev_{name}") for name in layout.value_names]
        self._record_columns = list(self._values)
        if kind is not StateKind.NON_TRANSACTIONAL:
            self._record_columns += [quoted("_txid"), quoted("_attempt")]
        if kind is StateKind.OPAQUE:
            self._record_columns += self._prevs
        self._brief_columns = self._record_columns[: len(self._values) + 1]
        """The values, and the batch that they are of where that is known."""
        types = {quoted(name): kind for name, kind, _ in self.definition}
        self._key_types = [types[name] for name in self._key_columns]
        self.record_types = [types[name] for name in self._record_columns]

    @abstractmethod
    def _rows(self, types: Sequence[str], *constants: str) -> str:
        """Return the source of an INSERT: bound columns of these types, then constants."""

    @abstractmethod
    def _both(self, merge: str, kind: str, start: str, new: str) -> str:
        """Return the merge of two expressions, neither of which is NULL."""

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

    def start_of(self, record: Any | None, txid: int) -> Any:
        """Return the value that a batch combines into: of its own batch's record, that before."""
        if self._kind is StateKind.NON_TRANSACTIONAL or record is None:
            return record
        if self._kind is StateKind.OPAQUE and record.txid == txid:
            return record.prev
        return record.value

    @property
    def definition(self) -> list[tuple[str, str, bool]]:
        """Name, type, and whether it must have a value, of each column in order."""
        layout = self._layout
        keys = zip(layout.key_names, layout.key_codecs, strict=True)
        values = list(zip(layout.value_names, layout.value_codecs, strict=True))
        columns = [(name, codec.storage, True) for name, codec in keys]
        columns += [(name, codec.storage, False) for name, codec in values]
        columns += [("_nulls", self.text, True)]
        columns += [(name, kind, False) for name, kind in layout.beside_key]
        if self._kind is not StateKind.NON_TRANSACTIONAL:
            columns += [("_txid", self.integer, True), ("_attempt", self.integer, True)]
        if self._kind is StateKind.OPAQUE:
            columns += [(f"_prev_{name}", codec.storage, False) for name, codec in values]
        return columns

    @property
    def create(self) -> str:
        """The table."""
        columns, keys = [], (*self._layout.key_names, "_nulls")
        for name, kind, needed in self.definition:
            options = self.key_options.get(kind, "") if name in keys else ""
            options += " NOT NULL" if needed else ""
            options += " DEFAULT ''" if name == "_nulls" else ""
            columns.append(f"{quoted(name)} {kind}{options}")
        return (
            f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(columns)}, "
            f"PRIMARY KEY ({', '.join(self._keys)})) {self.table_options}"
        )

    def add(self, names: Sequence[str]) -> list[str]:
        """Add value columns to a table that was made without them; all its rows have NULL there."""
        wanted = {*names, *(f"_prev_{name}" for name in names)}
        return [
            f"ALTER TABLE {self._table} ADD COLUMN {quoted(name)} {kind}"
            for name, kind, _ in self.definition
            if name in wanted
        ]

    @property
    def select_all(self) -> str:
        """All keys and records."""
        return f"SELECT {', '.join(self._key_columns + self._record_columns)} FROM {self._table}"

    @property
    def put(self) -> str:
        """Store records unless a later batch has written there; bound: keys and records."""
        columns = self._key_columns + self._record_columns
        updates = ", ".join(f"{name} = excluded.{name}" for name in self._record_columns)
        guard = (
            "" if self._kind is StateKind.NON_TRANSACTIONAL else " WHERE t._txid <= excluded._txid"
        )
        rows = self._rows(self._key_types + self.record_types)
        return f"{self._insert(columns)} {rows} {self._conflict} DO UPDATE SET {updates}{guard}"

    def can_combine(self, merges: Sequence[str | None]) -> bool:
        """Whether `combine` can express this: one merge for each value column."""
        kinds, mergeable = self._layout.values.types, self.mergeable
        return len(merges) == len(kinds) and all(
            kind in mergeable.get(merge or "", ())
            for merge, kind in zip(merges, kinds, strict=True)
        )

    def combine(
        self,
        merges: Sequence[str | None],
        txid: int,
        attempt: int,
        rows_of: Callable[..., str] | None = None,
    ) -> str:
        """Combine partial results into the rows of their keys; bound: keys and partials.

        `rows_of` is another source of rows than `_rows`.
        """
        rows_of = rows_of or self._rows
        types = self._key_types + [codec.storage for codec in self._layout.value_codecs]
        columns = self._key_columns + self._values
        current = [f"t.{value}" for value in self._values]
        if self._kind is StateKind.NON_TRANSACTIONAL:
            rows, updates = rows_of(types), self._merged(merges, current)
            return f"{self._insert(columns)} {rows} {self._conflict} DO UPDATE SET {updates}"
        columns += ["_txid", "_attempt"]
        rows = rows_of(types, f"{txid:d}", f"{attempt:d}")
        stamp = f"_txid = {txid:d}, _attempt = {attempt:d}"
        start = f"{self._insert(columns)} {rows} {self._conflict} DO UPDATE SET"
        if self._kind is StateKind.TRANSACTIONAL:
            merged = self._merged(merges, current)
            return f"{start} {merged}, {stamp} WHERE t._txid < {txid:d}"
        before = [
            f"CASE WHEN t._txid = {txid:d} THEN t.{prev} ELSE t.{value} END"
            for prev, value in zip(self._prevs, self._values, strict=True)
        ]
        kept = ", ".join(f"{p} = {b}" for p, b in zip(self._prevs, before, strict=True))
        merged = self._merged(merges, before)
        return f"{start} {kept}, {merged}, {stamp} WHERE t._txid <= {txid:d}"

    def undo(self, txid: int) -> list[str]:
        """Take back every row of a lost attempt at `txid`."""
        back = [f"{v} = {p}" for v, p in zip(self._values, self._prevs, strict=True)]
        gone = [f"{p} = NULL" for p in self._prevs]
        return [
            f"UPDATE {self._table} SET {', '.join(back + gone)}, _txid = 0, _attempt = 0 "
            f"WHERE _txid = {txid:d}",
            f"DELETE FROM {self._table} WHERE _txid = 0 AND {self._empty}",
        ]

    def sweep(self, txid: int, heads: str) -> list[str]:
        """Delete the rows without a value that no attempt at `txid` can want back, if any.

        Bound in each: the name of the row in the table of heads which says that there are some.
        """
        older = "" if self._kind is StateKind.NON_TRANSACTIONAL else f" AND _txid < {txid:d}"
        flagged = f"FROM {heads} WHERE name = {self.parameter}"
        return [
            f"DELETE FROM {self._table} WHERE EXISTS (SELECT 1 {flagged}) AND {self._empty}{older}",
            f"DELETE {flagged}",
        ]

    @property
    def _empty(self) -> str:
        return " AND ".join(f"{v} IS NULL" for v in self._values)

    @property
    def _conflict(self) -> str:
        return f"ON CONFLICT ({', '.join(self._keys)})"

    def _insert(self, columns: Sequence[str]) -> str:
        return f"INSERT INTO {self._table} AS t ({', '.join(columns)})"

    def _merged(self, merges: Sequence[str | None], starts: Sequence[str]) -> str:
        several = len(starts) > 1
        updates = []
        for merge, kind, value, start in zip(
            merges, self._layout.values.types, self._values, starts, strict=True
        ):
            new = f"excluded.{value}"
            if merge == REPLACE:
                updates.append(f"{value} = {new}")
                continue
            assert merge is not None, "asked to combine what it cannot"
            assert kind is not None, "asked to combine what it cannot"
            both = self._both(merge, kind, start, new)
            # Of several columns one may be NULL: then it has nothing to add.
            nothing = f"WHEN {new} IS NULL THEN {start} " if several else ""
            merged = f"CASE {nothing}WHEN ({start}) IS NULL THEN {new} ELSE {both} END"
            updates.append(f"{value} = {merged}")
        return ", ".join(updates)
