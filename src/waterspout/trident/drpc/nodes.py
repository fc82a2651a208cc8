"""The nodes that only DRPC streams have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waterspout._schema import Schema
from waterspout.trident.plan.nodes import Node

__all__ = ["ARGS", "REQUEST", "Completed", "DrpcSource", "TransformEach"]

REQUEST = "_waterspout_request"
"""Which of the requests that run together a row belongs to, from 0. No user sees it."""

ARGS = Schema((("args", "string"),))
"""The fields of a DRPC stream."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DrpcSource(Node):
    """The requests that wait for a function: one row with the argument for each."""

    function: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Completed(Node):
    """The rows of an aggregation by request, with those of the requests that had no rows.

    Over a whole batch an aggregator gives something for nothing, such as a count of 0. Grouped by
    request it would give nothing. `of` is the aggregation as the user has made it.
    """

    of: Node

    @property
    def operations(self) -> Sequence[Any]:
        return self.of.operations


@dataclass(frozen=True, eq=False, kw_only=True)
class TransformEach(Node):
    """A function from DataFrame to DataFrame, called for the rows of each request by themselves."""

    function: Any
