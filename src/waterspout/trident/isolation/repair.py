"""A letter's row with some of its values set by hand, each checked against its field's type."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from waterspout._arrow import arrow_type, make_array
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout._serde import encode_value
from waterspout.errors import ConfigError

__all__ = ["as_repaired", "repaired"]


def repaired(letter: DeadLetter, changes: Mapping[str, str]) -> DeadLetter:
    """Return a letter with these fields of its row set; their values are given as JSON.

    A string may stand without quotes; a date, a time or a decimal number is a JSON string, and
    binary data are one in base64. Without changes the letter stays as it is.
    """
    if not changes:
        return letter
    schema, row = letter.schema, letter.row
    for name in changes:
        if name not in schema.names:
            raise ConfigError(
                f"letter {letter.id} has no field {name!r}; it has {', '.join(schema.names)}"
            )
    if row is None:
        missing = [name for name in schema.names if name not in changes]
        if missing:
            raise ConfigError(
                f"the values of letter {letter.id} could not be stored; set every field "
                f"({', '.join(missing)} as well)"
            )
        row = {}
    row |= {name: _value(name, text, schema) for name, text in changes.items()}
    return replace(letter, content=encode_value([row[name] for name in schema.names]))


def as_repaired(letter: DeadLetter) -> dict[str, str] | None:
    """Return the values of a letter's row as `repaired` takes them; None if they were not kept.

    For people who look at a row before they change it: a text without quotes where that is clear.
    """
    row = letter.row
    if row is None:
        return None
    return {name: _written(row[name], letter.schema.type_of(name) or "?") for name in row}


def _written(value: Any, declared: str) -> str:
    kind = arrow_type(declared)
    if isinstance(value, str) and pa.types.is_string(kind) and _read(value, kind) == value:
        return value
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value that JSON does not know as one that `repaired` reads back."""
    if isinstance(value, date | datetime):
        return value.isoformat()
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _value(name: str, text: str, schema: Schema) -> Any:
    declared = schema.type_of(name) or "?"
    kind = arrow_type(declared)
    try:
        given = _read(text, kind)
        array = make_array([_of_type(given, kind)], kind, field=name, where="--set")
    except (ValueError, TypeError, InvalidOperation) as error:
        raise ConfigError(f"{name}={text} does not fit its type, {declared}: {error}") from error
    return array[0].as_py()


def _read(text: str, kind: pa.DataType) -> Any:
    try:
        # Exact: a decimal must not pass through a float.
        given = json.loads(text, parse_float=Decimal)
    except ValueError:
        if pa.types.is_string(kind):
            return text
        raise ValueError("this is not JSON") from None
    bare = pa.types.is_string(kind) and given is not None and not isinstance(given, str)
    return text if bare else given


def _of_type(given: Any, kind: pa.DataType) -> Any:
    """Return a JSON value as the Python value of an Arrow type."""
    if given is None:
        return None
    if pa.types.is_date(kind):
        return date.fromisoformat(_text(given))
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(_text(given))
        if (moment.tzinfo is None) != (kind.tz is None):
            wanted = "needs an offset, such as Z" if kind.tz else "must have no offset"
            raise ValueError(f"the time {wanted}")
        return moment
    if pa.types.is_decimal(kind):
        if isinstance(given, bool):
            raise ValueError("this is not a number")
        return Decimal(given)
    if pa.types.is_binary(kind):
        return b64decode(_text(given), validate=True)
    if pa.types.is_floating(kind):
        if isinstance(given, (str, bool)):
            raise ValueError("this is not a number")
        return float(given)
    if pa.types.is_integer(kind) and type(given) is not int:
        raise ValueError("this is not a whole number")
    return _nested(given, kind)


def _nested(given: Any, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return [_of_type(one, kind.value_type) for one in _a(list, given)]
    if pa.types.is_map(kind):
        pairs = _a(dict, given).items()
        return [(_of_type(k, kind.key_type), _of_type(v, kind.item_type)) for k, v in pairs]
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        for name in _a(dict, given):
            if name not in fields:
                raise ValueError(f"there is no {name!r} in it")
        return {name: _of_type(given.get(name), type_) for name, type_ in fields.items()}
    return given


def _text(given: Any) -> str:
    text: str = _a(str, given)
    return text


def _a(wanted: type, given: Any) -> Any:
    if not isinstance(given, wanted):
        name = {"str": "a string", "list": "a list", "dict": "an object"}[wanted.__name__]
        raise ValueError(f"this is not {name}")
    return given
