"""The graph of a topology as a Mermaid diagram: what flows on edges, who is busy on nodes.

Plain data in, text out. Nothing of a topology gets into the diagram's language: names are escaped,
and nodes go by numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from waterspout.ui._words import number, rate

__all__ = ["BUSY", "FULL", "LOOK", "diagram", "load_of"]

Facts = Mapping[str, Any]

BUSY, FULL = 0.5, 0.8
"""From these capacities on a component is coloured: half its time, and hardly any left."""

LOOK: Mapping[str, Any] = {
    "theme": "base",
    "securityLevel": "strict",
    "fontFamily": "inherit",
    "flowchart": {"useMaxWidth": False, "nodeSpacing": 28, "rankSpacing": 46, "padding": 10},
    "themeVariables": {
        "fontSize": "14px",
        "lineColor": "#7b8794",
        "edgeLabelBackground": "#dde5ea",
        "primaryTextColor": "#1d2a32",
        "tertiaryTextColor": "#1d2a32",
    },
}
# Pale grounds with dark letters: to be read on a light page and on a dark one.
_CLASSES = {
    "spout": "fill:#cfe6f2,stroke:#0f5c7a,stroke-width:2px,color:#1d2a32",
    "calm": "fill:#d9f0e3,stroke:#1f7a4d,color:#1d2a32",
    "busy": "fill:#ffe9b8,stroke:#b26a00,stroke-width:2px,color:#1d2a32",
    "full": "fill:#ffd2cc,stroke:#b3261e,stroke-width:3px,color:#1d2a32",
    "plain": "fill:#eceff1,stroke:#607d8b,color:#1d2a32",
    "state": "fill:#e6dcf3,stroke:#5e3b91,color:#1d2a32",
}
_SHAPES = {"spout": ("([", "])"), "state": ("[(", ")]")}


def diagram(graph: Facts, stats: Facts, *, down: bool = False) -> tuple[str, list[str]]:
    """Return the diagram, and the ids of its nodes by their numbers in it.

    It goes from left to right, or `down` where there is no room for that.
    """
    nodes = list(graph.get("nodes") or ())
    numbers = {node["id"]: position for position, node in enumerate(nodes)}
    counted = _counted(stats)
    lines = [f"flowchart {'TB' if down else 'LR'}"]
    for node in nodes:
        row = _row_of(node, counted)
        begin, end = _SHAPES.get(node["kind"], ("[", "]"))
        text = "<br/>".join(_escaped(part) for part in _texts(node, row))
        lines.append(f'  n{numbers[node["id"]]}{begin}"{text}"{end}:::{load_of(node, row)}')
    rates = _rates(stats)
    flows = _flows(nodes, graph.get("edges") or (), counted)
    for edge in graph.get("edges") or ():
        if edge["source"] in numbers and edge["target"] in numbers:
            tail, head = numbers[edge["source"]], numbers[edge["target"]]
            label = _label(edge, _rate_of(edge, rates, flows, nodes[head], counted))
            arrow = f'-- "{_escaped(label)}" -->' if label else "-->"
            lines.append(f"  n{tail} {arrow} n{head}")
    lines += [f"  classDef {name} {look}" for name, look in _CLASSES.items()]
    return "\n".join(lines), [node["id"] for node in nodes]


def load_of(node: Facts, row: Facts) -> str:
    """Return how a node is coloured: by what it is, and a bolt by its capacity.

    >>> [load_of({"kind": "bolt"}, {"capacity": c}) for c in (None, 0.49, 0.5, 0.8)]
    ['plain', 'calm', 'busy', 'full']
    """
    if node["kind"] in ("spout", "state"):
        return str(node["kind"])
    capacity = row.get("capacity")
    if capacity is None:
        return "plain"
    return "full" if capacity >= FULL else "busy" if capacity >= BUSY else "calm"


def _counted(stats: Facts) -> dict[str, Facts]:
    tables: Sequence[str] = ("states", "spouts", "bolts")
    return {row["id"]: row for table in tables for row in stats.get(table) or ()}


def _row_of(node: Facts, counted: Mapping[str, Facts]) -> Facts:
    """Return what was counted of a node: under its id, or under the name that is in its label."""
    id = str(node["id"])
    for name in (id, id.removeprefix("state "), str(node.get("label", ""))):
        if name in counted:
            return counted[name]
    return {}


def _texts(node: Facts, row: Facts) -> list[str]:
    parallelism = node.get("parallelism")
    tasks = f" x {parallelism}" if isinstance(parallelism, int) and parallelism > 1 else ""
    texts = [f"{node.get('label') or node['id']}{tasks}"]
    if row.get("per_s") is not None:
        texts.append(rate(row["per_s"]))
    if row.get("capacity") is not None:
        texts.append(f"capacity {number(row['capacity'], 2)}")
    return texts


def _rates(stats: Facts) -> dict[tuple[str, str, str], float]:
    return {
        (edge["source"], edge["target"], edge["stream"]): edge["per_s"]
        for edge in stats.get("edges") or ()
        if edge.get("per_s") is not None
    }


def _flows(
    nodes: Sequence[Facts], edges: Sequence[Facts], counted: Mapping[str, Facts]
) -> dict[str, float]:
    """Return what comes out of each node of Trident of which that is known.

    Spouts are counted; and what keeps the number of rows gives as many as it gets. Behind a
    filter, or what multiplies rows, nobody counts: Spark does it all in one pass.
    """
    flows: dict[str, float] = {}
    for node in nodes:  # each after those that it comes from
        if node["kind"] == "spout":
            per_s = _row_of(node, counted).get("per_s")
        elif node.get("keeps_count"):
            given = [flows.get(edge["source"]) for edge in edges if edge["target"] == node["id"]]
            known = [each for each in given if each is not None]
            per_s = sum(known) if known and len(known) == len(given) else None
        else:
            per_s = None
        if per_s is not None:
            flows[node["id"]] = per_s
    return flows


def _rate_of(
    edge: Facts,
    rates: Mapping[tuple[str, str, str], float],
    flows: Mapping[str, float],
    head: Facts,
    counted: Mapping[str, Facts],
) -> float | None:
    """Return what flows along an edge: as it was counted there, or at one of its ends.

    What is written to a state has come along the edge into it.
    """
    per_s = rates.get((edge["source"], edge["target"], _stream(edge)))
    if per_s is not None or rates:
        return per_s
    if head["kind"] == "state":
        return _row_of(head, counted).get("per_s")
    return flows.get(edge["source"])


def _stream(edge: Facts) -> str:
    return str(edge.get("stream") or "default")


def _label(edge: Facts, per_s: float | None) -> str:
    stream = _stream(edge)
    parts = [] if stream == "default" else [stream]
    return " ".join([*parts, *([] if per_s is None else [rate(per_s)])])


_CODES = {ord(c): f"#{ord(c)};" for c in "#&\"'<>`\\()[]{}|;%~"} | {
    ord(c): " " for c in "\n\r\t\v\f\x85\u2028\u2029"
}


def _escaped(text: str) -> str:
    """Return a text that is nothing but text in a diagram.

    >>> _escaped('a"b<i>')
    'a#34;b#60;i#62;'
    """
    return text.translate(_CODES)
