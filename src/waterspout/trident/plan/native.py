"""What runs in the JVM, without a Python worker; told without pyspark."""

from __future__ import annotations

from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.functions import Split
from waterspout.trident.operations.native_forms import has_native_form
from waterspout.trident.plan.nodes import (
    Aggregate,
    Each,
    Isolated,
    Keep,
    Mapped,
    MultiReduce,
    Node,
    Query,
    Repartition,
    Route,
    Scope,
    Update,
)

__all__ = ["is_native"]


def is_native(node: Node) -> bool:
    """Whether a node runs in the JVM."""
    match node:
        case Each(function=operation) | Keep(predicate=operation) | Mapped(function=operation):
            return is_expression(operation) or type(operation) is Split
        case Aggregate(scope=scope, parts=parts):
            return scope is Scope.BATCH and all(
                is_expression(p.aggregator) or has_native_form(p.aggregator, p.inputs)
                for p in parts
            )
        case Repartition(route=route):
            return route is not Route.CUSTOM
        case Query() | Update() | MultiReduce() | Isolated():
            return False
    return True
