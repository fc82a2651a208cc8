"""Streams made of several streams: merged, joined, reduced together. Checked when built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waterspout._schema import FieldNames, Schema, field_names
from waterspout.errors import TopologyError
from waterspout.trident._grouped import GroupedStream
from waterspout.trident._stream import Stream
from waterspout.trident.operations.coercion import as_multi_reducer, typed
from waterspout.trident.operations.contracts import describe
from waterspout.trident.plan.nodes import Join, Merge, MultiReduce

if TYPE_CHECKING:
    from waterspout.trident._topology import TridentTopology

__all__ = ["join_streams", "merge_streams", "multi_reduce_streams"]

_TWO_WAYS = {
    "inner": (False, False),
    "outer": (True, True),
    "left": (False, True),
    "right": (True, False),
}


def merge_streams(
    topology: TridentTopology, streams: Sequence[Any], out: FieldNames | None
) -> Stream:
    """Merge streams whose fields have the same types, in order."""
    sides = _checked(topology, "merge", streams)
    schema = sides[0].schema
    if out is not None:
        names = Schema.parse(out)
        if len(names) != len(schema):
            raise TopologyError(f"merge: out has {len(names)} fields, the streams {len(schema)}")
        schema = names.fill_types(schema.types)
    for number, side in enumerate(sides, 1):
        if side.schema.types != schema.types:
            raise TopologyError(
                f"merge: stream {number} has ({side.schema}), which does not fit ({schema}); "
                "project and convert its fields before"
            )
    return topology.add(Merge, "merge", schema, [side.node for side in sides])


def join_streams(
    topology: TridentTopology,
    args: Sequence[Any],
    out: FieldNames | None,
    how: str | Sequence[str],
    mode: str,
) -> Stream:
    """Join streams on fields of the same types."""
    streams, fields, wanted = _join_arguments(args, out)
    sides = _checked(topology, "join", streams)
    keys = tuple(field_names(names) for names in fields)
    if len(keys) != len(sides):
        raise TopologyError(f"join has {len(sides)} streams, but join fields for {len(keys)}")
    if mode not in ("compact", "preserve"):
        raise TopologyError(f"join: mode is 'compact' or 'preserve', not {mode!r}")
    kinds = [s.schema.select(names, where="join") for s, names in zip(sides, keys, strict=True)]
    for number, (kind, names) in enumerate(zip(kinds, keys, strict=True), 1):
        if not names:
            raise TopologyError("join needs a field of each stream")
        kind.require_keys(where="join")
        if kind.types != kinds[0].types:
            raise TopologyError(
                f"join: the join fields of stream {number} are ({kind}), those of the first "
                f"({kinds[0]}); they must be as many, of the same types"
            )
    preserve = mode == "preserve"
    types: list[str | None] = [] if preserve else list(kinds[0].types)
    for side, names in zip(sides, keys, strict=True):
        types += [kind for name, kind in side.schema if preserve or name not in names]
    output = Schema.parse(wanted)
    if len(output) != len(types):
        raise TopologyError(
            f"join gives {len(types)} fields ({mode}), but out has {len(output)}: "
            f"{', '.join(output.names)}"
        )
    schema, parents = _same_types(output, types), [side.node for side in sides]
    optional = _optional(how, len(sides))
    return topology.add(
        Join, "join", schema, parents, keys=keys, optional=optional, preserve=preserve
    )


def multi_reduce_streams(
    topology: TridentTopology,
    streams: Sequence[Any],
    reducer: Any,
    out: FieldNames,
    fields: Sequence[FieldNames] | None,
) -> Stream:
    """Reduce streams together; grouped streams group by group."""
    where = f"multi_reduce({describe(reducer)})"
    grouped = [s for s in streams if isinstance(s, GroupedStream)]
    if grouped and len(grouped) != len(streams):
        raise TopologyError(f"{where}: either all streams are grouped, or none")
    reducer = as_multi_reducer(reducer, len(streams), where, grouped=bool(grouped))
    sides = _checked(topology, where, [s.to_stream() if grouped else s for s in streams])
    chosen = [s.fields for s in sides] if fields is None else [field_names(f) for f in fields]
    if len(chosen) != len(sides):
        raise TopologyError(f"{where} has {len(sides)} streams, but fields for {len(chosen)}")
    for side, names in zip(sides, chosen, strict=True):
        side.schema.select(names, where=where)
    groups = tuple(g.group_fields for g in grouped) if grouped else None
    output = typed(reducer, Schema.parse(out), Schema(), where)
    schema = output
    if groups is not None:
        kinds = [s.schema.select(g, where=where) for s, g in zip(sides, groups, strict=True)]
        if any(kind.types != kinds[0].types for kind in kinds):
            raise TopologyError(f"{where}: the streams are grouped by fields of different types")
        schema = kinds[0].append(output, where=where)
    return topology.add(
        MultiReduce, where, schema, [side.node for side in sides],
        fields=tuple(chosen), groups=groups, reducer=reducer, out=output,
    )  # fmt: skip


def _checked(topology: TridentTopology, where: str, streams: Sequence[Any]) -> list[Stream]:
    if len(streams) < 2:
        raise TopologyError(f"{where} needs at least two streams")
    for stream in streams:
        if not isinstance(stream, Stream):
            raise TopologyError(f"{where} needs streams, not {stream!r}")
        if stream.topology is not topology:
            raise TopologyError(f"{where} has a stream of another topology")
    return list(streams)


def _join_arguments(
    args: Sequence[Any], out: FieldNames | None
) -> tuple[Sequence[Any], Sequence[FieldNames], FieldNames]:
    rest = list(args)
    if rest and isinstance(rest[0], (list, tuple)):
        streams, fields = rest[0], rest[1] if len(rest) > 1 else ()
        rest = rest[2:]
    else:
        streams, fields = rest[0:4:2], rest[1:4:2]
        rest = rest[4:]
    if rest and out is None:
        out = rest.pop(0)
    if out is None or rest or isinstance(fields, str):
        raise TopologyError(
            "join takes (s1, fields1, s2, fields2, out), or ([streams], [fields], out)"
        )
    return streams, fields, out


def _optional(how: str | Sequence[str], streams: int) -> tuple[bool, ...]:
    """Return for each stream whether it may lack a tuple."""
    if isinstance(how, str):
        if how not in _TWO_WAYS or (how in ("left", "right") and streams != 2):
            raise TopologyError(
                f"join: how is 'inner' or 'outer', for two streams also 'left' or 'right', or one "
                f"of 'inner' and 'outer' for each stream; not {how!r} for {streams} streams"
            )
        return _TWO_WAYS[how] if streams == 2 else (how == "outer",) * streams
    if len(how) != streams or not set(how) <= {"inner", "outer"}:
        raise TopologyError(
            f"join has {streams} streams; how must have 'inner' or 'outer' for each, not {how!r}"
        )
    return tuple(kind == "outer" for kind in how)


def _same_types(output: Schema, types: Sequence[str | None]) -> Schema:
    """Fill in the types; refuse a declared one that is another."""
    filled = output.fill_types(types)
    for (name, found), kind in zip(filled, types, strict=True):
        if found != kind:
            raise TopologyError(f"join: field {name!r} is declared as {found}, but is {kind}")
    return filled
