"""A plan as a graph: nodes and states, what flows between them, and the same in dot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from waterspout.config import Config
from waterspout.trident.plan.costs import case_name, cases, cost_of
from waterspout.trident.plan.facts import Facts, Place, facts_of
from waterspout.trident.plan.nodes import Node, Query, Update
from waterspout.trident.plan.plan import Phase, Plan

__all__ = ["Edge", "Flow", "Graph", "Vertex", "graph_of", "printable", "to_dot"]


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
    place: Place | None = None
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
    facts = facts_of(plan, conf)
    costs = [
        f"{case_name(plan, conf, case)}: {cost_of(plan, conf, case).text()}"
        for case in cases(plan, conf)
    ]
    vertices = [_node(each) for each in facts.values()]
    vertices += [_state(plan, name) for name in plan.states if _users(plan, name)]
    edges = [
        Edge(_key(parent), _key(node), _flow(facts[parent], facts[node]))
        for node in plan.nodes
        for parent in dict.fromkeys(node.parents)
    ]
    for node in plan.nodes:
        if isinstance(node, Update):
            edges.append(Edge(_key(node), _state_key(node.state), Flow.WRITE))
        elif isinstance(node, Query):
            edges.append(Edge(_state_key(node.state), _key(node), Flow.ASK))
    return Graph(plan.name, tuple(costs), tuple(vertices), tuple(edges))


def to_dot(plan: Plan, conf: Config) -> str:
    """Return the plan in the language of Graphviz."""
    graph = graph_of(plan, conf)
    label = "\n".join([f"topology {graph.name}", *graph.notes])
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        f"  graph [label={_quoted(label)}, labelloc=t, rankdir=TB, fontname=Helvetica];",
        "  node [fontname=Helvetica, fontsize=11, shape=box, style=filled];",
        "  edge [fontname=Helvetica, fontsize=10];",
    ]
    for phase in Phase:
        inside = [vertex for vertex in graph.vertices if vertex.phase is phase]
        if inside:
            lines.append(f"  subgraph cluster_{phase.value} {{")
            lines.append(f"    graph [label={_quoted(f'{phase.value} phase')}, style=dashed];")
            lines += [f"    {_dot_vertex(vertex)}" for vertex in inside]
            lines.append("  }")
    titles = {vertex.key: vertex for vertex in graph.vertices}
    lines += [f"  {_dot_edge(edge, titles[edge.head])}" for edge in graph.edges]
    return "\n".join([*lines, "}"])


def printable(text: str) -> str:
    """Return a text of the user's without anything that would not show."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


_COLOURS = {
    Place.JVM: "#cfe8d5",
    Place.PYTHON: "#ffe3a8",
    Place.DRIVER: "#d9d6f5",
    Place.EITHER: "#ecd9ee",
    None: "#eeeeee",
}
_STYLES = {
    Flow.ROWS: "",
    Flow.SHUFFLE: 'style=bold, color="#c2410c", penwidth=2, arrowhead=vee',
    Flow.VISIT: 'color="#b7791f", penwidth=2',
    Flow.ASK: "style=dashed, constraint=false",
    Flow.WRITE: "penwidth=2",
}


def _node(facts: Facts) -> Vertex:
    node = facts.node
    into = [shuffle.text() for shuffle in facts.shuffles if shuffle.into]
    fields = ", ".join(name for name, _ in node.schema)
    where, *rest = [note for note in facts.notes() if not note.startswith("shuffle ")] or [""]
    return Vertex(
        key=_key(node),
        phase=facts.phase,
        title=f"{node.number}  {printable(node.title)}",
        lines=tuple(printable(line) for line in (fields, where, *rest) if line),
        place=facts.place,
        shuffle=printable("; ".join(into)) if into else None,
    )


def _state(plan: Plan, name: str) -> Vertex:
    spec = plan.states[name]
    update = plan.updates.get(name)
    exact = None if update is None else plan.guarantee(update)[0]
    promise = {True: "exactly-once", False: "not exactly-once", None: "only read"}[exact]
    parts = "1 partition" if spec.partitions == 1 else f"{spec.partitions} partitions"
    place = spec.factory.location() or type(spec.factory).__name__
    phases = [plan.phases[node] for node in _users(plan, name)]
    return Vertex(
        key=_state_key(name),
        phase=Phase.PROCESSING if Phase.PROCESSING in phases else Phase.COMMIT,
        title=printable(name),
        lines=(printable(place), promise if exact is None else f"{promise}, {parts}"),
        is_state=True,
        is_exact=exact,
    )


def _users(plan: Plan, name: str) -> list[Node]:
    return [n for n in plan.nodes if isinstance(n, (Query, Update)) and n.state == name]


def _flow(parent: Facts, node: Facts) -> Flow:
    behind = any(not shuffle.into for shuffle in parent.shuffles)
    if behind or any(shuffle.into for shuffle in node.shuffles):
        return Flow.SHUFFLE
    return Flow.VISIT if parent.node in node.visit else Flow.ROWS


def _key(node: Node) -> str:
    return f"n{node.number}"


def _state_key(name: str) -> str:
    return f"state {name}"


def _dot_vertex(vertex: Vertex) -> str:
    label = "\n".join([vertex.title, *vertex.lines])
    shape = "shape=cylinder, " if vertex.is_state else ""
    colour = _COLOURS[vertex.place]
    if vertex.is_state:
        colour = "#f6c6c6" if vertex.is_exact is False else "#cfe0fc"
    return f'{_quoted(vertex.key)} [{shape}fillcolor="{colour}", label={_quoted(label)}];'


def _dot_edge(edge: Edge, head: Vertex) -> str:
    style = _STYLES[edge.flow]
    if edge.flow is Flow.SHUFFLE and head.shuffle is not None:
        style += f", label={_quoted(f'shuffle {head.shuffle}')}"
    ends = f"{_quoted(edge.tail)} -> {_quoted(edge.head)}"
    return f"{ends} [{style}];" if style else f"{ends};"


def _quoted(text: str) -> str:
    """Return a string of dot; in it a backslash would begin an escape of Graphviz's own."""
    lines = [printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    return '"' + "\\n".join(lines) + '"'
