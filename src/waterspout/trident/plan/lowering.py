"""Where an engine finds what a kind of node becomes: one registered function for each class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from waterspout.errors import TopologyError
from waterspout.trident.plan.nodes import Node

__all__ = ["Lowerings"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Lowerings(Generic[_Function]):
    """The lowerings of one engine: a decorator that registers them, and how they are found."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._by_kind: dict[type[Node], _Function] = {}

    def __call__(self, *kinds: type[Node]) -> Callable[[_Function], _Function]:
        """Register a function for nodes of some kinds."""

        def register(function: _Function) -> _Function:
            self._by_kind.update(dict.fromkeys(kinds, function))
            return function

        return register

    def of(self, node: Node) -> _Function:
        """Return the function for a node."""
        found = self._by_kind.get(type(node))
        if found is None:
            kind = type(node).__name__
            raise TopologyError(f"{node.title}: nobody has said what a {kind} does {self._engine}")
        return found
