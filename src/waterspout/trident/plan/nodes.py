"""The nodes of a plan: frozen, checked when made, equal only to themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from waterspout.schema import Schema
from waterspout.spouts.base import BatchSpout
from waterspout.trident.operations.contracts import (
    CombinerAggregator,
    Operation,
    QueryFunction,
    ReducerAggregator,
    StateUpdater,
)

__all__ = [
    "Aggregate",
    "CombineInto",
    "Each",
    "Keep",
    "NewValues",
    "Node",
    "Project",
    "Query",
    "ReduceInto",
    "Source",
    "Transform",
    "Update",
    "UpdateWith",
    "Updating",
]


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A step of the plan; `schema` is what comes out of it."""

    number: int
    schema: Schema
    parents: tuple[Node, ...] = ()
    name: str | None = None

    @property
    def title(self) -> str:
        """How plans and errors call this node."""
        return self.name or f"{type(self).__name__.lower()} {self.number}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Node):
    """The batches of a spout."""

    spout_id: str
    spout: BatchSpout


@dataclass(frozen=True, eq=False, kw_only=True)
class Each(Node):
    """A function over some fields whose output is appended."""

    fields: tuple[str, ...]
    function: Any
    out: Schema


@dataclass(frozen=True, eq=False, kw_only=True)
class Keep(Node):
    """A filter over some fields."""

    fields: tuple[str, ...]
    predicate: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class Project(Node):
    """Some of the fields."""

    fields: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Transform(Node):
    """A function from DataFrame to DataFrame."""

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(Node):
    """One aggregator over the batch, or over each of its groups."""

    group: tuple[str, ...] | None
    fields: tuple[str, ...]
    aggregator: Any
    out: Schema


@dataclass(frozen=True, eq=False, kw_only=True)
class Query(Node):
    """Answers of a state, appended."""

    state: str
    fields: tuple[str, ...]
    query: QueryFunction[Any, Any]
    out: Schema


@dataclass(frozen=True, slots=True)
class CombineInto:
    """Each row is a key and a partial result (of several columns, maybe), one row per key."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    aggregator: CombinerAggregator[Any]

    @property
    def operation(self) -> Operation:
        """The user's part of the update."""
        return self.aggregator


@dataclass(frozen=True, slots=True)
class ReduceInto:
    """Each row is a key and a tuple to fold into the key's value."""

    keys: tuple[str, ...]
    fields: tuple[str, ...]
    value: str
    aggregator: ReducerAggregator[Any]

    @property
    def operation(self) -> Operation:
        """The user's part of the update."""
        return self.aggregator


@dataclass(frozen=True, slots=True)
class UpdateWith:
    """The user's own way to update a state of the user's own kind."""

    fields: tuple[str, ...]
    updater: StateUpdater[Any]

    @property
    def operation(self) -> Operation:
        """The user's part of the update."""
        return self.updater


Updating = CombineInto | ReduceInto | UpdateWith


@dataclass(frozen=True, eq=False, kw_only=True)
class Update(Node):
    """A state is updated; what comes out are the new values."""

    state: str
    updating: Updating


@dataclass(frozen=True, eq=False, kw_only=True)
class NewValues(Node):
    """The new values of an update, as a stream."""
