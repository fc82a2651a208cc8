"""A whole plan: its nodes, its states, and which phase each node belongs to. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.state._base import Risk, StateFactory
from waterspout.trident.drpc.streams import DrpcStream
from waterspout.trident.plan.nodes import (
    Aggregate,
    Node,
    Query,
    Scope,
    Source,
    Update,
)
from waterspout.trident.plan.partitions import root_of, widths

__all__ = [
    "Finisher",
    "Phase",
    "Plan",
    "Shape",
    "StateSpec",
    "ancestors",
]


class Shape(Enum):
    """How a topology uses a state."""

    MAP = "map"
    SNAPSHOT = "snapshot"
    ROWS = "rows"
    OWN = "own"


class Finisher(Protocol):
    """Makes what a reader sees of a value of what is kept."""

    def finish(self, value: Any) -> Any:
        """Return the value as a reader sees it; never called with None."""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A state of the topology: its recipe, and over how many partitions it is spread."""

    name: str
    factory: StateFactory
    partitions: int
    shape: Shape
    static: bool = False
    hidden: bool = False
    """Kept for the topology's own use; may come and go while the topology lives."""

    asked: Risk | None = None
    """What its store was found to put at risk, if it has been asked."""

    finisher: Finisher | None = None
    """Makes what a reader sees of what is kept, where that is something else."""

    @property
    def risk(self) -> Risk | None:
        """What makes the state not exactly-once, whatever it is fed with, if anything does."""
        return self.asked or self.factory.risk

    def identity(self) -> dict[str, Any]:
        """Return what must not change while the topology lives."""
        return {**self.factory.identity(), "partitions": self.partitions}


class Phase(Enum):
    """When a node runs."""

    PROCESSING = "processing"
    COMMIT = "commit"


@dataclass(frozen=True)
class Plan:
    """The nodes in the order in which they were made, which is topological."""

    name: str
    nodes: tuple[Node, ...]
    states: Mapping[str, StateSpec]
    hints: Mapping[int, int]
    recomputes: bool = False
    """Whether the engine may compute a part of a batch anew within an attempt, unnoticed."""

    calls: tuple[DrpcStream, ...] = ()
    """What answers requests, beside the batches; its nodes are not among `nodes`."""

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The spouts' nodes by spout id."""
        return {node.spout_id: node for node in self.nodes if isinstance(node, Source)}

    @cached_property
    def updates(self) -> dict[str, Update]:
        """The update of every state that is updated here."""
        return {node.state: node for node in self.nodes if isinstance(node, Update)}

    @property
    def pins_batches(self) -> bool:
        """Whether a state that is updated needs the same rows in each attempt that commits."""
        return any(self.states[name].factory.pins_batches for name in self.updates)

    @cached_property
    def phases(self) -> dict[Node, Phase]:
        """The phase of every node.

        An update, all that follows from it, and a query on a state that is updated here run in
        the commit phase; everything else can run while other batches commit.
        """
        phases: dict[Node, Phase] = {}
        for node in self.nodes:
            late = isinstance(node, (Update, Query)) and node.state in self.updates
            late = late or any(phases[parent] is Phase.COMMIT for parent in node.parents)
            phases[node] = Phase.COMMIT if late else Phase.PROCESSING
        return phases

    @cached_property
    def children(self) -> dict[Node, list[Node]]:
        """The nodes that read each node."""
        found: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for parent in node.parents:
                found[parent].append(node)
        return found

    @cached_property
    def kept(self) -> dict[Node, Schema]:
        """The fields of each node that are read behind it, in their order.

        Only what runs in Python leaves fields out; in the JVM Spark does so by itself.
        """
        read: dict[Node, set[str]] = {}
        for node in reversed(self.nodes):
            names = node.schema.names
            wanted: set[str] = set()
            for child in self.children[node]:
                found = child.reads(read[child])
                wanted.update(names if found is None else found)
            # A row without any field would have no length.
            read[node] = set(names) if not self.children[node] else wanted or set(names[:1])
        return {
            node: Schema(tuple(field for field in node.schema if field[0] in read[node]))
            for node in self.nodes
        }

    @cached_property
    def widths(self) -> dict[Node, int | None]:
        """The number of partitions of each group, by its first node; None: Spark chooses."""
        return widths(self.nodes, self.hints)

    def width_of(self, node: Node) -> int | None:
        """Return over how many partitions a node runs; None: Spark chooses."""
        return self.widths[root_of(node)]

    def gives_everywhere(self, node: Node) -> bool:
        """Whether each partition of a node's group gives something, an empty one too."""
        root = root_of(node)
        return any(
            isinstance(one, Aggregate) and one.scope is Scope.PARTITION and root_of(one) is root
            for one in self.nodes
        )

    @cached_property
    def staged(self) -> list[Node]:
        """What the processing phase leaves: inputs of the commit phase, and loose ends."""
        return [
            node
            for node in self.nodes
            if self.phases[node] is Phase.PROCESSING
            and (
                not self.children[node]
                or any(self.phases[child] is Phase.COMMIT for child in self.children[node])
            )
        ]

    @cached_property
    def shared(self) -> set[Node]:
        """Nodes that several nodes read: computed once, not once per reader.

        Not so a hidden source, whose few rows are in the driver.
        """
        hidden = {source for source in self.sources.values() if source.hidden}
        return {node for node in self.nodes if len(self.children[node]) > 1} - hidden

    @cached_property
    def commit_order(self) -> list[Node]:
        """The nodes of the commit phase in the order in which they run.

        A query on a state runs before the state is updated, unless it follows from the update:
        it sees exactly the batches before its own.
        """
        late = [node for node in self.nodes if self.phases[node] is Phase.COMMIT]
        before: dict[Node, set[Node]] = {n: {p for p in n.parents if p in late} for n in late}
        for update in late:
            if isinstance(update, Update):
                for query in late:
                    asks = isinstance(query, Query) and query.state == update.state
                    if asks and update not in ancestors(query):
                        before[update].add(query)
        order: list[Node] = []
        while len(order) < len(late):
            ready = [n for n in late if n not in order and before[n] <= set(order)]
            if not ready:
                raise TopologyError(_in_a_circle(n for n in late if n not in order))
            order.append(ready[0])
        return order

    def require_order(self) -> None:
        """Refuse a plan whose commit phase has no order."""
        _ = self.commit_order

    def require_partitions(self) -> None:
        """Refuse a query that would not find the partitions of a user's own kind of state."""
        for node in self.nodes:
            if not isinstance(node, Query) or self.states[node.state].shape is not Shape.OWN:
                continue
            has, width = self.states[node.state].partitions, self.width_of(node)
            if has not in (1, width):
                raise TopologyError(
                    f"{node.title} asks {node.state}, which has {has} partitions, each with its "
                    "own answers; bring the tuples to them as the update does, with "
                    f"parallelism_hint({has})"
                )

    def fingerprint(self) -> dict[str, Any]:
        """Return what is compared with the run before: spouts and states, not user code."""
        spouts = {
            f"spout {i}": dict(s.spout.identity()) for i, s in self.sources.items() if not s.hidden
        }
        states = {
            f"state {spec.name}": spec.identity()
            for spec in self.states.values()
            if not spec.static and not spec.hidden
        }
        for name, update in self.updates.items():
            if getattr(update.updating, "by_partition", False) and f"state {name}" in states:
                states[f"state {name}"]["by_partition"] = True
        return {**spouts, **states}


def ancestors(node: Node) -> list[Node]:
    """Return all nodes that a node follows from."""
    found: dict[Node, None] = {}
    todo = list(node.parents)
    while todo:
        parent = todo.pop()
        if parent not in found:
            found[parent] = None
            todo += parent.parents
    return list(found)


def _in_a_circle(left: Iterable[Node]) -> str:
    asked = [f"{node.title} (of {node.state})" for node in left if isinstance(node, Query)]
    return (
        "queries and updates of states go round in a circle: a query sees the batches before its "
        "own, so it comes before the update of its state, yet each of these follows from an update "
        f"that comes after another of them: {', '.join(asked)}. Ask one of the states before the "
        "updates."
    )
