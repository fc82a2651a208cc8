"""What states in SQL tables share: the head row, who may use a table, and rows as records."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waterspout._schema import Schema
from waterspout.errors import (
    DamagedStoreError,
    NumberTooLargeError,
    StaleBatchError,
    TopologyError,
)
from waterspout.state._base import (
    Combiner,
    FencedMap,
    Key,
    Keys,
    RecordColumns,
    Records,
    StateKind,
)
from waterspout.state._columns import Layout
from waterspout.state._head import Head, Stamp
from waterspout.state._header import ROW, StoreHeader
from waterspout.state._sql_statements import REPLACE, TableStatements

__all__ = [
    "HEADS",
    "HEAD_COLUMNS",
    "TableMap",
    "Upsert",
    "check_name",
    "placed",
]

HEADS = "_waterspout_heads"
HEAD_COLUMNS = ", ".join(ROW)
_REMOVED = ":removed"  # no table has such a name
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def check_name(name: str, what: str, *, reserved: tuple[str, ...]) -> None:
    """Refuse a name of a table that would need care wherever it is written."""
    if not _NAME.fullmatch(name) or name.lower().startswith(reserved):
        raise TopologyError(
            f"{name!r} cannot be a {what} name; use letters, digits and _ (at most 63)"
        )


@dataclass(frozen=True, slots=True)
class Upsert:
    """What one call writes: columns of keys and of records, or of partial results to combine.

    `txids` has the batch of each record, for the refusal of one that is behind its row.
    `removes` if a batch leaves a record without a value: its row goes with the claim of a later
    batch. One that was removed outside of any batch stays, as a witness in the head may name it.
    """

    stamp: Stamp | None
    keys: Keys
    key_columns: list[Sequence[Any]]
    columns: list[Sequence[Any]]
    txids: Sequence[int] | None
    merges: tuple[str | None, ...] | None = None
    removes: bool = False

    @property
    def adds(self) -> bool:
        """Whether it matters to a value that has no batch beside it if this is done twice."""
        return self.merges is not None and set(self.merges) != {REPLACE}


class TableMap(FencedMap[Any]):
    """The records of one state in one table; a backend adds connections and transactions."""

    def __init__(
        self, name: str, table: str, kind: StateKind, layout: Layout, statements: TableStatements
    ) -> None:
        self._name = name
        self._table = table
        self._kind = kind
        self._layout = layout
        self._statements = statements
        self._header = StoreHeader(name, "table", kind.value, layout.describe(), by_column=True)

    @abstractmethod
    def _upsert(self, rows: Upsert) -> None:
        """Write all rows in one transaction that has found the head as it must be.

        Without a stamp any head will do, and a table that is not there is created.
        """

    @property
    def undoes_lost_attempts(self) -> bool:
        """True unless the rows have no `prev` to go back to."""
        return self._kind is StateKind.OPAQUE

    def multi_put(self, keys: Keys, values: Records) -> None:
        self._upsert(self._puts(None, keys, values))

    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Records, read: Records | None = None
    ) -> None:
        self._upsert(self._puts(stamp, keys, values))

    by_column = True

    def fenced_put_columns(
        self,
        stamp: Stamp,
        keys: Keys,
        names: Sequence[str],
        values: Sequence[Any],
        prevs: Sequence[Any],
        *,
        as_stored: bool,
    ) -> None:
        columns = self._layout.value_columns(values)
        merges: tuple[str, ...] | None = (REPLACE,) * len(columns)
        stamped = self._kind is not StateKind.NON_TRANSACTIONAL
        txids = [stamp.txid] * len(keys) if stamped else None
        if not as_stored:
            merges = None
            columns += [txids, [stamp.attempt] * len(keys)] if txids is not None else []
            columns += self._layout.value_columns(prevs) if self._kind is StateKind.OPAQUE else []
        key_columns, removes = self._layout.key_columns(keys), None in values
        self._upsert(Upsert(stamp, keys, key_columns, columns, txids, merges, removes))

    def _records(self, keys: Keys, rows: Sequence[Sequence[Any]]) -> list[Any | None]:
        """Return rows of positions (from 0) and record columns as the records of all keys."""
        found: list[Any | None] = [None] * len(keys)
        for i, *record in rows:
            found[i] = self._record(keys[i], record)
        return found

    def _as_columns(self, keys: Keys, rows: Sequence[Sequence[Any]]) -> RecordColumns:
        """Return the same by column."""
        # Not by zip(*rows), to which every row is an argument.
        width = len(rows[0]) if rows else 0
        return self._from_columns(keys, [[row[i] for row in rows] for i in range(width)])

    def _from_columns(self, keys: Keys, columns: Sequence[Sequence[Any]]) -> RecordColumns:
        """Return columns of positions and of what records hold as those of all keys, in order."""
        if not keys:
            return RecordColumns(())
        n, stamped = len(self._layout.value_names), self._kind is not StateKind.NON_TRANSACTIONAL
        prevs = [None] * n if self._kind is StateKind.OPAQUE else []
        blank = [*[None] * n, *([0, 0] if stamped else []), *prevs]
        at, *found = columns or [(), *[()] * len(blank)]
        whole = found
        if list(at) != list(range(len(keys))):
            whole = [placed(at, c, len(keys), b) for c, b in zip(found, blank, strict=True)]
        try:
            values = self._layout.decode_columns(whole[:n])
            if not stamped:
                return RecordColumns(values)
            before = self._layout.decode_columns(whole[n + 2 :]) if prevs else ()
            txids, attempts = whole[n : n + 2]
            return RecordColumns(values, txids, attempts, before)
        except (ValueError, ArithmeticError):
            for i, *record in zip(at, *found, strict=True):
                self._record(keys[i], record)  # which names the key that cannot be read
            raise

    def _only_values(
        self, count: int, at: Sequence[int], columns: Sequence[Sequence[Any]]
    ) -> RecordColumns | None:
        """Return the values of so many keys, given those of some, and where; None: if damaged."""
        try:
            values = self._layout.decode_columns(columns)
        except (ValueError, ArithmeticError):
            return None
        return RecordColumns(placed(at, values, count, None))

    def can_combine(self, combiner: Combiner) -> bool:
        return self._statements.can_combine(combiner.merges)

    def fenced_combine(self, stamp: Stamp, keys: Keys, values: Records, combiner: Combiner) -> None:
        txids = None if self._kind is StateKind.NON_TRANSACTIONAL else [stamp.txid] * len(keys)
        key_columns = self._layout.key_columns(keys)
        columns = self._layout.value_columns(values)
        self._upsert(Upsert(stamp, keys, key_columns, columns, txids, combiner.merges))

    def _puts(self, stamp: Stamp | None, keys: Keys, records: Sequence[Any]) -> Upsert:
        rows = [self._statements.columns(record) for record in records]
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        plain = self._kind is StateKind.NON_TRANSACTIONAL
        txids = None if plain else [record.txid for record in records]
        empty = None in records if plain else any(record.value is None for record in records)
        removes = stamp is not None and empty
        key_columns = self._layout.key_columns(keys)
        return Upsert(stamp, keys, key_columns, columns, txids, removes=removes)

    def _statement(self, rows: Upsert) -> str:
        if rows.merges is None:
            return self._statements.put
        assert rows.stamp is not None
        return self._statements.combine(rows.merges, rows.stamp.txid, rows.stamp.attempt)

    def _comparable(self, records: Sequence[Any | None]) -> list[Any]:
        # As columns, where even a NaN is equal to itself.
        return [None if record is None else self._statements.columns(record) for record in records]

    def _key(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        try:
            return self._layout.decode_key(columns)
        except (ValueError, ArithmeticError) as error:
            raise DamagedStoreError(
                f"{self._name} holds a row whose key {tuple(columns)!r} cannot be read: {error}"
            ) from error

    def _record(self, key: Key, columns: Sequence[Any]) -> Any:
        try:
            return self._statements.record(columns)
        except (ValueError, ArithmeticError) as error:
            raise DamagedStoreError(
                f"{self._name} holds a row that cannot be read, under key {tuple(key)!r}: {error}"
            ) from error

    def _pairs(self, rows: Sequence[Sequence[Any]]) -> list[tuple[Key, Any]]:
        """Return the rows of `select_all` as keys and records."""
        width = self._layout.key_width
        keys = [self._key(row[:width]) for row in rows]
        return [(key, self._record(key, row[width:])) for key, row in zip(keys, rows, strict=True)]

    def _refuse_newer(self, rows: Upsert, stored: Sequence[Any | None]) -> None:
        """Raise if one of the rows that were there is of a later batch."""
        assert rows.txids is not None
        for key, txid, record in zip(rows.keys, rows.txids, stored, strict=True):
            if record is not None and record.txid > txid:
                raise StaleBatchError(txid, record.txid, tuple(key))

    def _refuse_too_large(self, rows: Upsert, stored: Sequence[Any | None]) -> None:
        """Raise, naming the key, if a sum of a partial result and what was there is too large.

        For a database that has refused to store it, in words of its own.
        """
        assert rows.merges is not None
        assert rows.stamp is not None
        wide = len(rows.merges) > 1
        for key, record, *partials in zip(rows.keys, stored, *rows.columns, strict=True):
            start = self._statements.start_of(record, rows.stamp.txid)
            starts = [None] * len(partials) if start is None else start if wide else [start]
            for i, (merge, old, new) in enumerate(zip(rows.merges, starts, partials, strict=True)):
                if merge == "sum" and type(old) is int and type(new) is int:
                    name, codec = self._layout.value_names[i], self._layout.value_codecs[i]
                    try:
                        codec.to_sql(old + new, name)
                    except NumberTooLargeError as error:
                        text = f"{self._name}, key {tuple(key)!r}: {error}"
                        raise NumberTooLargeError(text) from None

    @property
    def _removal_row(self) -> tuple[Any, ...]:
        """Return a row of the table of heads which says that there are rows to be swept.

        To look for them all the table has to be read: without such a row nobody does.
        """
        return (f"{self._table}{_REMOVED}", *self._header.row(None))

    def _added(self, row: Sequence[Any] | None) -> tuple[str, ...]:
        """Return the value columns that were added since the table with this head row was made."""
        count = 0 if row is None else self._header.added_to(row[ROW.index("layout")])
        return self._layout.value_names[-count:] if count else ()

    def _narrow(self, added: Sequence[str]) -> Layout:
        """Return the layout of the table before these columns were added."""
        layout = self._layout
        return type(layout)(layout.keys, Schema(layout.values.fields[: -len(added)]))

    def _head_row(self, head: Head | None) -> tuple[Any, ...]:
        """Return the name of the table and then the columns of its head row."""
        return (self._table, *self._header.row(head))


def placed(at: Sequence[int], column: Sequence[Any], count: int, blank: Any) -> list[Any]:
    """Return a column of so many rows, of which some are given, in any order."""
    found = [blank] * count
    for i, value in zip(at, column, strict=True):
        found[i] = value
    return found
