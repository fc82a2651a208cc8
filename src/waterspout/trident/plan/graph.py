"""A plan as a graph: nodes and states, and what flows between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from waterspout._config import Config
from waterspout.spouts._base import RunsIn
from waterspout.trident.plan.costs import case_name, cases, cost_of
from waterspout.trident.plan.nodes import Node, Query, Update
from waterspout.trident.plan.notes import NodeNotes, notes_of
from waterspout.trident.plan.plan import Phase, Plan
from waterspout.trident.plan.verdicts import verdict_of

__all__ = ["Edge", "Flow", "Graph", "Vertex", "graph_of", "printable"]


class Flow(Enum):
    """What an edge stands for."""

    ROWS = "rows, where they are"
    SHUFFLE = "a shuffle"
    VISIT = "rows within one visit to Python"
    ASK = "a state is asked"
    WRITE = "a state is updated"


@dataclass(frozen=True, slots=True)
class Vertex:
    """A node of the plan, or a state."""

    key: str
    phase: Phase
    title: str
    lines: tuple[str, ...]
    runs_in: RunsIn | None = None
    is_state: bool = False
    is_exact: bool | None = None
    """Of a state that is updated: whether exactly once."""

    shuffle: str | None = None
    """Why, and over how many partitions, the rows on their way in are shuffled."""


@dataclass(frozen=True, slots=True)
class Edge:
    """From one vertex to another."""

    tail: str
    head: str
    flow: Flow


@dataclass(frozen=True, slots=True)
class Graph:
    """What is drawn."""

    name: str
    notes: tuple[str, ...]
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]


def graph_of(plan: Plan, conf: Config) -> Graph:
    """Return the graph of a plan: nodes in the order of the plan, then states."""
    notes = notes_of(plan, conf)
    costs = [
        f"{case_name(plan, conf, case)}: {cost_of(plan, conf, case).text()}"
        for case in cases(plan, conf)
    ]
    vertices = [_node(each) for each in notes.values()]
    vertices += [_state(plan, name) for name in plan.states if _users(plan, name)]
    edges = [
        Edge(_key(parent), _key(node), _flow(notes[parent], notes[node]))
        for node in plan.nodes
        for parent in dict.fromkeys(node.parents)
    ]
    for node in plan.nodes:
        if isinstance(node, Update):
            edges.append(Edge(_key(node), _state_key(node.state), Flow.WRITE))
        elif isinstance(node, Query):
            edges.append(Edge(_state_key(node.state), _key(node), Flow.ASK))
    return Graph(plan.name, tuple(costs), tuple(vertices), tuple(edges))


def printable(text: str) -> str:
    """Return a text of the user's without anything that would not show."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _node(notes: NodeNotes) -> Vertex:
    node = notes.node
    into = [shuffle.text() for shuffle in notes.shuffles if not shuffle.behind]
    fields = ", ".join(name for name, _ in node.schema)
    where, *rest = [note for note in notes.notes() if not note.startswith("shuffle ")] or [""]
    return Vertex(
        key=_key(node),
        phase=notes.phase,
        title=f"{node.number}  {printable(node.title)}",
        lines=tuple(printable(line) for line in (fields, where, *rest) if line),
        runs_in=notes.runs_in,
        shuffle=printable("; ".join(into)) if into else None,
    )


def _state(plan: Plan, name: str) -> Vertex:
    spec = plan.states[name]
    update = plan.updates.get(name)
    exact = None if update is None else verdict_of(plan, update).exact
    promise = {True: "exactly-once", False: "not exactly-once", None: "only read"}[exact]
    spread = "1 partition" if spec.partitions == 1 else f"{spec.partitions} partitions"
    location = spec.factory.location() or type(spec.factory).__name__
    phases = [plan.phases[node] for node in _users(plan, name)]
    return Vertex(
        key=_state_key(name),
        phase=Phase.PROCESSING if Phase.PROCESSING in phases else Phase.COMMIT,
        title=printable(name),
        lines=(printable(location), promise if exact is None else f"{promise}, {spread}"),
        is_state=True,
        is_exact=exact,
    )


def _users(plan: Plan, name: str) -> list[Node]:
    return [n for n in plan.nodes if isinstance(n, (Query, Update)) and n.state == name]


def _flow(parent: NodeNotes, node: NodeNotes) -> Flow:
    behind = any(shuffle.behind for shuffle in parent.shuffles)
    if behind or any(not shuffle.behind for shuffle in node.shuffles):
        return Flow.SHUFFLE
    return Flow.VISIT if parent.node in node.visit else Flow.ROWS


def _key(node: Node) -> str:
    return f"n{node.number}"


def _state_key(name: str) -> str:
    return f"state {name}"
