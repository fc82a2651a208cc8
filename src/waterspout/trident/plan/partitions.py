"""Over how many partitions each group of nodes runs. Pure functions.

A group is what runs partition by partition without a shuffle in between. Its parallelism is the
greatest of its hints. Where the number of partitions shows in the results (an aggregation per
partition, a broadcast) and nobody gave one, it is 1, as in Storm; where it does not, Spark chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from waterspout.state._base import StateKind
from waterspout.trident.operations.contracts import describe
from waterspout.trident.operations.row_updaters import AppendRows
from waterspout.trident.plan.exchange import Exchange
from waterspout.trident.plan.nodes import Aggregate, Node, Repartition, Route, Update, UpdateWith

__all__ = ["PartitionLayout", "root_of", "why_in_one", "widths"]


def root_of(node: Node) -> Node:
    """Return the node that a node's group begins with."""
    while node.keeps_partitions:
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
        if node.shows_partitions:
            shows.add(root)
    found: dict[Node, int | None] = {}
    for root in (node for node in nodes if not node.keeps_partitions):
        before = found[root_of(root.parents[0])] if root.parents else None
        usual = 1 if root in shows else None
        if isinstance(root, Repartition) and root.route is Route.LOCAL_OR_SHUFFLE:
            usual = before or usual
        found[root] = hinted.get(root, usual)
    return found


def why_in_one(update: Update, kind: StateKind | None) -> str | None:
    """Say why a state has to have one partition, if it has to.

    One task owns a key of a map in an attempt. What each task writes of a key is folded in its
    own memory, so of two only one would count. A state of the user's own kind (None) is no map:
    it has partitions of its own.
    """
    updating = update.updating
    if kind is None or not isinstance(updating, UpdateWith):
        return None
    if updating.keys is not None or updating.by_partition:
        return None
    if isinstance(updating.operation, AppendRows):
        return None  # it has no key
    why = getattr(updating.operation, "in_one", "declares no keys")
    return f"{describe(updating.operation)} {why}"


@dataclass(frozen=True)
class PartitionLayout:
    """On how many partitions the rows of a plan's nodes are, while nodes say how they move."""

    widths: Mapping[Node, int | None]
    usual: int
    """Over how many partitions rows go that are only to be spread."""

    by_state: Mapping[Node, Exchange] = field(default_factory=dict)
    """Aggregates whose rows go at once to where a state's tasks will write them."""

    def width_of(self, node: Node) -> int | None:
        """Return over how many partitions a node runs; None: Spark chooses."""
        return self.widths[root_of(node)]

    def is_one(self, node: Node) -> bool:
        """Whether all rows of a node are on one partition, as Spark knows, too."""
        width = self.width_of(node)
        return node.lies_in_one(self) if width is None else width == 1

    def dealt_by_state(self, node: Aggregate) -> Exchange | None:
        """Return the exchange by partition of a state that serves an aggregate, too."""
        return self.by_state.get(node)
