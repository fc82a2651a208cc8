"""Joins with what does not stream: a table, or a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from waterspout._arrow import arrow_schema, ddl_of
from waterspout._schema import FieldNames, Schema, field_names
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory
from waterspout.trident._tridentstate import TridentState
from waterspout.trident.operations.queries import JoinGet
from waterspout.trident.plan.nodes import Join, Query, StaticTable

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = ["add_static_join"]

_HOWS = ("inner", "left")


def add_static_join(
    stream: Stream, other: Any, on: FieldNames | Mapping[str, str], how: str, out: FieldNames | None
) -> Stream:
    """Append the fields of a table or a state to the rows that have the same key."""
    if how not in _HOWS:
        raise TopologyError(
            f"join_static: how is 'inner' or 'left', not {how!r}; what has no row in the stream "
            "never comes out"
        )
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in field_names(on)}
    if not pairs:
        raise TopologyError('join_static needs the field to join by: on="user"')
    if isinstance(other, TridentState):
        return _join_state(stream, other, pairs, how, out)
    if isinstance(other, StateFactory):
        raise TopologyError(
            "join_static joins a state of the topology, whose fields are known: make one with "
            "new_static_state(factory, keys=..., values=...)"
        )
    return _join_table(stream, other, pairs, how, out)


def _join_table(
    stream: Stream, other: Any, pairs: Mapping[str, str], how: str, out: FieldNames | None
) -> Stream:
    table, schema = _table(other)
    keys = schema.select(pairs.values(), where="join_static, in the table,")
    _refuse_other_types(stream, pairs, keys)
    added = schema.without(keys.names)
    names = _named(added, out)
    wanted = stream.schema.append(names, where="join_static")
    # All fields of both sides; those of the key, which the stream has, are left out again.
    hidden = tuple((f"_waterspout_key{i}", kind) for i, kind in enumerate(keys.types))
    title = f"table ({schema})"
    topology = stream.topology
    node = topology.add(
        StaticTable, title, Schema((*keys.fields, *added.fields)), table=table,
        filled=_filled(table),
    ).node  # fmt: skip
    joined = topology.add(
        Join, f"join_static({', '.join(pairs)})",
        Schema((*stream.schema.fields, *hidden, *names.fields)), [stream.node, node],
        keys=(tuple(pairs), keys.names), optional=(False, how == "left"), preserve=True,
    )  # fmt: skip
    return joined.project(wanted.names)


def _join_state(
    stream: Stream,
    state: TridentState,
    pairs: Mapping[str, str],
    how: str,
    out: FieldNames | None,
) -> Stream:
    if state.topology is not stream.topology:
        raise TopologyError("join_static asks a state of another topology")
    if not len(state.keys) or not len(state.values):
        raise TopologyError(
            f"join_static: the fields of {state.name} are not known. Say which they are: "
            'new_static_state(factory, keys="user string", values="city string")'
        )
    missing = [name for name in state.keys.names if name not in pairs.values()]
    if missing:
        raise TopologyError(
            f"join_static: {state.name} is asked by its whole key, ({state.keys}); on= does not "
            f"say what {missing[0]!r} is"
        )
    chosen = state.keys.select(pairs.values(), where=f"join_static, in {state.name},")
    _refuse_other_types(stream, pairs, chosen)
    field_of = {key: field for field, key in pairs.items()}
    names = _named(state.values, out)
    where = f"join_static({', '.join(pairs)})"
    return stream.topology.add(
        Query, where, stream.schema.append(names, where="join_static"), [stream.node],
        state=state.name, fields=tuple(field_of[key] for key in state.keys.names),
        query=JoinGet(how == "left", len(names)), out=names,
    )  # fmt: skip


def _table(other: Any) -> tuple[Any, Schema]:
    """Return a table and its fields; a DataFrame of pandas becomes one of Arrow's."""
    if hasattr(other, "iloc") and hasattr(other, "columns"):
        other = pa.Table.from_pandas(other, preserve_index=False)
    if isinstance(other, pa.Table):
        schema = ddl_of(other.schema)
        return other.cast(arrow_schema(schema)), schema
    fields = getattr(getattr(other, "schema", None), "fields", None)
    if fields is None or not hasattr(other, "toArrow"):
        raise TopologyError(
            "join_static joins a DataFrame (of Spark or pandas), a table of pyarrow, or a state of "
            f"the topology, not {other!r}"
        )
    pieces = [f"`{field.name}` {field.dataType.simpleString()}" for field in fields]
    return other, Schema.parse(pieces)


def _filled(table: Any) -> frozenset[str]:
    """Return the fields that have a value in every row, as far as that is known of a table."""
    if isinstance(table, pa.Table):
        return frozenset(n for n in table.column_names if not table.column(n).null_count)
    return frozenset(field.name for field in table.schema.fields if not field.nullable)


def _refuse_other_types(stream: Stream, pairs: Mapping[str, str], keys: Schema) -> None:
    own = stream.schema.select(pairs, where="join_static").require_keys(where="join_static")
    for (field, mine), (key, other) in zip(own, keys, strict=True):
        if mine != other:
            raise TopologyError(
                f"join_static: {field!r} is {mine} in the stream, but {key!r} is {other}; cast one "
                "of them before"
            )


def _named(added: Schema, out: FieldNames | None) -> Schema:
    """Return the fields that are added, under the names that `out` gives them."""
    if out is None:
        return added
    names = Schema.parse(out)
    if len(names) != len(added):
        raise TopologyError(
            f"join_static adds {len(added)} fields ({added}), but out has {len(names)}: "
            f"{', '.join(names.names)}"
        )
    filled = names.fill_types(added.types)
    for (name, kind), known in zip(filled, added.types, strict=True):
        if kind != known:
            raise TopologyError(f"join_static: {name!r} is declared as {kind}, but is {known}")
    return filled
