"""Rows as messages of Kafka: as they are, if they are messages, else as JSON. No I/O."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from waterspout._schema import Schema
from waterspout.errors import SerdeError, TopologyError

__all__ = ["Message", "MessageForm", "json_text"]

_TEXTUAL = ("string", "binary")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_HEADERS = tuple(f"array<struct<key:string,value:{kind}>>" for kind in _TEXTUAL)
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "key": _TEXTUAL,
    "value": _TEXTUAL,
    "headers": _HEADERS,
    "partition": _WHOLE,
    "timestamp": ("timestamp",),
}
"""What a message has, and the types that a field may have for it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Message = dict[str, Any]
"""The arguments with which a producer sends one message; None or left out is none."""


@dataclass(frozen=True)
class MessageForm:
    """How rows of some fields become messages: `as_json` of all fields, or field by field."""

    rows: Schema
    key: tuple[str, ...] = ()
    as_json: bool = False

    @classmethod
    def of(cls, rows: Schema, key: tuple[str, ...], as_json: bool, where: str) -> MessageForm:
        """Choose the form for a stream of these fields; an error says what does not fit."""
        missing = [name for name in key if name not in rows.names]
        if missing:
            raise TopologyError(
                f"{where}: key={missing[0]!r} is no field of the stream, which has "
                f"{', '.join(rows.names)}"
            )
        if as_json or key or _kind(rows, "value") not in _TEXTUAL:
            return cls(rows, key, True)
        for name in rows.names:
            if name not in _FIELDS:
                raise TopologyError(
                    f"{where}: the stream has a field 'value', so that each row is a message, and "
                    f"a message has no {name!r}. Project to some of {', '.join(_FIELDS)}, or say "
                    "as_json=True for a value that is the JSON of the whole row"
                )
            if _kind(rows, name) not in _FIELDS[name]:
                raise TopologyError(
                    f"{where}: field {name!r} is {rows.type_of(name)}; in a message it is "
                    f"{' or '.join(_FIELDS[name])}"
                )
        return cls(rows)

    def messages(self, table: pa.Table) -> Iterator[Message]:
        """Yield one message for each row."""
        return self._as_json(table) if self.as_json else self._as_they_are(table)

    def _as_json(self, table: pa.Table) -> Iterator[Message]:
        names = [json.dumps(name) for name in self.rows.names]
        columns = [table.column(name).to_pylist() for name in self.rows.names]
        keys = [self.rows.names.index(name) for name in self.key]
        for row in zip(*columns, strict=True):
            yield {"value": _object(names, row).encode(), "key": self._key(names, row, keys)}

    def _key(self, names: Sequence[str], row: Sequence[Any], keys: Sequence[int]) -> bytes | None:
        if not keys:
            return None
        if len(keys) > 1:
            return _object([names[i] for i in keys], [row[i] for i in keys]).encode()
        value = row[keys[0]]
        return value if isinstance(value, bytes) or value is None else _bare(value).encode()

    def _as_they_are(self, table: pa.Table) -> Iterator[Message]:
        columns = [
            map(_MAKE[name], table.column(name).to_pylist()) if name in _MAKE
            else table.column(name).to_pylist()
            for name in self.rows.names
        ]  # fmt: skip
        for row in zip(*columns, strict=True):
            message = dict(zip(self.rows.names, row, strict=True))
            yield {k: v for k, v in message.items() if v is not None or k in ("key", "value")}


def _kind(rows: Schema, name: str) -> str | None:
    found = rows.type_of(name) if name in rows.names else None
    return None if found is None else found.replace(" ", "")


def _headers(pairs: Any) -> Any:
    return None if pairs is None else [(one["key"], one["value"]) for one in pairs]


def _millis(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1)


_MAKE: Mapping[str, Callable[[Any], Any]] = {"headers": _headers, "timestamp": _millis}


def _object(names: Sequence[str], values: Sequence[Any]) -> str:
    members = (f"{name}:{json_text(v)}" for name, v in zip(names, values, strict=True))
    return f"{{{','.join(members)}}}"


def _bare(value: Any) -> str:
    """Return a value as text, without the quotes if JSON has it in some."""
    return value if isinstance(value, str) else json_text(value).strip('"')


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def _moment(value: datetime) -> str:
    return value.isoformat() if value.tzinfo is None else _utc(value)


def _utc(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


_TEXTS: Mapping[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda v: "true" if v else "false",
    int: str,
    float: _float,
    Decimal: lambda v: format(v, "f"),
    str: lambda v: json.dumps(v, ensure_ascii=False),
    bytes: lambda v: f'"{b64encode(v).decode()}"',
    datetime: lambda v: f'"{_moment(v)}"',
    date: lambda v: f'"{v.isoformat()}"',
    dict: lambda v: _object([json.dumps(str(name)) for name in v], list(v.values())),
}


def json_text(value: Any) -> str:
    """Return plain JSON, such as Spark's `from_json` reads with the types of the fields.

    What JSON has no word for is text: moments in UTC, days, bytes in base 64, NaN.

    >>> json_text([1, None, "a", b"hi", Decimal("1.50"), [("k", 2.5)]])
    '[1,null,"a","aGk=",1.50,{"k":2.5}]'
    """
    write = _TEXTS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        pairs = [(json.dumps(_bare(name)), one) for name, one in value]  # a map, as Arrow gives it
        return _object([name for name, _ in pairs], [one for _, one in pairs])
    if isinstance(value, list):
        return f"[{','.join(map(json_text, value))}]"
    raise SerdeError(f"{type(value).__name__} cannot be written as JSON; make it text before")
