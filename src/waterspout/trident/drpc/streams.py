"""The DRPC streams of a topology: which nodes each has, and where it runs. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from waterspout.errors import TopologyError
from waterspout.trident.drpc.nodes import DrpcSource
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.plan.nodes import Node, Query, StaticTable, Transform

__all__ = ["DrpcStream", "drpc_source", "refuse_mixed", "refuse_to_keep", "split", "why_spark"]

TABLE_MAX_ROWS = 10_000
"""A table that is joined in the driver is gone through for each batch of requests."""


@dataclass(frozen=True)
class DrpcStream:
    """A function: its nodes in the order in which they were made, and the one that answers.

    As in Storm, that is the node that was made last.
    """

    source: DrpcSource
    nodes: tuple[Node, ...]

    @property
    def function(self) -> str:
        """What clients call it."""
        return self.source.function

    @property
    def result(self) -> Node:
        """The node whose tuples are the answer."""
        return self.nodes[-1]

    @property
    def states(self) -> list[str]:
        """The states that it asks, in order."""
        return list(dict.fromkeys(node.state for node in self.nodes if isinstance(node, Query)))


def drpc_source(node: Node) -> DrpcSource | None:
    """Return the requests that a node follows from; None: it follows from spouts, or a table."""
    seen: set[Node] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, DrpcSource):
            return one
        if one not in seen:
            seen.add(one)
            todo += one.parents
    return None


def split(nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[DrpcStream, ...]]:
    """Return the nodes of the batches, and the DRPC streams with theirs.

    A table belongs to what it is joined with.
    """
    owner: dict[Node, DrpcSource | None] = {node: drpc_source(node) for node in nodes}
    for node in nodes:
        for parent in node.parents:
            if isinstance(parent, StaticTable):
                owner[parent] = owner[node]
    streams = [
        DrpcStream(source, tuple(node for node in nodes if owner[node] is source))
        for source in nodes
        if isinstance(source, DrpcSource)
    ]
    return tuple(node for node in nodes if owner[node] is None), tuple(streams)


def refuse_mixed(parents: Iterable[Node], where: str) -> None:
    """Refuse to bring requests together with batches, or with the requests of another function."""
    streams = [parent for parent in parents if not isinstance(parent, StaticTable)]
    sources = dict.fromkeys(drpc_source(parent) for parent in streams)
    if len(sources) < 2:
        return
    functions = [f"{source.function!r}" for source in sources if source is not None]
    if None in sources:
        raise TopologyError(
            f"{where}: a DRPC stream ({functions[0]}) cannot be joined or merged with streams of "
            "spouts: a request is not part of their batches. Keep what the spouts bring in a "
            "state, and ask that with state_query."
        )
    raise TopologyError(
        f"{where}: the DRPC streams {' and '.join(functions)} cannot be joined or merged: each "
        "request is answered by itself. Branches of one of them can be."
    )


def refuse_to_keep(node: Node, what: str) -> None:
    """Refuse to change a state on a DRPC stream (docs/decisions/0033)."""
    source = drpc_source(node)
    if source is not None:
        raise TopologyError(
            f"{what} is not possible on the DRPC stream {source.function!r}: a request has no "
            "txid, is never replayed, and may have been given up by its client, so that nobody "
            "could say whether its update counts once. Send what is to be kept to a source that a "
            "spout reads; a DRPC stream asks states with state_query."
        )


def why_spark(stream: DrpcStream, hints: Mapping[int, int]) -> str | None:
    """Say why requests need a Spark job; None: they run in the driver."""
    for node in stream.nodes:
        if isinstance(node, Transform):
            return f"{node.number} {node.title} is a function of DataFrames"
        if any(map(is_expression, node.operations)):
            return f"{node.number} {node.title} is a Spark expression"
        if isinstance(node, StaticTable):
            if not isinstance(node.table, pa.Table):
                return f"{node.number} {node.title} is a DataFrame"
            if node.table.num_rows > TABLE_MAX_ROWS:
                rows = f"{node.table.num_rows:,} rows"
                return f"{node.number} {node.title} has {rows}, more than {TABLE_MAX_ROWS:,}"
        if hints.get(node.number, 1) > 1:
            return f"{node.number} {node.title} is to run on {hints[node.number]} partitions"
    return None
