"""Which nodes keep the number of rows: what flows behind them is known without counting."""

from __future__ import annotations

from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.plan.nodes import Keep, Merge, Node, Repartition, Route, RowNode

__all__ = ["keeps_count"]


def keeps_count(node: Node) -> bool:
    """Whether as many rows come out of a node as go in, as far as that is sure."""
    match node:
        case Merge():
            return True
        case Repartition(route=route):
            return route not in (Route.BROADCAST, Route.CUSTOM)
        case Keep():  # a filter; or a look at rows, which keeps them all
            return node.on_error is None and all(map(_gives_one, node.operations))
        case RowNode(on_error=None):
            return all(is_expression(one) or _gives_one(one) for one in node.operations)
    return False


def _gives_one(operation: object) -> bool:
    return bool(getattr(operation, "gives_one", False))
