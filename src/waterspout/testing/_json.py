"""Records of JSON as rows of a schema, by the rules of Spark's reader, without Spark."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from waterspout._arrow import arrow_schema
from waterspout._schema import Schema

__all__ = ["rows_of_record"]

_WORDS = {"NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF"}


def rows_of_record(text: str, schema: Schema) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the rows of a record: one, or those of a list, none of a blank one.

    And whether it is malformed; what could not be read of it is null then.
    """
    if not text.strip():
        return [], False
    nothing = (None,) * len(schema)
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return [nothing], True
    kind = pa.struct(list(arrow_schema(schema)))
    rows, bad = list[tuple[Any, ...]](), list[str]()
    for record in value if isinstance(value, list) else [value]:
        try:
            rows.append(tuple(_struct(_a(dict, record), kind, bad).values()))
        except ValueError:
            return [nothing], True
    return rows, bool(bad)


def _struct(given: dict[str, Any], kind: pa.DataType, bad: list[str]) -> dict[str, Any]:
    """Return the fields of an object; null, and a note, where one cannot be read."""
    made: dict[str, Any] = {}
    for field in kind:
        value = given.get(field.name)
        try:
            inner = t.is_struct(field.type) and value is not None
            if inner:
                made[field.name] = _struct(_a(dict, value), field.type, bad)
            else:
                made[field.name] = _value(value, field.type)
        except (ValueError, InvalidOperation):
            made[field.name] = None
            bad.append(field.name)
    return made


def _no_constant(word: str) -> Any:
    raise ValueError(word)


def _value(given: Any, kind: pa.DataType) -> Any:
    """Return a JSON value as the Python value of a type; ValueError if it is none."""
    if given is None:
        return None
    if t.is_string(kind):
        return given if isinstance(given, str) else json.dumps(given, default=str)
    if t.is_boolean(kind):
        return _a(bool, given)
    if t.is_integer(kind):
        return _whole(given, kind.bit_width)
    if t.is_floating(kind):
        if isinstance(given, str) and given in _WORDS:
            return float(given.replace("INF", "inf"))
        number = float(_number(given))
        if math.isinf(number):
            raise ValueError(given)
        return number
    if t.is_decimal(kind):
        return _decimal(given, kind)
    if t.is_date(kind):
        return dt.date.fromisoformat(_a(str, given))
    if t.is_timestamp(kind):
        moment = dt.datetime.fromisoformat(_a(str, given))
        if kind.tz is None:
            return moment.replace(tzinfo=None)
        return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    if t.is_list(kind):
        return [_value(one, kind.value_type) for one in _a(list, given)]
    if t.is_map(kind):
        return [(key, _value(one, kind.item_type)) for key, one in _a(dict, given).items()]
    if t.is_struct(kind):
        own = _a(dict, given)
        return {field.name: _value(own.get(field.name), field.type) for field in kind}
    raise ValueError(kind)


def _a(wanted: type, given: Any) -> Any:
    if not isinstance(given, wanted):
        raise ValueError(given)
    return given


def _number(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, (int, Decimal)):
        raise ValueError(given)
    return given


def _whole(given: Any, bits: int) -> int:
    number = _a(int, _number(given))
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(given)
    return int(number)


def _decimal(given: Any, kind: pa.DataType) -> Decimal:
    text = given if isinstance(given, str) else str(_number(given))
    number = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale))
    if len(number.as_tuple().digits) > kind.precision:
        raise ValueError(given)
    return number
