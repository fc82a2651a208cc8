"""Which nodes share one visit to a Python worker. Pure functions."""

from __future__ import annotations

from waterspout.trident.plan.nodes import Node, Project, RowNode
from waterspout.trident.plan.plan import Plan

__all__ = ["python_chain", "python_chains"]


def python_chain(plan: Plan, node: Node) -> list[Node]:
    """Return this node and those before it that fit into one visit.

    Empty if the node itself is no row operation in Python.
    """
    chain: list[Node] = []
    while isinstance(node, RowNode):
        if node.is_native and not (chain and isinstance(node, Project)):
            break
        chain.insert(0, node)
        node = node.parents[0]
        if node in plan.shared:  # it is computed once, for all who read it
            break
    while chain and isinstance(chain[0], Project):
        chain.pop(0)  # in the JVM it costs nothing, and less is sent to Python
    return chain


def python_chains(plan: Plan) -> list[list[Node]]:
    """Return every chain of the plan, in the order of their first nodes."""
    found: list[list[Node]] = []
    inside: set[Node] = set()
    for node in reversed(plan.nodes):
        chain = [] if node in inside else python_chain(plan, node)
        if chain:
            found.append(chain)
            inside.update(chain)
    return found[::-1]
