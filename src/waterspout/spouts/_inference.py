"""Types of fields: what the user wrote, what the spout says, what its rows show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waterspout._schema import TYPE_OF_CLASS, FieldNames, Schema
from waterspout.errors import TopologyError

__all__ = ["stream_schema", "types_of"]


def types_of(rows: Sequence[Sequence[Any]], width: int) -> list[str | None]:
    """Return the type of each column of some rows; None where it cannot be told.

    >>> types_of([("a", 1), (None, 2.5)], 2)
    ['string', 'double']
    """
    return [_type_of({type(row[i]) for row in rows}) for i in range(width)]


def _type_of(kinds: set[type]) -> str | None:
    kinds = kinds - {type(None)}
    if kinds == {int, float}:
        return "double"
    return TYPE_OF_CLASS.get(kinds.pop()) if len(kinds) == 1 else None


def stream_schema(
    declared: Schema,
    *,
    out: FieldNames | None,
    own: object = None,
    rows: Sequence[Sequence[Any]] = (),
    where: str,
) -> Schema:
    """Return the fields of a spout's stream, with types; an error says what is missing.

    What the user wrote (`out`) goes first, then what the spout says (`own`), then types within
    what it has `declared`, then the types of its rows, if it has them.
    """
    found = declared
    if isinstance(own, str | Schema):
        found = _of_width(Schema.parse(own), declared, f"{where}: its schema")
        found = found.fill_types(declared.types)
    if out is not None:
        types = found.types
        found = _of_width(Schema.parse(out), declared, f"{where}: out").fill_types(types)
    return found.fill_types(types_of(rows, len(found))).require_types(where=where)


def _of_width(schema: Schema, declared: Schema, what: str) -> Schema:
    if len(schema) != len(declared):
        raise TopologyError(
            f"{what} has {len(schema)} fields ({schema}), but the spout emits {len(declared)}: "
            f"{', '.join(declared.names)}"
        )
    return schema
