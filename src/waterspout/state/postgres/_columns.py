"""How keys and values become columns of PostgreSQL, and whole columns become bound arrays.

What PostgreSQL cannot hold as it is:

- `text` has no NUL and no lone surrogates. A string with one of these is stored as U+0001 and
  its JSON, and so is a string that begins with U+0001: all others stand as they are, and no two
  strings are stored alike.
- A row of an index has less than a third of a page. A key too long for it stands as its digest,
  is marked in `_nulls`, and is written out in the column `_long`, which no index covers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._serde import decode_value, encode_value, normalize_key
from waterspout.errors import TopologyError
from waterspout.state._columns import (
    Codec,
    Codecs,
    Layout,
    integer_codec,
    local_time_to_sql,
    moment_to_sql,
)

__all__ = ["PostgresLayout", "array_of"]

_NAME_MAX = 63
_SYSTEM = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
_ESCAPE = "\x01"
_ODD = re.compile("[\0\ud800-\udfff]")
_ROOM = 2**29  # bytes of texts that Arrow joins to one, which has less than 2**31
_FEW_DIGITS = 16_000  # after the point; beyond 16,383 PostgreSQL rounds

# PostgreSQL takes 2704 bytes at most; the rest is for `_nulls` and for what rows cost.
_INDEX_BYTES = 2400


def _text_to_sql(value: str) -> str:
    if _ODD.search(value) is None and not value.startswith(_ESCAPE):
        return value
    return _ESCAPE + encode_value(value)


def _text_to_python(stored: str) -> str:
    return stored if stored[:1] != _ESCAPE else str(decode_value(stored[1:]))


def _is_plain_text(column: Sequence[str]) -> bool:
    # All strings at once, and so more strictly: U+0001 is fine within a string, yet counts as odd.
    text = "".join(column)
    return _ESCAPE not in text and "\0" not in text and (text.isascii() or not _ODD.search(text))


def _double_to_sql(value: float) -> Any:
    # NaN as text, because then it is equal to itself.
    return "NaN" if value != value else float(value)


def _real_to_sql(value: float) -> Any:
    if value != value:
        return "NaN"
    return struct.unpack("<f", struct.pack("<f", value))[0]  # native order checks no range


def _exact_real_to_sql(value: float) -> float:
    if _real_to_sql(value) != value:
        raise ValueError("a key of type float has at most 24 bits of precision")
    return value


def _has_no_nan(column: Sequence[float]) -> bool:
    return all(value == value for value in column)


def _decimal_to_sql(value: Decimal) -> str:
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and exponent < -_FEW_DIGITS:
        raise ValueError(f"more than {_FEW_DIGITS} digits after the point")
    return str(value)


def _decimal_key_to_sql(value: Decimal) -> str:
    # 1.5 and 1.50 are one key.
    (normal,) = normalize_key((value,))
    assert isinstance(normal, Decimal)
    return _decimal_to_sql(normal)


_TEXT = Codec("text", (str,), "", _text_to_sql, _text_to_python, _is_plain_text)
_SIMPLE = {
    "string": _TEXT,
    "bigint": integer_codec("bigint", 64),
    "int": integer_codec("integer", 32),
    "smallint": integer_codec("smallint", 16),
    "tinyint": integer_codec("smallint", 8),
    "double": Codec("double precision", (float, int), 0.0, _double_to_sql, None, _has_no_nan),
    "float": Codec("real", (float, int), 0.0, _real_to_sql),
    "boolean": Codec("boolean", (bool,), "f", lambda value: "t" if value else "f"),
    "binary": Codec("bytea", (bytes, bytearray), "", lambda value: "\\x" + value.hex(), bytes),
    "date": Codec("date", (date,), "1970-01-01", date.isoformat),
    "timestamp": Codec(
        "timestamp with time zone",
        (datetime,),
        "1970-01-01 00:00:00+00:00",
        moment_to_sql,
        lambda moment: moment.astimezone(UTC),
    ),
    "timestamp_ntz": Codec(
        "timestamp without time zone", (datetime,), "1970-01-01 00:00:00", local_time_to_sql
    ),
}
_DECIMAL = Codec("numeric", (Decimal,), "0", _decimal_to_sql)
_POSTGRES = Codecs(
    "text",
    _SIMPLE,
    {
        # -0.0 is the key 0.0: each value is looked at.
        "double": Codec("double precision", (float,), 0.0, _double_to_sql),
        "float": Codec("real", (float,), 0.0, _exact_real_to_sql),
        "decimal": replace(_DECIMAL, encode=_decimal_key_to_sql),
    },
    _DECIMAL,
)


class PostgresLayout(Layout):
    """The columns of one state's table in PostgreSQL."""

    codecs: ClassVar[Codecs] = _POSTGRES
    reserved: ClassVar[tuple[str, ...]] = (*Layout.reserved, "_long", *_SYSTEM)
    beside_key: ClassVar[tuple[tuple[str, str], ...]] = (("_long", "text"),)

    def __post_init__(self) -> None:
        super().__post_init__()
        room = _NAME_MAX - len("_prev_")
        for name in self.key_names + self.value_names:
            if len(name) > room:
                raise TopologyError(
                    f"field {name!r} cannot be a column of PostgreSQL: {room} characters at most"
                )

    @cached_property
    def _lengthy(self) -> tuple[int, ...]:
        """Which key columns may hold a value of any length."""
        codecs = self.key_codecs
        return tuple(i for i, codec in enumerate(codecs) if codec.storage in ("text", "bytea"))

    @cached_property
    def _room(self) -> int:
        """How many characters a value of such a column may have, of four bytes each."""
        return _INDEX_BYTES // 4 // max(1, len(self._lengthy))

    def key_columns(self, keys: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the key columns, `_nulls`, and `_long`, of many keys."""
        columns = super().key_columns(keys)
        if not keys:
            return [()] * self.key_width
        nowhere: list[str | None] = [None] * len(keys)
        if all(max(map(len, columns[i])) <= self._room for i in self._lengthy):
            return [*columns, nowhere]
        rows = [self._shortened(row) for row in zip(*columns, strict=True)]
        return list(zip(*rows, strict=True))

    def _shortened(self, row: Sequence[Any]) -> tuple[Any, ...]:
        *values, odd = row
        marks = list(odd or "-" * len(values))
        full: list[str] = []
        for i in self._lengthy:
            if len(values[i]) > self._room:
                full.append(values[i])
                digest = blake2b(values[i].encode(), digest_size=32).hexdigest()
                values[i] = f"\\x{digest}" if self.key_codecs[i].storage == "bytea" else digest
                marks[i] = "l"
        if not full:
            return (*row, None)
        return (*values, "".join(marks), encode_value(full))

    def decode_key(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        """Return the key that stands in these columns (`_nulls` and `_long` last)."""
        *stored, marks, long = columns
        if long is None:
            return super().decode_key((*stored, marks))
        full = decode_value(long)
        for i, mark in enumerate(marks):
            if mark == "l":
                text = full.pop(0)
                is_bytes = self.key_codecs[i].storage == "bytea"
                stored[i] = bytes.fromhex(text[2:]) if is_bytes else text
        return super().decode_key((*stored, marks.replace("l", "-")))


def array_of(column: Sequence[Any], order: pa.Array | None = None) -> str:
    r"""Return a column as the text of a PostgreSQL array; a column of NULLs as an empty one.

    `unnest` fills up what is shorter with NULL. Text is quicker here than the client's arrays:
    it is joined, not walked over. `order`: which rows, in which order.

    >>> array_of(["a", 'b"c', None]), array_of([1, 2]), array_of([None])
    ('{"a","b\\"c",NULL}', '{1,2}', '{}')
    """
    kinds = set(map(type, column))
    if kinds <= {type(None)}:
        return "{}"
    if order is not None:
        quick = _joined_quickly(column, kinds, order)
        if quick is not None:
            return quick
        column = list(map(column.__getitem__, order.to_pylist()))
    if kinds == {str}:
        text = '","'.join(column)
        if "\\" not in text and text.count('"') == 2 * (len(column) - 1):
            return f'{{"{text}"}}'
    if kinds <= {int}:
        return f"{{{','.join(map(str, column))}}}"
    if kinds <= {float}:
        return f"{{{','.join(map(repr, column))}}}"
    return f"{{{','.join(map(_element, column))}}}"


def _joined_quickly(column: Sequence[Any], kinds: set[type], order: pa.Array) -> str | None:
    """Return some rows as an array, by Arrow; None where it cannot, or a text has to be escaped."""
    if kinds == {int}:
        try:
            numbers = pa.array(column, pa.int64())
        except (OverflowError, pa.ArrowInvalid):
            return None
        return f"{{{_joined(pc.cast(numbers.take(order), pa.string()), ',')}}}"
    if kinds != {str}:
        return None
    texts = pa.array(column, pa.string())
    if not isinstance(texts, pa.StringArray) or texts.nbytes > _ROOM:
        return None
    text = _joined(texts.take(order), '","')
    has_others = "\\" in text or text.count('"') != 2 * (len(order) - 1)
    return None if has_others else f'{{"{text}"}}'


def _joined(texts: pa.StringArray, between: str) -> str:
    whole = pa.ListArray.from_arrays([0, len(texts)], texts)
    joined: str = pc.binary_join(whole, between)[0].as_py()
    return joined


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is not str:
        return repr(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
