"""Which fields of a node anybody reads: the others need not be carried along. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waterspout.schema import Schema
from waterspout.trident.plan.nodes import Node

__all__ = ["kept_fields"]


def kept_fields(
    nodes: Sequence[Node], children: Mapping[Node, Sequence[Node]]
) -> dict[Node, Schema]:
    """Return, for each node, those of its fields that are read behind it, in their order.

    Only what runs in Python leaves fields out; in the JVM Spark does so by itself.
    """
    read: dict[Node, set[str]] = {}
    for node in reversed(nodes):
        names = node.schema.names
        wanted: set[str] = set()
        for child in children[node]:
            found = child.reads(read[child])
            wanted.update(names if found is None else found)
        # A row without any field would have no length.
        read[node] = set(names) if not children[node] else wanted or set(names[:1])
    return {
        node: Schema(tuple(field for field in node.schema if field[0] in read[node]))
        for node in nodes
    }
