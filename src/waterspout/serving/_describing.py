"""A topology as JSON: the graph, and the states with what they promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from waterspout._config import Config
from waterspout.coordination.transactions import state_verdicts
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.graph import graph_of
from waterspout.trident.plan.nodes import Source, Update
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.row_counts import keeps_count
from waterspout.trident.plan.verdicts import verdict_of

__all__ = ["graph", "kind_of", "states"]


def kind_of(topology: Topology | TridentTopology) -> str:
    """Return what kind of a topology it is: core, transactional or trident."""
    if isinstance(topology, TridentTopology):
        return "trident"
    return "transactional" if isinstance(topology, TransactionalTopology) else "core"


def graph(described: Topology | Plan, conf: Config) -> dict[str, Any]:
    """Return nodes and edges; statistics are by the ids of nodes, or of Trident by their labels."""
    if isinstance(described, Plan):
        return _graph_of_plan(described, conf)
    nodes = [
        {
            "id": spec.id,
            "kind": "spout" if spec.is_spout else "bolt",
            "label": spec.id,
            "parallelism": spec.num_tasks,
        }
        for spec in described.components.values()
    ]
    edges = [
        {
            "source": given.source,
            "target": spec.id,
            "stream": given.stream,
            "grouping": str(given.grouping),
        }
        for spec in described.bolts
        for given in spec.inputs
    ]
    return {"nodes": nodes, "edges": edges}


def _graph_of_plan(plan: Plan, conf: Config) -> dict[str, Any]:
    drawn = graph_of(plan, conf)
    by_key = {f"n{node.number}": node for node in plan.nodes}
    nodes = []
    for vertex in drawn.vertices:
        node = by_key.get(vertex.key)
        kind = "state" if vertex.is_state else "spout" if isinstance(node, Source) else "operation"
        parallelism: int | None
        if vertex.is_state:
            parallelism = plan.states[vertex.key.removeprefix("state ")].partitions
        else:
            parallelism = plan.width_of(node) if node is not None else None
        nodes.append(
            {
                "id": vertex.key,
                "kind": kind,
                "label": node.spout_id if isinstance(node, Source) else vertex.title,
                "parallelism": parallelism,
                "phase": vertex.phase.value,
                "keeps_count": node is not None and keeps_count(node),
                "notes": list(vertex.lines),
            }
        )
    edges = [
        {"source": edge.tail, "target": edge.head, "stream": "default", "grouping": edge.flow.value}
        for edge in drawn.edges
    ]
    return {"nodes": nodes, "edges": edges}


def states(described: Topology | Plan) -> list[dict[str, Any]]:
    """Return the states of a topology, each with its kind, its store and its guarantee."""
    if isinstance(described, Plan):
        return list(_states_of_plan(described))
    if not isinstance(described, TransactionalTopology):
        return []
    verdicts = state_verdicts(described)
    return [
        _state(name, spec.factory, verdicts[name].exact, verdicts[name].why)
        for name, spec in described.states.items()
    ]


def _states_of_plan(plan: Plan) -> Iterator[dict[str, Any]]:
    for node in plan.nodes:
        spec = plan.states.get(node.state) if isinstance(node, Update) else None
        if isinstance(node, Update) and spec is not None and not spec.hidden:
            verdict = verdict_of(plan, node)
            yield _state(node.state, spec.factory, verdict.exact, verdict.why)


def _state(name: str, factory: Any, exact: bool, why: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": factory.kind.value if factory.kind is not None else "own",
        "store": str(factory.location() or type(factory).__name__),
        "guarantee": "exactly-once" if exact else "not exactly-once",
        "why": why,
    }
