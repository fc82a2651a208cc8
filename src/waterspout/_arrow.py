"""Spark types as Arrow types and back, without a JVM."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from waterspout._fitting import exact_array
from waterspout._schema import Schema, split_top
from waterspout.errors import NumberTooLargeError, ResultError, TopologyError

__all__ = ["arrow_schema", "arrow_type", "ddl_of", "make_array", "table_of_rows"]

_SIMPLE: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}


def arrow_type(ddl: str) -> pa.DataType:
    """Return the Arrow type of a Spark type.

    >>> arrow_type("array<bigint>")
    ListType(list<element: int64>)
    """
    text = ddl.strip()
    simple = _SIMPLE.get(text.lower())
    if simple is not None:
        return simple
    match = re.fullmatch(r"(\w+)\s*[<(](.*)[>)]", text, re.S)
    outer, inner = (match[1].lower(), match[2]) if match else ("", "")
    if outer == "decimal":
        precision, _, scale = inner.partition(",")
        return pa.decimal128(int(precision), int(scale or 0))
    if outer in ("varchar", "char"):
        return pa.string()
    if outer == "array":
        return pa.list_(pa.field("element", arrow_type(inner)))
    if outer == "map":
        key, value = split_top(inner)
        return pa.map_(arrow_type(key), arrow_type(value))
    if outer == "struct":
        fields = (re.match(r"\s*`?(\w+)`?\s*:?\s*(.*)", f, re.S) for f in split_top(inner))
        return pa.struct([pa.field(f[1], arrow_type(f[2])) for f in fields if f])
    raise TopologyError(f"the type {ddl!r} is not supported in Python functions")


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return a schema's Arrow form; every type must be known."""
    return pa.schema([pa.field(name, arrow_type(kind or "?")) for name, kind in schema])


def ddl_of(schema: pa.Schema) -> Schema:
    """Return an Arrow schema as Spark types."""
    return Schema(tuple((field.name, _ddl(field.type)) for field in schema))


def make_array(
    values: Sequence[Any], kind: pa.DataType, *, field: str, where: str, combined: bool = False
) -> pa.Array:
    """Return values as an Arrow array; an error names the field and the value that is off.

    `combined`: the values are what an aggregator made of many; a sum may have outgrown its type.
    """
    try:
        return exact_array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        bad = next((v for v in values if not _fits(v, kind)), None)
        if combined and _is_too_large(bad, kind):
            raise NumberTooLargeError.of(
                f"{where}, field {field!r}", bad, f"it is declared as {kind}"
            ) from None
        raise ResultError(
            f"{where} gave {bad!r} for field {field!r}, which is declared as {kind}: {error}"
        ) from error


def table_of_rows(schema: Schema, rows: Sequence[Sequence[Any]], *, where: str) -> pa.Table:
    """Return rows of Python values as a table; an error names the field and the value."""
    arrow = arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [
        make_array(column, field.type, field=field.name, where=where)
        for column, field in zip(columns, arrow, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=arrow)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        exact_array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def _is_too_large(value: Any, kind: pa.DataType) -> bool:
    """Whether a number is of the right sort for its type, and beyond it."""
    if pa.types.is_integer(kind):
        return type(value) is int
    if not pa.types.is_decimal(kind) or not isinstance(value, int | Decimal):
        return False
    number = Decimal(value)
    return number.is_finite() and number.adjusted() >= kind.precision - kind.scale


def _ddl(kind: pa.DataType) -> str:
    for name, simple in _SIMPLE.items():
        if kind == simple:
            return name
    if pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_large_binary(kind):
        return "binary"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_ddl(kind.key_type)},{_ddl(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{f.name}:{_ddl(f.type)}' for f in kind)}>"
    raise TopologyError(f"the Arrow type {kind} has no Spark type here")
