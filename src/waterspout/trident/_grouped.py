"""Grouped streams, and chains of aggregators over a stream or its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waterspout._habits import SaysInstead
from waterspout._schema import FieldNames
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory
from waterspout.trident._aggregating import make_aggregation
from waterspout.trident._habits import GROUPED
from waterspout.trident._tridentstate import TridentState
from waterspout.trident._windowed import Windowed
from waterspout.trident.operations.accepted import (
    AggregateArgument,
    EachOperation,
    QueryArgument,
)
from waterspout.trident.plan.nodes import Aggregation, Scope

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = ["ChainedAggregatorDeclarer", "GroupedStream"]


class GroupedStream(SaysInstead, Windowed):
    """A stream whose batches are grouped by some fields."""

    _instead = GROUPED

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of its tuples."""
        return self._stream.fields

    @property
    def group_fields(self) -> tuple[str, ...]:
        """The fields that it is grouped by."""
        return self._keys

    def name(self, name: str) -> GroupedStream:
        """Give the operation before the grouping a name, shown in plans and errors."""
        return GroupedStream(self._stream.name(name), self._keys)

    def each(
        self,
        fields: FieldNames,
        operation: EachOperation,
        out: FieldNames | None = None,
        *,
        on_error: str | None = None,
    ) -> GroupedStream:
        """Append or filter as `Stream.each` does; the groups stay."""
        made = self._stream.each(fields, operation, out, on_error=on_error)
        return GroupedStream(made, self._keys)

    def aggregate(self, *args: AggregateArgument, out: FieldNames | None = None) -> Stream:
        """Aggregate each group of each batch: `aggregate([fields,] aggregator, out)`.

        Gives the group fields and the result; nothing for an empty batch.
        """
        return self._stream._aggregate_one("aggregate", args, out, Scope.BATCH, self._keys)

    def partition_aggregate(
        self, *args: AggregateArgument, out: FieldNames | None = None
    ) -> Stream:
        """Aggregate each group of each partition of a batch, without bringing groups together."""
        scope = Scope.PARTITION
        return self._stream._aggregate_one("partition_aggregate", args, out, scope, self._keys)

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Begin a chain of aggregators over the same groups."""
        return ChainedAggregatorDeclarer(self._stream, self._keys)

    def persistent_aggregate(
        self,
        factory: StateFactory,
        *args: AggregateArgument,
        out: FieldNames | None = None,
    ) -> TridentState:
        """Aggregate all batches into a state, one value per group.

        `persistent_aggregate(factory, [fields,] aggregator, out)`
        """
        return self._stream._persist_aggregate(self._keys, factory, args, out)

    def state_query(
        self,
        state: TridentState,
        *args: QueryArgument,
        out: FieldNames | None = None,
    ) -> Stream:
        """Append what a state answers: `state_query(state, [fields,] query, out)`."""
        return self._stream.partition_by(self._keys).state_query(state, *args, out=out)

    def to_stream(self) -> Stream:
        """Return the stream without its grouping."""
        return self._stream


class ChainedAggregatorDeclarer:
    """Several aggregators over the same tuples; `chain_end` gives the stream of their results.

    With several, the result is every combination of a tuple of each.
    """

    def __init__(self, stream: Stream, keys: tuple[str, ...] | None) -> None:
        self._stream = stream
        self._keys = keys
        self._aggregations: list[Aggregation] = []
        self._scope: Scope | None = None

    def aggregate(
        self, *args: AggregateArgument, out: FieldNames | None = None
    ) -> ChainedAggregatorDeclarer:
        """Add an aggregator over the whole batch (or group): `([fields,] aggregator, out)`."""
        return self._add("aggregate", args, out, Scope.BATCH)

    def partition_aggregate(
        self, *args: AggregateArgument, out: FieldNames | None = None
    ) -> ChainedAggregatorDeclarer:
        """Add an aggregator over each partition: `([fields,] aggregator, out)`."""
        return self._add("partition_aggregate", args, out, Scope.PARTITION)

    def chain_end(self) -> Stream:
        """Return the stream of the results: the group fields, then those of each aggregator."""
        if self._scope is None:
            raise TopologyError("chained_agg() needs an aggregator before chain_end()")
        return self._stream._aggregate("chained_agg", self._keys, self._aggregations, self._scope)

    def _add(
        self, method: str, args: Any, out: FieldNames | None, scope: Scope
    ) -> ChainedAggregatorDeclarer:
        if self._scope not in (None, scope):
            raise TopologyError(
                "a chain is either of aggregate() or of partition_aggregate(); this one has both"
            )
        aggregation = make_aggregation(self._stream.schema, method, args, out)
        taken = [name for other in self._aggregations for name in other.out.names]
        both = [name for name in aggregation.out.names if name in taken]
        if both:
            raise TopologyError(
                f"the output fields of chained aggregators must be distinct; {both[0]!r} comes "
                "twice"
            )
        self._scope = scope
        self._aggregations.append(aggregation)
        return self
