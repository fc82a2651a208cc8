"""Where rows change partitions, why, and over how many. Pure functions.

They say of the compiled DataFrames what tests find there; Spark may still leave a shuffle out
that it can see to be unnecessary, or send a small side of a join to all instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from waterspout.config import Config
from waterspout.trident.plan.native import is_native
from waterspout.trident.plan.nodes import (
    Aggregate,
    Each,
    Join,
    Keep,
    Mapped,
    MultiReduce,
    Node,
    Project,
    Query,
    Repartition,
    Route,
    Scope,
    Update,
)
from waterspout.trident.plan.plan import Plan

__all__ = ["Shuffle", "broadcasts_of", "gathers", "lies_in_one", "shuffles_of", "write_shuffle"]


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Rows go from task to task on their way into a node (`into`), or behind it."""

    node: Node
    why: str
    partitions: int | None
    """None: as many as Spark is set to (`spark.sql.shuffle.partitions`)."""

    into: bool = True

    def text(self) -> str:
        """Return why and over how many partitions."""
        match self.partitions:
            case None:
                return self.why
            case 1:
                return f"{self.why} to 1 partition"
            case many:
                return f"{self.why} over {many} partitions"


def shuffles_of(plan: Plan, node: Node, conf: Config) -> list[Shuffle]:
    """Return the shuffles that a node takes, in order."""
    found: list[Shuffle] = []
    width = plan.width_of(node)
    match node:
        case Repartition(route=route):
            if not _stays(plan, node) and (width != 1 or route is Route.CUSTOM):
                found = [_dealt(node, width, conf)]
        case Aggregate(scope=Scope.BATCH, group=group):
            if not _together(plan, node):
                found = [Shuffle(node, *_by(group))]
        case MultiReduce(groups=groups):
            if groups is not None:
                found = [Shuffle(node, _by(groups[0])[0], width)]
            elif width is not None and width > 1:
                found = [Shuffle(node, "evenly", width)]
        case Join(keys=keys):
            found = [
                Shuffle(node, f"of {parent.number} {_by(names)[0]}", None)
                for parent, names in zip(node.parents, keys, strict=True)
            ]
    return [*found, *_spread(plan, node)]


def write_shuffle(plan: Plan, update: Update) -> Shuffle | None:
    """Return the shuffle to the partitions of a state that tasks write to."""
    spec = plan.states[update.state]
    if spec.factory.driver_only:
        return None
    return Shuffle(update, f"by partition of {spec.name}", spec.partitions)


def broadcasts_of(node: Node) -> int:
    """Return how many joins of a node may send a small side to all tasks, by a job of its own."""
    if not isinstance(node, Join):
        return 0
    count, required = 0, not node.optional[0]
    for optional in node.optional[1:]:
        count += required or not optional  # a full outer join needs both sides sorted
        required = required or not optional
    return count


def gathers(plan: Plan, node: Node) -> bool:
    """Whether a node brings all rows into one task without a shuffle, with all that is before."""
    if plan.widths.get(node) != 1:
        return False
    match node:
        case Repartition(route=route):
            return route is not Route.CUSTOM and not _stays(plan, node)
        case MultiReduce(groups=groups):
            return groups is None
        case Aggregate(scope=Scope.BATCH) | Query():
            return False
    return True


def lies_in_one(plan: Plan, node: Node) -> bool:
    """Whether all rows of a node are on one partition, as Spark knows, too."""
    width = plan.width_of(node)
    if width is not None:
        return width == 1
    match node:
        case Each() | Keep() | Mapped() | Project():
            return lies_in_one(plan, node.parents[0])
        case Aggregate(scope=Scope.BATCH, group=group):
            return group is None or lies_in_one(plan, node.parents[0])
    return False


def _stays(plan: Plan, node: Repartition) -> bool:
    """Whether a repartitioning leaves all rows where they are."""
    width = plan.width_of(node)
    may_stay = width is None or width == plan.width_of(node.parents[0])
    return node.route is Route.IDENTITY or (node.route is Route.LOCAL_OR_SHUFFLE and may_stay)


def _dealt(node: Repartition, width: int | None, conf: Config) -> Shuffle:
    match node.route:
        case Route.BY_FIELDS:
            return Shuffle(node, _by(node.fields)[0], width)
        case Route.BROADCAST:
            return Shuffle(node, "every row", width)
        case Route.GLOBAL | Route.BATCH_GLOBAL:
            return Shuffle(node, "all rows to one", width)
        case Route.CUSTOM:
            return Shuffle(node, "by the grouping", width)
    return Shuffle(node, "evenly", width or conf.state_partitions)


def _by(group: tuple[str, ...] | None) -> tuple[str, int | None]:
    return ("all rows", 1) if group is None else (f"by {', '.join(group)}", None)


def _spread(plan: Plan, node: Node) -> list[Shuffle]:
    """Return the shuffle behind the first node of a group that is to have so many partitions."""
    if isinstance(node, Query) and plan.states[node.state].factory.driver_only:
        # Its rows come back from the driver.
        width = plan.width_of(node)
    elif isinstance(node, (Repartition, MultiReduce)) or node not in plan.widths:
        return []
    else:
        width = plan.widths[node]
    if width is None or width == 1:
        return []
    return [Shuffle(node, "evenly", width, into=False)]


def _together(plan: Plan, node: Aggregate) -> bool:
    """Whether all rows of a group are on one partition already."""
    before = node.parents[0]
    if lies_in_one(plan, before):
        return True
    if node.group is None or not is_native(node):
        return False
    while isinstance(before, (Each, Keep, Project)) and is_native(before):
        before = before.parents[0]
    if plan.width_of(before) is not None:
        return False
    match before:
        case Repartition(route=Route.BY_FIELDS, fields=fields):
            return set(fields) <= set(node.group)
        case Aggregate(scope=Scope.BATCH, group=group) if is_native(before) and group:
            return set(group) <= set(node.group)
    return False
