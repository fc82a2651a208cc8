"""How keys and values become typed SQL columns, readable by anyone who opens the table.

A layout has named columns with codecs. Keys of plain types stand in columns of their own; a
NULL or NaN in a key, which a primary key cannot hold, is a placeholder there and a letter in
the column `_nulls`. Without a schema a key is one column of canonical JSON, and so is a value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar

from waterspout._schema import Schema
from waterspout._serde import decode_key, decode_value, encode_key, encode_value, normalize_key
from waterspout.errors import NumberTooLargeError, SerdeError, TopologyError

__all__ = ["Codec", "Codecs", "Layout", "integer_codec", "local_time_to_sql", "moment_to_sql"]


@dataclass(frozen=True, slots=True)
class Codec:
    """How one Spark type is kept: a storage class, both directions, and a NULL placeholder.

    `as_is` tells of a column of the first Python type whether `encode` would change nothing
    in it, if there is an `encode` at all.
    """

    storage: str
    python: tuple[type, ...]
    placeholder: Any
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    as_is: Callable[[Sequence[Any]], bool] | None = None

    def takes(self, column: Sequence[Any]) -> bool:
        """Whether `to_sql` would change no value of a column; asked once, not for each value."""
        if not set(map(type, column)) <= {self.python[0]}:
            return False
        return self.encode is None if self.as_is is None else self.as_is(column)

    def column(self, values: Sequence[Any], name: str) -> Sequence[Any]:
        """Return many values as the store keeps them; some may be None."""
        given = [v for v in values if v is not None] if None in values else values
        return values if self.takes(given) else [self.to_sql(v, name) for v in values]

    def to_sql(self, value: Any, column: str) -> Any:
        """Return a value as the store keeps it; refuse one of another type."""
        if value is None:
            return None
        if type(value) not in self.python and not self._is_subtype(value):
            expected = " or ".join(t.__name__ for t in self.python)
            raise SerdeError(f"column {column!r} holds {expected}, not {value!r}")
        try:
            return self.encode(value) if self.encode is not None else value
        except SerdeError:
            raise
        except (OverflowError, ValueError) as error:
            if isinstance(error, OverflowError) and isinstance(value, int | float | Decimal):
                raise NumberTooLargeError.of(f"column {column!r}", value, str(error)) from None
            raise SerdeError(f"column {column!r} cannot hold {value!r}: {error}") from error

    def check(self, values: Sequence[Any], name: str) -> None:
        """Refuse values that a column of this type cannot hold, whatever the store is."""
        if object not in self.python:  # else they are refused by their encoding, in every store
            self.column(values, name)

    def to_python(self, stored: Any) -> Any:
        """Return a stored value as it was given."""
        if stored is None or self.decode is None:
            return stored
        return self.decode(stored)

    def _is_subtype(self, value: Any) -> bool:
        # True is an int to Python, and a datetime a date; here they are not.
        return isinstance(value, self.python) and not any(
            isinstance(value, narrow) and not {narrow, object} & set(self.python)
            for narrow in (bool, datetime)
        )


def _float_to_sql(value: float) -> Any:
    # SQLite turns NaN into NULL, which would read as "no value".
    return "NaN" if math.isnan(value) else float(value)


def integer_codec(storage: str, bits: int) -> Codec:
    """Return the codec of whole numbers of so many bits, and no more."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def encode(value: int) -> int:
        if not low <= value <= high:
            raise OverflowError(f"{bits} bits go from {low} to {high}")
        return value

    def fits(column: Sequence[int]) -> bool:
        return not column or (low <= min(column) and max(column) <= high)

    return Codec(storage, (int,), 0, encode, None, fits)


def moment_to_sql(value: datetime) -> str:
    """Return the text of a timestamp, which is a moment: it has a time zone."""
    if value.utcoffset() is None:
        raise ValueError(
            "a timestamp has a time zone; give it one, value.replace(tzinfo=UTC) or "
            "value.astimezone(). One without is a timestamp_ntz"
        )
    return value.astimezone(UTC).isoformat(sep=" ")


def local_time_to_sql(value: datetime) -> str:
    """Return the text of a timestamp_ntz, which is what a clock on some wall shows."""
    if value.utcoffset() is not None:
        raise ValueError("a timestamp_ntz has no time zone; one with it is a timestamp")
    return value.isoformat(sep=" ")


def _fitting(codec: Codec, kind: str) -> Codec:
    """Return the codec of a decimal(p,s), which has no more than p - s digits before the point."""
    found = re.fullmatch(r"decimal\((\d+)(?:,(\d+))?\)", kind)
    if found is None:
        return codec
    digits, to_sql = int(found[1]) - int(found[2] or 0), codec.encode
    assert to_sql is not None

    def encode(value: Decimal) -> Any:
        if value.is_finite() and value and value.adjusted() >= digits:
            raise OverflowError(f"{kind} has {digits} digits before the point")
        return to_sql(value)

    return replace(codec, encode=encode)


def _decimal_key_to_sql(value: Decimal) -> str:
    # 1.5 and 1.50 are one key.
    (normal,) = normalize_key((value,))
    return format(normal, "f")


_REAL = Codec("ANY", (float, int), 0.0, _float_to_sql, float)
_SIMPLE = {
    "string": Codec("TEXT", (str,), ""),
    "bigint": integer_codec("INTEGER", 64),
    "int": integer_codec("INTEGER", 32),
    "smallint": integer_codec("INTEGER", 16),
    "tinyint": integer_codec("INTEGER", 8),
    "double": _REAL,
    "float": _REAL,
    "boolean": Codec("INTEGER", (bool,), 0, int, bool),
    "binary": Codec("BLOB", (bytes, bytearray), b"", bytes),
    "date": Codec("TEXT", (date,), "", date.isoformat, date.fromisoformat),
    "timestamp": Codec("TEXT", (datetime,), "", moment_to_sql, datetime.fromisoformat),
    "timestamp_ntz": Codec("TEXT", (datetime,), "", local_time_to_sql, datetime.fromisoformat),
}
_DECIMAL = Codec("TEXT", (Decimal,), "", str, Decimal)


class Codecs:
    """The codecs of one database: by Spark type, and as JSON text for what has no type of its own.

    `as_keys` are those that differ in a key: there 1 is not 1.0, and 1.5 is 1.50.
    """

    def __init__(
        self, text: str, simple: Mapping[str, Codec], as_keys: Mapping[str, Codec], decimal: Codec
    ) -> None:
        self.whole_key = Codec(text, (tuple,), "", encode_key, decode_key)
        self._values = {**simple, "decimal": decimal}
        self._keys = {**self._values, **as_keys}
        self._value = Codec(text, (object,), "", encode_value, decode_value)
        self._key_part = Codec(
            text, (object,), "", lambda value: encode_key([value]), lambda text: decode_key(text)[0]
        )

    def of(self, kind: str | None, *, key: bool = False) -> Codec:
        """Return the codec of a Spark type; None is the type of anything."""
        name = "decimal" if kind is not None and kind.startswith("decimal") else kind or ""
        found = self._keys.get(name, self._key_part) if key else self._values.get(name, self._value)
        return _fitting(found, kind) if name == "decimal" and kind is not None else found


_REAL_KEY = replace(_REAL, python=(float,))
_SQLITE = Codecs(
    "TEXT",
    _SIMPLE,
    {
        "double": _REAL_KEY,
        "float": _REAL_KEY,
        "decimal": replace(_DECIMAL, encode=_decimal_key_to_sql),
    },
    _DECIMAL,
)


@dataclass(frozen=True)
class Layout:
    """The columns of one state's table, with SQLite's types. Picklable by its schemas alone."""

    keys: Schema | None
    values: Schema

    codecs: ClassVar[Codecs] = _SQLITE
    reserved: ClassVar[tuple[str, ...]] = ("_txid", "_attempt", "_nulls")
    beside_key: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Names and types of columns that say more of a key and are no part of the primary key."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name in self.key_names + self.value_names:
            column = name.lower()  # to SQL, `Word` and `word` are one column
            if column in self.reserved or column.startswith("_prev_"):
                raise TopologyError(f"field {name!r} cannot be a column: the name is reserved")
            if column in seen:
                raise TopologyError(f"two columns of one table cannot be called {name!r}")
            seen.add(column)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The key columns."""
        return ("key",) if self.keys is None else self.keys.names

    @cached_property
    def value_names(self) -> tuple[str, ...]:
        """The value columns."""
        return self.values.names

    @cached_property
    def key_codecs(self) -> tuple[Codec, ...]:
        """One codec per key column."""
        if self.keys is None:
            return (self.codecs.whole_key,)
        return tuple(self.codecs.of(kind, key=True) for kind in self.keys.types)

    @cached_property
    def value_codecs(self) -> tuple[Codec, ...]:
        """One codec per value column."""
        return tuple(self.codecs.of(kind) for kind in self.values.types)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.keys, self.values))

    def describe(self) -> str:
        """Return the layout as text, to be compared with the one stored."""
        keys = "(any key)" if self.keys is None else str(self.keys)
        return f"{keys} -> {self.values}"

    @property
    def key_width(self) -> int:
        """How many columns a key takes, with `_nulls` and those beside it."""
        return len(self.key_names) + 1 + len(self.beside_key)

    def key_columns(self, keys: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the key columns, and then `_nulls` and those beside it, of many keys."""
        clean = [""] * len(keys)
        if self.keys is None:
            return [[encode_key(key) for key in keys], clean]
        codecs, names = self.key_codecs, self.key_names
        if set(map(len, keys)) <= {len(codecs)}:
            # The common case by far: the right types and no NULL; no call per value.
            columns = [[key[i] for key in keys] for i in range(len(codecs))]
            if all(codec.takes(column) for column, codec in zip(columns, codecs, strict=True)):
                return [*columns, clean]
        rows = [_encode_key(key, codecs, names) for key in keys]
        return list(zip(*rows, strict=True))

    def check_keys(self, keys: Sequence[Sequence[Any]]) -> None:
        """Refuse keys of another width or of other types: the same in every store."""
        if self.keys is None:
            return
        codecs, names = self.key_codecs, self.key_names
        if set(map(len, keys)) <= {len(codecs)}:
            columns = [[key[i] for key in keys] for i in range(len(codecs))]
            if all(codec.takes(column) for column, codec in zip(columns, codecs, strict=True)):
                return
        for key in keys:
            _encode_key(key, codecs, names)

    def check_values(self, values: Sequence[Any]) -> None:
        """Refuse values of other types, or beyond their types: the same in every store.

        None of them is None.
        """
        names, codecs = self.value_names, self.value_codecs
        if len(codecs) == 1:
            codecs[0].check(values, names[0])
            return
        for value in values:
            self._require_parts(value)
        for i, (codec, name) in enumerate(zip(codecs, names, strict=True)):
            codec.check([value[i] for value in values], name)

    def decode_key(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        """Return the key that stands in these columns (`_nulls` last)."""
        *stored, odd = columns
        if self.keys is None:
            return decode_key(stored[0])
        if not odd:
            codecs = self.key_codecs
            return tuple([c.to_python(v) for c, v in zip(codecs, stored, strict=True)])
        return tuple(
            None if mark == "n" else math.nan if mark == "x" else codec.to_python(value)
            for codec, value, mark in zip(self.key_codecs, stored, odd, strict=True)
        )

    def encode_values(self, value: Any) -> tuple[Any, ...]:
        """Return a value as its columns; several columns hold the parts of a tuple."""
        names, codecs = self.value_names, self.value_codecs
        if len(codecs) == 1:
            return (codecs[0].to_sql(value, names[0]),)
        if value is not None:
            self._require_parts(value)
        parts = (None,) * len(codecs) if value is None else tuple(value)
        return tuple(c.to_sql(p, n) for c, p, n in zip(codecs, parts, names, strict=True))

    def value_columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the columns of many values, some of which may be None."""
        names, codecs = self.value_names, self.value_codecs
        if len(codecs) == 1:
            return [codecs[0].column(values, names[0])]
        for value in values:
            if value is not None:
                self._require_parts(value)
        nothing = (None,) * len(codecs)
        whole = [nothing if value is None else value for value in values]
        parts = [[value[i] for value in whole] for i in range(len(codecs))]
        return [c.column(p, n) for c, p, n in zip(codecs, parts, names, strict=True)]

    def decode_values(self, columns: Sequence[Any]) -> Any:
        """Return the value that stands in these columns; None where all are NULL."""
        codecs = self.value_codecs
        if len(codecs) == 1:
            return codecs[0].to_python(columns[0])
        parts = tuple([c.to_python(v) for c, v in zip(codecs, columns, strict=True)])
        return None if all(part is None for part in parts) else parts

    def decode_columns(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the values that stand in these columns; None where all are NULL."""
        codecs = self.value_codecs
        found = [
            list(column) if codec.decode is None else [codec.to_python(v) for v in column]
            for codec, column in zip(codecs, columns, strict=True)
        ]
        if len(codecs) == 1:
            return found[0]
        nothing = (None,) * len(codecs)
        return [None if parts == nothing else parts for parts in zip(*found, strict=True)]

    def _require_parts(self, value: Any) -> None:
        if not isinstance(value, tuple | list) or len(value) != len(self.value_names):
            raise SerdeError(
                f"{value!r} is not one value for each of {', '.join(self.value_names)}"
            )


def _encode_key(
    key: Sequence[Any], codecs: Sequence[Codec], names: Sequence[str]
) -> tuple[Any, ...]:
    if len(key) != len(codecs):
        raise SerdeError(f"key {key!r} has {len(key)} values; this state has {', '.join(names)}")
    columns, marks = [], []
    for value, codec, name in zip(key, codecs, names, strict=True):
        if value is None:
            columns.append(codec.placeholder)
            marks.append("n")
        elif isinstance(value, float) and math.isnan(value) and float in codec.python:
            columns.append(codec.placeholder)
            marks.append("x")
        else:
            # -0.0 and 0.0 are one key.
            columns.append(codec.to_sql(value + 0.0 if type(value) is float else value, name))
            marks.append("-")
    odd = "".join(marks)
    return (*columns, odd if odd.strip("-") else "")
