"""The nodes of a plan: frozen, checked when made, equal only to themselves.

What planning must know of a kind of node, its class says: a new kind answers the questions of
`Node` where the usual answers are wrong for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from waterspout._schema import Schema
from waterspout.spouts._base import BatchSpout
from waterspout.spouts._reads import FilesRead, KafkaRead
from waterspout.trident.operations.aggregators import Count
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.contracts import (
    CombinerAggregator,
    QueryFunction,
)
from waterspout.trident.operations.functions import PaneStart, Split
from waterspout.trident.operations.native_forms import has_native_form
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.updating import CombineInto, ReduceInto, UpdateWith, Updating

if TYPE_CHECKING:
    from waterspout.trident.plan.partitions import PartitionLayout

__all__ = [
    "LATE",
    "Aggregate",
    "Aggregation",
    "CombineInto",
    "Each",
    "Isolated",
    "Join",
    "Keep",
    "LateRows",
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
    "RowNode",
    "Scope",
    "Sessions",
    "Sifted",
    "SortedOut",
    "Source",
    "StaticTable",
    "Transform",
    "Update",
    "UpdateWith",
    "Updating",
]


_NATIVE = (PaneStart, Split)
"""Functions that Spark does itself."""

LATE = "_waterspout_late"
"""True in what an update of windows emits of rows that are in no window, instead of a result."""


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

    @property
    def operations(self) -> Sequence[Any]:
        """The user's operations in it: they are pickled, and may be declared not deterministic."""
        return ()

    @property
    def is_native(self) -> bool:
        """Whether it runs in the JVM, without a Python worker."""
        return True

    @property
    def keeps_partitions(self) -> bool:
        """Whether it works on the partitions of the node before it, as they are."""
        return False

    @property
    def shows_partitions(self) -> bool:
        """Whether the number of partitions can be seen in what comes out."""
        return False

    @property
    def broadcasts(self) -> int:
        """How many of its joins may send a small side to all tasks, by a job of its own."""
        return 0

    @property
    def fills_partitions(self) -> bool:
        """Whether its own exchanges bring rows onto as many partitions as it is to have."""
        return False

    def alone(self) -> Self:
        """Return the node without what comes before it: what tasks need of it is pickled so."""
        return replace(self, parents=())

    def reads(self, wanted: set[str]) -> set[str] | None:
        """Return the fields of its parents that it reads, if `wanted` of its own are read behind.

        None: all of them.
        """
        return None

    def exchanges(self, layout: PartitionLayout) -> Sequence[Exchange]:
        """Return how rows change partitions on their way into it, in order."""
        return ()

    def lies_in_one(self, layout: PartitionLayout) -> bool:
        """Whether all its rows are on one partition, as Spark knows, too.

        Asked where the plan gives no number of partitions.
        """
        return False


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Node):
    """The batches of a spout."""

    spout_id: str
    spout: BatchSpout
    hidden: bool = False
    """For the topology's own use; may come and go while the topology lives."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RowNode(Node):
    """An operation on row after row. Neighbours in Python share one visit to a worker."""

    fields: tuple[str, ...]
    operation: Any = None
    """The user's function or filter, or a list of Spark's expressions."""

    on_error: str | None = None

    @property
    def operations(self) -> Sequence[Any]:
        given = self.operation
        return given if isinstance(given, (list, tuple)) else [] if given is None else [given]

    @property
    def is_native(self) -> bool:
        return all(is_expression(one) or type(one) in _NATIVE for one in self.operations)

    keeps_partitions = True

    def lies_in_one(self, layout: PartitionLayout) -> bool:
        return layout.is_one(self.parents[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class Each(RowNode):
    """A function over some fields whose output is appended."""

    out: Schema

    def reads(self, wanted: set[str]) -> set[str] | None:
        if self.is_native:
            return None  # an expression may name any field
        return set(self.fields) | (wanted - set(self.out.names))


@dataclass(frozen=True, eq=False, kw_only=True)
class Mapped(RowNode):
    """A function over some fields whose output takes the tuple's place."""

    beside: tuple[str, ...] = ()
    """Hidden fields that stay with the tuple."""

    def reads(self, wanted: set[str]) -> set[str] | None:
        return None if self.is_native else {*self.fields, *self.beside}


@dataclass(frozen=True, eq=False, kw_only=True)
class Keep(RowNode):
    """A filter over some fields."""

    def reads(self, wanted: set[str]) -> set[str] | None:
        return None if self.is_native else set(self.fields) | wanted


@dataclass(frozen=True, eq=False, kw_only=True)
class Project(RowNode):
    """Some of the fields."""

    def reads(self, wanted: set[str]) -> set[str] | None:
        return wanted


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

    @property
    def operations(self) -> Sequence[Any]:
        return [operation for node in self.chain for operation in node.operations]

    is_native = False
    keeps_partitions = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Sifted(Node):
    """The rows of a source and, in a hidden field, the letters of its malformed records.

    Its parents are the source and the requests for letters: a record that is replayed is read
    here. `address` is its name in letters.
    """

    address: str
    reader: FilesRead | KafkaRead
    """How its records are read; of no files, or no offsets."""

    keeps_partitions = True


@dataclass(frozen=True, eq=False, kw_only=True)
class SortedOut(Node):
    """The good rows of an isolated chain or of a source, or what was put aside."""

    aside: bool

    keeps_partitions = True


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


_DEALS = {
    Route.SHUFFLE: Deal.EVENLY,
    Route.LOCAL_OR_SHUFFLE: Deal.EVENLY,
    Route.GLOBAL: Deal.TO_ONE,
    Route.BATCH_GLOBAL: Deal.TO_ONE,
    Route.BROADCAST: Deal.EVERY_ROW,
    Route.CUSTOM: Deal.BY_GROUPING,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Repartition(Node):
    """The same tuples on other partitions (on every one, if they are broadcast)."""

    route: Route
    fields: tuple[str, ...] = ()
    grouping: Any = None

    @property
    def is_native(self) -> bool:
        return self.route is not Route.CUSTOM

    @property
    def keeps_partitions(self) -> bool:
        return self.route is Route.IDENTITY

    @property
    def shows_partitions(self) -> bool:
        return self.route in (Route.BROADCAST, Route.CUSTOM, Route.GLOBAL, Route.BATCH_GLOBAL)

    fills_partitions = True

    def exchanges(self, layout: PartitionLayout) -> Sequence[Exchange]:
        width, route = layout.width_of(self), self.route
        stays = width is None or width == layout.width_of(self.parents[0])
        if route is Route.IDENTITY or (route is Route.LOCAL_OR_SHUFFLE and stays):
            return ()
        if width == 1 and route is not Route.CUSTOM:
            return [Exchange(self, Deal.IN_ONE_TASK, 1)]
        if route is Route.BY_FIELDS:
            return [Exchange(self, Deal.BY_FIELDS, width, self.fields)]
        return [Exchange(self, _DEALS[route], width or layout.usual)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Sessions(Node):
    """Rows with the start of their session in the batch: a number in the unit of the time.

    A session of a key goes on while its next row comes less than a gap after the last.
    """

    keys: tuple[str, ...]
    event_time: str
    gap: int

    def exchanges(self, layout: PartitionLayout) -> Sequence[Exchange]:
        if not self.keys:
            return [Exchange(self, Deal.ALL, 1)]
        return [Exchange(self, Deal.BY_FIELDS, None, self.keys)]

    def lies_in_one(self, layout: PartitionLayout) -> bool:
        return not self.keys


@dataclass(frozen=True, slots=True)
class Aggregation:
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
    aggregations: tuple[Aggregation, ...]
    scope: Scope = Scope.BATCH
    finished: bool = True

    @property
    def combines(self) -> bool:
        """Whether all aggregators are combiners, so that much is done before a shuffle."""
        return all(isinstance(one.aggregator, CombinerAggregator) for one in self.aggregations)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The fields that are read: those of the group, then those of the aggregators."""
        names = [*(self.group or ()), *(f for one in self.aggregations for f in one.fields)]
        return tuple(dict.fromkeys(names))

    @property
    def operations(self) -> Sequence[Any]:
        return [one.aggregator for one in self.aggregations]

    @cached_property
    def is_native(self) -> bool:
        return self.scope is Scope.BATCH and all(
            is_expression(one.aggregator) or has_native_form(one.aggregator, one.inputs)
            for one in self.aggregations
        )

    @property
    def keeps_partitions(self) -> bool:
        return self.scope is not Scope.BATCH

    @property
    def shows_partitions(self) -> bool:
        return self.scope is Scope.PARTITION

    def reads(self, wanted: set[str]) -> set[str] | None:
        if not self.is_native:
            return set(self.inputs)
        # Of Spark's own aggregates a count looks at no field.
        looking = [one for one in self.aggregations if type(one.aggregator) is not Count]
        return {*(self.group or ()), *(field for one in looking for field in one.fields)}

    def exchanges(self, layout: PartitionLayout) -> Sequence[Exchange]:
        if self.scope is not Scope.BATCH or self._lies_together(layout):
            return ()
        if self.group is None:
            return [Exchange(self, Deal.ALL, 1)]
        return [layout.dealt_by_state(self) or Exchange(self, Deal.BY_FIELDS, None, self.group)]

    def lies_in_one(self, layout: PartitionLayout) -> bool:
        if self.scope is not Scope.BATCH:
            return False
        return self.group is None or layout.is_one(self.parents[0])

    def _lies_together(self, layout: PartitionLayout) -> bool:
        """Whether all rows of a group are on one partition already."""
        before = self.parents[0]
        if layout.is_one(before):
            return True
        if self.group is None or not self.is_native:
            return False
        while isinstance(before, (Each, Keep, Project)) and before.is_native:
            before = before.parents[0]
        if layout.width_of(before) is not None:
            return False
        match before:
            case Repartition(route=Route.BY_FIELDS, fields=fields):
                return set(fields) <= set(self.group)
            case Sessions(keys=keys):
                return set(keys) <= set(self.group)
            case Aggregate(scope=Scope.BATCH, group=group) if before.is_native and group:
                return set(group) <= set(self.group)
        return False


@dataclass(frozen=True, eq=False, kw_only=True)
class Merge(Node):
    """The tuples of several streams as one stream; fields go by position."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StaticTable(Node):
    """The rows of a table beside the streams: the same in every batch, as far as we know.

    `table` is a DataFrame, which each batch reads, or a table of Arrow's.
    """

    table: Any
    filled: frozenset[str] = frozenset()
    """Fields of which it is known that no row of the table lacks a value."""


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
    once: int = 0
    """How many fields of the key come out once, in front, where all others are preserved."""

    @property
    def broadcasts(self) -> int:
        count, required = 0, not self.optional[0]
        for optional in self.optional[1:]:
            count += required or not optional  # a full outer join needs both sides sorted
            required = required or not optional
        return count

    def exchanges(self, layout: PartitionLayout) -> Sequence[Exchange]:
        if any(isinstance(parent, StaticTable) for parent in self.parents):
            return ()  # the table is sent to all tasks
        return [
            Exchange(self, Deal.BY_FIELDS, None, names, side=parent)
            for parent, names in zip(self.parents, self.keys, strict=True)
        ]


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiReduce(Node):
    """A reducer over the tuples of several streams, or over each of their groups."""

    fields: tuple[tuple[str, ...], ...]
    groups: tuple[tuple[str, ...], ...] | None
    reducer: Any
    out: Schema

    @property
    def operations(self) -> Sequence[Any]:
        return [self.reducer]

    is_native = False

    @property
    def shows_partitions(self) -> bool:
        return self.groups is None

    fills_partitions = True

    def exchanges(self, layout: PartitionLayout) -> Sequence[Exchange]:
        width = layout.width_of(self)
        if self.groups is not None:
            return [Exchange(self, Deal.BY_FIELDS, width, self.groups[0])]
        if width is None or width == 1:
            return [Exchange(self, Deal.IN_ONE_TASK, 1)]
        return [Exchange(self, Deal.EVENLY, width)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Query(Node):
    """Answers of a state, appended."""

    state: str
    fields: tuple[str, ...]
    query: QueryFunction[Any, Any]
    out: Schema

    @property
    def operations(self) -> Sequence[Any]:
        return [self.query]

    is_native = False
    keeps_partitions = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Update(Node):
    """A state is updated; what comes out are the new values."""

    state: str
    updating: Updating

    @property
    def operations(self) -> Sequence[Any]:
        return [self.updating.operation]

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The fields by which rows are dealt to the partitions of the state; None: any way."""
        return self.updating.keys

    @property
    def chunk_keys(self) -> tuple[str, ...]:
        """The fields by which rows may be cut in pieces; an updater sees a partition whole."""
        return () if isinstance(self.updating, UpdateWith) else self.updating.keys

    @property
    def every_batch(self) -> bool:
        """Whether the state is updated without tuples, too."""
        return isinstance(self.updating, UpdateWith) and self.updating.every_batch

    is_native = False
    keeps_partitions = True


@dataclass(frozen=True, eq=False, kw_only=True)
class NewValues(Node):
    """The new values of an update, as a stream."""

    late: bool | None = None
    """Which of them, where an update emits both: results, or what is late; None: all."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LateRows(Node):
    """The rows that were too late for their windows.

    Its parents are the rows, and from when to when rows of a key are late: the keys, then the two
    times. Rows without a time are late where those are null.
    """

    keys: tuple[str, ...]
    event_time: str

    broadcasts = 1
