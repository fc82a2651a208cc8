"""Over how many partitions each part of a plan runs. Pure functions.

A group is what runs partition by partition without a shuffle in between. Its parallelism is the
greatest of its hints. Where the number of partitions shows in the results (an aggregation per
partition, a broadcast) and nobody gave one, it is 1, as in Storm; where it does not, Spark chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waterspout.trident.plan.nodes import (
    Aggregate,
    Each,
    Isolated,
    Keep,
    Mapped,
    MultiReduce,
    Node,
    Project,
    Query,
    Repartition,
    Route,
    Scope,
    SortedOut,
    Update,
)

__all__ = ["root_of", "widths"]

_SHOWS = (Route.BROADCAST, Route.CUSTOM, Route.GLOBAL, Route.BATCH_GLOBAL)


def root_of(node: Node) -> Node:
    """Return the node that a node's group begins with."""
    while _stays(node):
        node = node.parents[0]
    return node


def widths(nodes: Sequence[Node], hints: Mapping[int, int]) -> dict[Node, int | None]:
    """Return for each group, by its first node, its number of partitions; None: any number."""
    hinted: dict[Node, int] = {}
    shows: set[Node] = set()
    for node in nodes:
        root = root_of(node)
        if node.number in hints:
            hinted[root] = max(hinted.get(root, 1), hints[node.number])
        if _shows_partitions(node):
            shows.add(root)
    found: dict[Node, int | None] = {}
    for root in (node for node in nodes if not _stays(node)):
        before = found[root_of(root.parents[0])] if root.parents else None
        usual = 1 if root in shows else None
        if isinstance(root, Repartition) and root.route is Route.LOCAL_OR_SHUFFLE:
            usual = before or usual
        found[root] = hinted.get(root, usual)
    return found


def _stays(node: Node) -> bool:
    """Whether a node works on the partitions of the node before it."""
    if isinstance(node, Aggregate):
        return node.scope is not Scope.BATCH
    if isinstance(node, Repartition):
        return node.route is Route.IDENTITY
    rows = (Each, Mapped, Keep, Project, Isolated, SortedOut)
    return isinstance(node, (*rows, Query, Update))


def _shows_partitions(node: Node) -> bool:
    match node:
        case Aggregate(scope=scope):
            return scope is Scope.PARTITION
        case Repartition(route=route):
            return route in _SHOWS
        case MultiReduce(groups=groups):
            return groups is None
    return False
