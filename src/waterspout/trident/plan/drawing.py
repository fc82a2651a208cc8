"""A plan as a drawing: in the language of Mermaid, or in that of Graphviz."""

from __future__ import annotations

import json
from collections.abc import Sequence

from waterspout._config import Config
from waterspout.spouts._base import RunsIn
from waterspout.trident.plan.graph import Edge, Flow, Graph, Vertex, graph_of, printable
from waterspout.trident.plan.plan import Phase, Plan

__all__ = ["to_dot", "to_mermaid"]

_COLOURS = {
    "jvm": "#cfe8d5",
    "python": "#ffe3a8",
    "driver": "#d9d6f5",
    "either": "#ecd9ee",
    "plain": "#eeeeee",
    "state": "#cfe0fc",
    "weak": "#f6c6c6",
}
_CLASSES = {
    RunsIn.JVM: "jvm",
    RunsIn.PYTHON: "python",
    RunsIn.DRIVER: "driver",
    RunsIn.EITHER: "either",
    None: "plain",
}
_SHUFFLE, _VISIT = "#c2410c", "#b7791f"
_DOT_STYLES = {
    Flow.ROWS: "",
    Flow.SHUFFLE: f'style=bold, color="{_SHUFFLE}", penwidth=2, arrowhead=vee',
    Flow.VISIT: f'color="{_VISIT}", penwidth=2',
    Flow.ASK: "style=dashed, constraint=false",
    Flow.WRITE: "penwidth=2",
}
_ARROWS = {
    Flow.ROWS: "-->",
    Flow.SHUFFLE: "==>",
    Flow.VISIT: "-->",
    Flow.ASK: "-.->",
    Flow.WRITE: "==>",
}


def to_mermaid(plan: Plan, conf: Config) -> str:
    """Return the plan as a flowchart of Mermaid, which GitHub and many editors show."""
    graph = graph_of(plan, conf)
    names = _mermaid_names(graph)
    lines = [
        "---",
        f"title: {json.dumps(printable(f'topology {graph.name}'), ensure_ascii=False)}",
        "---",
        "flowchart TB",
        f"  costs[{_mermaid_text(graph.notes)}]:::plain",
    ]
    for phase in Phase:
        inside = [vertex for vertex in graph.vertices if vertex.phase is phase]
        if inside:
            lines.append(f'  subgraph {phase.value}["{phase.value} phase"]')
            lines += [f"    {names[vertex.key]}{_mermaid_box(vertex)}" for vertex in inside]
            lines.append("  end")
    heads = {vertex.key: vertex for vertex in graph.vertices}
    for edge in graph.edges:
        why = _reason(edge, heads[edge.head])
        label = "" if why is None else f"|{_mermaid_text([why])}|"
        lines.append(f"  {names[edge.tail]} {_ARROWS[edge.flow]}{label} {names[edge.head]}")
    for flow, colour in ((Flow.SHUFFLE, _SHUFFLE), (Flow.VISIT, _VISIT)):
        edges = [str(i) for i, edge in enumerate(graph.edges) if edge.flow is flow]
        if edges:
            lines.append(f"  linkStyle {','.join(edges)} stroke:{colour},stroke-width:3px")
    used = {"plain", *(_class_of(vertex) for vertex in graph.vertices)}
    lines += [
        f"  classDef {name} fill:{colour},stroke:#6b7486,color:#1f2430"
        for name, colour in _COLOURS.items()
        if name in used
    ]
    return "\n".join(lines) + "\n"


def to_dot(plan: Plan, conf: Config) -> str:
    """Return the plan in the language of Graphviz."""
    graph = graph_of(plan, conf)
    label = "\n".join([f"topology {graph.name}", *graph.notes])
    lines = [
        f"digraph {_dot_text(graph.name)} {{",
        f"  graph [label={_dot_text(label)}, labelloc=t, rankdir=TB, fontname=Helvetica];",
        "  node [fontname=Helvetica, fontsize=11, shape=box, style=filled];",
        "  edge [fontname=Helvetica, fontsize=10];",
    ]
    for phase in Phase:
        inside = [vertex for vertex in graph.vertices if vertex.phase is phase]
        if inside:
            lines.append(f"  subgraph cluster_{phase.value} {{")
            lines.append(f"    graph [label={_dot_text(f'{phase.value} phase')}, style=dashed];")
            lines += [f"    {_dot_vertex(vertex)}" for vertex in inside]
            lines.append("  }")
    titles = {vertex.key: vertex for vertex in graph.vertices}
    lines += [f"  {_dot_edge(edge, titles[edge.head])}" for edge in graph.edges]
    return "\n".join([*lines, "}"])


def _class_of(vertex: Vertex) -> str:
    if vertex.is_state:
        return "weak" if vertex.is_exact is False else "state"
    return _CLASSES[vertex.runs_in]


def _reason(edge: Edge, head: Vertex) -> str | None:
    """Return what stands at an edge: why rows are shuffled on their way."""
    shuffled = edge.flow is Flow.SHUFFLE and head.shuffle is not None
    return f"shuffle {head.shuffle}" if shuffled else None


def _mermaid_names(graph: Graph) -> dict[str, str]:
    """Return a word for each vertex: the name of a state may hold anything."""
    states = [vertex.key for vertex in graph.vertices if vertex.is_state]
    words = {vertex.key: vertex.key for vertex in graph.vertices}
    return words | {key: f"s{number}" for number, key in enumerate(states, start=1)}


def _mermaid_box(vertex: Vertex) -> str:
    text = _mermaid_text([vertex.title, *vertex.lines])
    box = f"[({text})]" if vertex.is_state else f"[{text}]"
    return f"{box}:::{_class_of(vertex)}"


def _mermaid_text(lines: Sequence[str]) -> str:
    """Return a string of Mermaid; whatever might mean something to it is written as a number."""
    safe = [
        "".join(c if c.isalnum() or c in " _-.,()/=" else f"#{ord(c)};" for c in printable(line))
        for line in lines
    ]
    return '"' + "<br/>".join(safe) + '"'


def _dot_vertex(vertex: Vertex) -> str:
    label = "\n".join([vertex.title, *vertex.lines])
    shape = "shape=cylinder, " if vertex.is_state else ""
    colour = _COLOURS[_class_of(vertex)]
    return f'{_dot_text(vertex.key)} [{shape}fillcolor="{colour}", label={_dot_text(label)}];'


def _dot_edge(edge: Edge, head: Vertex) -> str:
    style = _DOT_STYLES[edge.flow]
    why = _reason(edge, head)
    if why is not None:
        style += f", label={_dot_text(why)}"
    ends = f"{_dot_text(edge.tail)} -> {_dot_text(edge.head)}"
    return f"{ends} [{style}];" if style else f"{ends};"


def _dot_text(text: str) -> str:
    """Return a string of dot; in it a backslash would begin an escape of Graphviz's own."""
    lines = [printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    return '"' + "\\n".join(lines) + '"'
