"""The texts of many records as columns of Python values, and columns as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from waterspout._serde import encode_value
from waterspout.state._base import RecordColumns, StateKind, Unclear
from waterspout.state._records import RecordTexts
from waterspout.state.redis._combining import number_columns

__all__ = ["ColumnTexts"]

_NUMBERS = frozenset({int, type(None)})


class ColumnTexts(RecordTexts):
    """The texts of one state, by column where they hold nothing but whole numbers."""

    def decode_all(self, names: Sequence[str], found: Sequence[bytes | None]) -> list[Any | None]:
        """Return the records of keys; None where there is no text."""
        return [
            None if text is None else self.decode(name, text)
            for name, text in zip(names, found, strict=True)
        ]

    def columns(
        self, names: Sequence[str], found: Sequence[bytes | None], unclear: Unclear
    ) -> RecordColumns:
        """Return the same by column; only the values, if no record is of an unclear batch."""
        try:
            numbers = number_columns(self.kind, found) if found else None
        except pa.ArrowInvalid:
            numbers = None
        if numbers is not None and len(numbers) > 1 and not unclear.has(_listed(numbers[0])):
            return RecordColumns(_listed(numbers[2]))
        if numbers is not None:
            columns: list[Sequence[Any]] = [_listed(column) for column in numbers]
        else:
            columns = self._one_by_one(names, found)
        if len(columns) == 1:
            return RecordColumns(columns[0])
        txids, attempts, values, *prevs = columns
        return RecordColumns(values, txids, attempts, *prevs)

    def _one_by_one(
        self, names: Sequence[str], found: Sequence[bytes | None]
    ) -> list[Sequence[Any]]:
        records = self.decode_all(names, found)
        if self.kind is StateKind.NON_TRANSACTIONAL:
            return [records]
        columns: list[Sequence[Any]] = [
            [0 if record is None else record.txid for record in records],
            [0 if record is None else record.attempt for record in records],
            [None if record is None else record.value for record in records],
        ]
        if self.kind is StateKind.OPAQUE:
            columns.append([None if record is None else record.prev for record in records])
        return columns

    def of_columns(
        self, txid: int, attempt: int, values: Sequence[Any], prevs: Sequence[Any]
    ) -> list[str]:
        """Return the texts of the records of one attempt."""
        first = "[" if self.kind is StateKind.NON_TRANSACTIONAL else f"[{txid},{attempt},"
        plain = set(map(type, values)) == {int}
        if self.kind is not StateKind.OPAQUE:
            if plain:
                return [f"{first}{value}]" for value in values]
            stamp = [] if self.kind is StateKind.NON_TRANSACTIONAL else [txid, attempt]
            return [encode_value([*stamp, value]) for value in values]
        pairs = zip(values, prevs, strict=True)
        if plain and _NUMBERS.issuperset(map(type, prevs)):
            if None not in prevs:
                return [f"{first}{value},{prev}]" for value, prev in pairs]
            return [f"{first}{value},{'null' if p is None else p}]" for value, p in pairs]
        return [encode_value([txid, attempt, value, prev]) for value, prev in pairs]


def _listed(column: pa.Array) -> list[Any]:
    # By way of numpy, which makes numbers of Python much quicker.
    found: list[Any] = column.to_pylist() if column.null_count else column.to_numpy().tolist()
    return found
