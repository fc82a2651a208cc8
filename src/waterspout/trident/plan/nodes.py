"""The nodes of a plan: frozen, checked when made, equal only to themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
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
    "AggregatePart",
    "CombineInto",
    "Each",
    "Isolated",
    "Join",
    "Keep",
    "Mapped",
    "Merge",
    "MultiReduce",
    "NewValues",
    "Node",
    "Project",
    "Query",
    "ReduceInto",
    "Repartition",
    "Route",
    "Scope",
    "SortedOut",
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
    hidden: bool = False
    """For the topology's own use; may come and go while the topology lives."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Each(Node):
    """A function over some fields whose output is appended."""

    fields: tuple[str, ...]
    function: Any
    out: Schema
    on_error: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Mapped(Node):
    """A function over some fields whose output takes the tuple's place."""

    fields: tuple[str, ...]
    function: Any
    on_error: str | None = None
    beside: tuple[str, ...] = ()
    """Hidden fields that stay with the tuple."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Keep(Node):
    """A filter over some fields."""

    fields: tuple[str, ...]
    predicate: Any
    on_error: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Project(Node):
    """Some of the fields."""

    fields: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Isolated(Node):
    """A chain of row operations that puts bad rows aside.

    Its parents are the stream and the requests for letters. What comes out are the rows and, in
    a hidden field, what is beside them; it is computed once. `addresses` says by which name
    letters know each node of the chain, None where an error fails the batch.
    """

    chain: tuple[Node, ...]
    addresses: tuple[str | None, ...]
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class SortedOut(Node):
    """The good rows of an isolated chain, or what it has put aside."""

    aside: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Transform(Node):
    """A function from DataFrame to DataFrame."""

    function: Any


class Route(Enum):
    """How a repartitioning deals tuples out."""

    BY_FIELDS = "partition_by"
    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    GLOBAL = "global_"
    BATCH_GLOBAL = "batch_global"
    BROADCAST = "broadcast"
    IDENTITY = "identity_partition"
    CUSTOM = "partition"


@dataclass(frozen=True, eq=False, kw_only=True)
class Repartition(Node):
    """The same tuples on other partitions (on every one, if they are broadcast)."""

    route: Route
    fields: tuple[str, ...] = ()
    grouping: Any = None


@dataclass(frozen=True, slots=True)
class AggregatePart:
    """One aggregator of a chain, with what it reads and what it gives."""

    inputs: Schema
    aggregator: Any
    out: Schema

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that it reads."""
        return self.inputs.names


class Scope(Enum):
    """Over what an aggregation works."""

    BATCH = "batch"
    PARTITION = "partition"
    ANY_PARTITION = "any partition"
    """Over partitions, however many there are: a first step of what follows."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(Node):
    """Aggregators over the batch or its partitions, or over each of their groups.

    `finished`: the results are as a reader sees them; not so where they go on into a state,
    which keeps what can still be combined.
    """

    group: tuple[str, ...] | None
    parts: tuple[AggregatePart, ...]
    scope: Scope = Scope.BATCH
    finished: bool = True

    @property
    def combines(self) -> bool:
        """Whether all aggregators are combiners, so that much is done before a shuffle."""
        return all(isinstance(part.aggregator, CombinerAggregator) for part in self.parts)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The fields that are read: those of the group, then those of the aggregators."""
        names = [*(self.group or ()), *(f for part in self.parts for f in part.fields)]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, eq=False, kw_only=True)
class Merge(Node):
    """The tuples of several streams as one stream; fields go by position."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Node):
    """Tuples of several streams, of one batch, with equal keys.

    `keys` has the key fields of each parent; `optional` says which parents may have no tuple for
    a key. What comes out: the key once, then the other fields of each parent; or, to `preserve`
    them, all fields of all parents.
    """

    keys: tuple[tuple[str, ...], ...]
    optional: tuple[bool, ...]
    preserve: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiReduce(Node):
    """A reducer over the tuples of several streams, or over each of their groups."""

    fields: tuple[tuple[str, ...], ...]
    groups: tuple[tuple[str, ...], ...] | None
    reducer: Any
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
    """The user's own way to update a state of the user's own kind.

    `every_batch`: also called for partitions, and batches, without tuples.
    """

    fields: tuple[str, ...]
    updater: StateUpdater[Any]
    every_batch: bool = False

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
