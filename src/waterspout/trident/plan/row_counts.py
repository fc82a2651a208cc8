"""Which nodes keep the number of rows: what flows behind them is known without counting."""

from __future__ import annotations

import re

from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.plan.nodes import Keep, Merge, Node, Repartition, Route, RowNode

__all__ = ["keeps_count"]

_GENERATES = re.compile(r"(?i)\b(\w*explode\w*|inline\w*|stack|json_tuple|\w*generator\w*)\s*\(")
"""Functions of Spark's of which a row may give none or many."""


def keeps_count(node: Node) -> bool:
    """Whether as many rows come out of a node as go in, as far as that is sure."""
    match node:
        case Merge():
            return True
        case Repartition(route=route):
            return route not in (Route.BROADCAST, Route.CUSTOM)
        case Keep():  # a filter; or a look at rows, which keeps them all
            looks = not any(map(is_expression, node.operations))
            return looks and node.on_error is None and all(map(_gives_one, node.operations))
        case RowNode(on_error=None):
            return all(map(_gives_one, node.operations))
    return False


def _gives_one(operation: object) -> bool:
    if is_expression(operation):
        return _GENERATES.search(str(getattr(operation, "text", operation))) is None
    return bool(getattr(operation, "gives_one", False))
