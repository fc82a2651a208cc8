"""Which fields of a node anybody reads: the others need not be carried along. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waterspout.schema import Schema
from waterspout.trident.operations.aggregators import Count
from waterspout.trident.plan.native import is_native
from waterspout.trident.plan.nodes import Aggregate, Each, Keep, Mapped, Node, Project

__all__ = ["kept_fields"]


def kept_fields(
    nodes: Sequence[Node], children: Mapping[Node, Sequence[Node]]
) -> dict[Node, Schema]:
    """Return, for each node, those of its fields that are read behind it, in their order.

    Only what runs in Python leaves fields out; in the JVM Spark does so by itself.
    """
    read: dict[Node, set[str]] = {}
    for node in reversed(nodes):
        everything = set(node.schema.names)
        wanted = {name for child in children[node] for name in _reads(child, node, read[child])}
        # A row without any field would have no length.
        read[node] = everything if not children[node] else wanted or set(node.schema.names[:1])
    return {
        node: Schema(tuple(field for field in node.schema if field[0] in read[node]))
        for node in nodes
    }


def _reads(child: Node, node: Node, behind: set[str]) -> set[str]:
    """Return the fields of `node` that a child reads, if of its own `behind` are read."""
    everything = set(node.schema.names)
    if is_native(child) and not isinstance(child, (Aggregate, Project)):
        return everything  # an expression may name any field
    match child:
        case Each(fields=fields, out=out):
            return set(fields) | (behind - set(out.names))
        case Keep(fields=fields):
            return set(fields) | behind
        case Mapped(fields=fields):
            return set(fields)
        case Project():
            return behind
        case Aggregate() if is_native(child):
            return _read_in_the_jvm(child)
        case Aggregate():
            return set(child.inputs)
    return everything


def _read_in_the_jvm(node: Aggregate) -> set[str]:
    """Return the fields that Spark's own aggregates look at; a count looks at none."""
    looking = [part for part in node.parts if type(part.aggregator) is not Count]
    return {*(node.group or ()), *(field for part in looking for field in part.fields)}
