"""Streams: what a user chains. Each method makes one node."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from waterspout._habits import SaysInstead
from waterspout._schema import FieldNames, Schema, field_names
from waterspout._signatures import refuse_misfit
from waterspout._tuples import TridentTuple
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory, require_factory
from waterspout.topology._grouping import CustomGrouping
from waterspout.trident._aggregating import arguments, make_aggregation, value_schema
from waterspout.trident._grouped import ChainedAggregatorDeclarer, GroupedStream
from waterspout.trident._habits import STREAM
from waterspout.trident._rows import add_rows
from waterspout.trident._static_joins import add_static_join
from waterspout.trident._tridentstate import TridentState
from waterspout.trident._windowed import Windowed
from waterspout.trident.deduplication.build import add_deduplication
from waterspout.trident.drpc.streams import refuse_to_keep
from waterspout.trident.operations.accepted import (
    AggregateArgument,
    AggregateOperation,
    AnyTable,
    ConsumeOperation,
    EachOperation,
    FilterOperation,
    FlatMapOperation,
    MapOperation,
    QueryArgument,
    UpdateArgument,
)
from waterspout.trident.operations.coercion import (
    as_consumer,
    as_filter,
    as_flat_map,
    as_function,
    as_map,
    as_query,
    as_updater,
    is_expression,
    typed,
    usable,
)
from waterspout.trident.operations.contracts import (
    Assembly,
    CombinerAggregator,
    ReducerAggregator,
    describe,
)
from waterspout.trident.operations.extremes import MaxBy, MinBy
from waterspout.trident.operations.queries import MapGet
from waterspout.trident.operations.row_updaters import RowUpdater
from waterspout.trident.plan.nodes import (
    Aggregate,
    Aggregation,
    CombineInto,
    Each,
    Keep,
    Mapped,
    Node,
    Project,
    Query,
    ReduceInto,
    Repartition,
    Route,
    Scope,
    Transform,
    Update,
    UpdateWith,
    Updating,
)
from waterspout.trident.plan.plan import Shape

if TYPE_CHECKING:
    from waterspout.trident._topology import TridentTopology

__all__ = ["Stream"]

DataFrame = TypeVar("DataFrame")
"""A DataFrame of Spark, classic or Connect; pyspark is not imported here."""

_ON_ERROR = ("fail", "dead_letter")


class Stream(SaysInstead, Windowed):
    """Batches of tuples with named fields. A method returns a new stream."""

    _instead = STREAM

    def __init__(self, topology: TridentTopology, node: Node) -> None:
        self._topology = topology
        self._node = node

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self._node.schema.names

    @property
    def schema(self) -> Schema:
        """The fields with their types."""
        return self._node.schema

    @property
    def topology(self) -> TridentTopology:
        """The topology that the stream belongs to."""
        return self._topology

    @property
    def node(self) -> Node:
        """The node of the plan that gives the stream's tuples."""
        return self._node

    def each(
        self,
        fields: FieldNames | EachOperation,
        operation: EachOperation | FieldNames | None = None,
        out: FieldNames | None = None,
        *,
        on_error: str | None = None,
    ) -> Stream:
        """Append what a function gives for each tuple, or keep what a filter lets through.

        `operation` is a Function or Filter, a plain Python function of the field values, an
        `arrow_function` or `pandas_function`, or a Spark expression (`expr("...")` or a Column).
        With `out` it is a function, without it a filter. `each(function, out=...)` reads all
        fields. `on_error="dead_letter"` puts a row aside on which it fails.
        """
        if not isinstance(fields, (str, list, tuple)):  # each(function, out)
            rest: Any = operation
            fields, operation, out = self.fields, fields, rest if out is None else out
        where = f"each({describe(operation)})"
        names = field_names(fields)
        inputs = self.schema.select(names, where=where)
        if out is None:
            predicate = usable(as_filter(operation, where), inputs, where)
            failing = _on_error(on_error, predicate, where)
            return self._add(
                Keep, where=where, schema=self.schema, fields=names, operation=predicate,
                on_error=failing,
            )  # fmt: skip
        output = Schema.parse(out)
        function = as_function(operation, len(output), where)
        output = _fitting(function, output, inputs, where)
        schema = self.schema.append(output, where=where)
        failing = _on_error(on_error, function, where)
        return self._add(
            Each, where=where, schema=schema, fields=names, operation=function, out=output,
            on_error=failing,
        )  # fmt: skip

    def filter(
        self,
        fields: FieldNames | FilterOperation,
        operation: FilterOperation | None = None,
        *,
        on_error: str | None = None,
    ) -> Stream:
        """Keep what a filter lets through; without fields it sees the whole tuple."""
        if operation is None:
            return self.each(self.fields, fields, on_error=on_error)
        return self.each(fields, operation, on_error=on_error)

    def map(
        self, operation: MapOperation, out: FieldNames | None = None, *, on_error: str | None = None
    ) -> Stream:
        """Replace each tuple by another: of the same fields, or of those in `out`."""
        where = f"map({describe(operation)})"
        output = self.schema if out is None else Schema.parse(out)
        return self._mapped(as_map(operation, len(output), where), output, where, on_error)

    def flat_map(
        self,
        operation: FlatMapOperation,
        out: FieldNames | None = None,
        *,
        on_error: str | None = None,
    ) -> Stream:
        """Replace each tuple by any number of others."""
        where = f"flat_map({describe(operation)})"
        output = self.schema if out is None else Schema.parse(out)
        return self._mapped(as_flat_map(operation, len(output), where), output, where, on_error)

    def peek(self, operation: ConsumeOperation, *, on_error: str | None = None) -> Stream:
        """Show each tuple to a function; the stream stays as it is."""
        where = f"peek({describe(operation)})"
        consumer = usable(as_consumer(operation, where), self.schema, where)
        failing = _on_error(on_error, consumer, where)
        return self._add(
            Keep, where=where, schema=self.schema, fields=self.fields, operation=consumer,
            on_error=failing,
        )  # fmt: skip

    def project(self, fields: FieldNames, *more: str) -> Stream:
        """Keep only some fields, in this order."""
        schema = self.schema.select(field_names(fields, *more), where="project")
        return self._add(Project, where="project", schema=schema, fields=schema.names)

    def transform(
        self, function: Callable[[DataFrame], DataFrame], out: FieldNames | Schema | None = None
    ) -> Stream:
        """Apply a function from DataFrame to DataFrame; it stays in the JVM.

        `out` declares the fields that come out, where they are not those that go in.
        """
        where = f"transform({describe(function)})"
        if not callable(function):
            raise TopologyError(f"{where} needs a function of a DataFrame, not {function!r}")
        refuse_misfit(function, 1, where, "one DataFrame")
        schema = self.schema if out is None else Schema.parse(out).require_types(where=where)
        return self._add(Transform, where=where, schema=schema, function=function)

    def apply_assembly(self, assembly: Assembly | Callable[[Stream], Stream]) -> Stream:
        """Apply something that makes a stream of a stream: an Assembly, or a function."""
        apply = getattr(assembly, "apply", assembly)
        if not callable(apply):
            raise TopologyError(f"apply_assembly needs an Assembly or a function, not {assembly!r}")
        made = apply(self)
        if not isinstance(made, Stream):
            raise TopologyError(f"{describe(assembly)} must return a stream; it gave {made!r}")
        return made

    def partition_by(self, fields: FieldNames, *more: str) -> Stream:
        """Bring tuples with equal fields to one partition."""
        chosen = self.schema.select(field_names(fields, *more), where="partition_by")
        names = chosen.require_keys(where="partition_by").names
        if not names:
            raise TopologyError("partition_by needs a field")
        return self._repartition(Route.BY_FIELDS, fields=names)

    def partition(self, grouping: CustomGrouping) -> Stream:
        """Let a custom grouping choose the partitions of each tuple."""
        if not callable(getattr(grouping, "choose_tasks", None)):
            raise TopologyError(
                "partition needs a grouping with choose_tasks(task_id, values) (a "
                f"CustomGrouping), not {grouping!r}"
            )
        return self._repartition(Route.CUSTOM, grouping=grouping)

    def shuffle(self) -> Stream:
        """Deal tuples out evenly."""
        return self._repartition(Route.SHUFFLE)

    def local_or_shuffle(self) -> Stream:
        """Leave tuples where they are, unless the number of partitions changes."""
        return self._repartition(Route.LOCAL_OR_SHUFFLE)

    def global_(self) -> Stream:
        """Bring all tuples of all batches to one partition, the first."""
        return self._repartition(Route.GLOBAL)

    def batch_global(self) -> Stream:
        """Bring all tuples of a batch to one partition, chosen by the batch."""
        return self._repartition(Route.BATCH_GLOBAL)

    def broadcast(self) -> Stream:
        """Send every tuple to every partition."""
        return self._repartition(Route.BROADCAST)

    def identity_partition(self) -> Stream:
        """Leave every tuple in its partition; their number stays the same."""
        return self._repartition(Route.IDENTITY)

    def parallelism_hint(self, n: int) -> Stream:
        """Spread the operations since the last repartitioning over `n` partitions."""
        self._topology.hint(self._node, n)
        return self

    def group_by(self, fields: FieldNames = (), *more: str) -> GroupedStream:
        """Group each batch by some fields, for the aggregation that follows."""
        schema = self.schema.select(field_names(fields, *more), where="group_by")
        if not len(schema):
            raise TopologyError("group_by needs a field; without one, aggregate the stream itself")
        return GroupedStream(self, schema.require_keys(where="group_by").names)

    def aggregate(self, *args: AggregateArgument, out: FieldNames | None = None) -> Stream:
        """Aggregate each batch: `aggregate([fields,] aggregator, out)`.

        One tuple per batch, also for an empty one.
        """
        return self._aggregate_one("aggregate", args, out, Scope.BATCH)

    def partition_aggregate(
        self, *args: AggregateArgument, out: FieldNames | None = None
    ) -> Stream:
        """Aggregate each partition of a batch: `partition_aggregate([fields,] aggregator, out)`.

        Its results replace the tuples of the partition; an empty partition has results, too.
        """
        return self._aggregate_one("partition_aggregate", args, out, Scope.PARTITION)

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Begin a chain of aggregators over the same tuples."""
        return ChainedAggregatorDeclarer(self, None)

    def aggregate_in_steps(self, method: str, aggregator: AggregateOperation) -> Stream:
        """Aggregate whole tuples: those of each partition, then what came of the partitions."""
        aggregation = make_aggregation(self.schema, method, [aggregator], self.fields)
        some = self._aggregate(method, None, [aggregation], Scope.ANY_PARTITION)
        return some._aggregate(method, None, [aggregation], Scope.BATCH)

    def min_by(self, field: str, key: Callable[..., object] | None = None) -> Stream:
        """Keep the tuple with the least value of a field, in each partition of a batch."""
        return self._extreme("min_by", MinBy(field_names(field)[0], key))

    def max_by(self, field: str, key: Callable[..., object] | None = None) -> Stream:
        """Keep the tuple with the greatest value of a field, in each partition of a batch."""
        return self._extreme("max_by", MaxBy(field_names(field)[0], key))

    def min(self, key: Callable[[TridentTuple], object]) -> Stream:
        """Keep the tuple for which `key(tuple)` is least, in each partition of a batch."""
        return self._extreme("min", MinBy(None, key))

    def max(self, key: Callable[[TridentTuple], object]) -> Stream:
        """Keep the tuple for which `key(tuple)` is greatest, in each partition of a batch."""
        return self._extreme("max", MaxBy(None, key))

    def deduplicate(
        self,
        keys: FieldNames,
        store: StateFactory | None = None,
        within: dt.timedelta | None = None,
    ) -> Stream:
        """Let the first row of each key pass, once: ever, or `within` a time by batches' clock.

        The keys are kept in an opaque `store`, or in the topology's own. Of several rows of a key
        in one batch the least passes. What follows runs in the commit phase.
        """
        refuse_to_keep(self._node, "deduplicate, which remembers keys,")
        return add_deduplication(self, keys, store, within)

    def join_static(
        self,
        other: AnyTable | TridentState,
        on: FieldNames | Mapping[str, str],
        how: str = "inner",
        out: FieldNames | None = None,
    ) -> Stream:
        """Append the fields of a table, or of a state, to each row with the same key.

        `other` is a DataFrame (read in each batch, and sent to all tasks; one of pandas, or a table
        of pyarrow, is what it is now), or a state with keys and values. `on` is a field, several,
        or `{"field of the stream": "field of the other"}`. With `how="left"` a row without a match
        stays, with nulls. `out` names the fields that are added.
        """
        return add_static_join(self, other, on, how, out)

    def persistent_aggregate(
        self,
        factory: StateFactory,
        *args: AggregateArgument,
        out: FieldNames | None = None,
    ) -> TridentState:
        """Aggregate all batches into one value of a state.

        `persistent_aggregate(factory, [fields,] aggregator, out)`
        """
        return self._persist_aggregate((), factory, args, out)

    def partition_persist(
        self,
        factory: StateFactory,
        *args: UpdateArgument,
        out: FieldNames | None = None,
    ) -> TridentState:
        """Update a state of any kind: `partition_persist(factory, [fields,] updater, out=None)`.

        `out` is what the updater emits, if it does: the fields of `new_values_stream()`. Of a map,
        one task owns a key: an updater that declares its `keys` may run on several partitions.
        """
        refuse_to_keep(self._node, "partition_persist")
        require_factory(factory, "partition_persist")
        fields, operation, names = arguments("partition_persist", args, out, needs_out=False)
        where = f"partition_persist({describe(operation)})"
        wanted = self.fields if fields is None else field_names(fields)
        inputs = self.schema.select(wanted, where=where)
        updater = usable(as_updater(operation, where), inputs, where)
        if isinstance(updater, RowUpdater):
            return add_rows(self, factory, updater, inputs, names, where)
        schema = Schema.parse(names).require_types(where=where)
        updating = UpdateWith(inputs.names, updater, _updated_keys(updater, inputs, where))
        # A table without columns has no rows: keep one column.
        return self.project(inputs.names or self.fields[:1]).update(
            factory, Shape.OWN, inputs, schema, schema, updating
        )

    def state_query(
        self,
        state: TridentState,
        *args: QueryArgument,
        out: FieldNames | None = None,
    ) -> Stream:
        """Append what a state answers: `state_query(state, [fields,] query, out)`."""
        fields, operation, wanted = arguments("state_query", args, out)
        where = f"state_query({describe(operation)})"
        if not isinstance(state, TridentState):
            raise TopologyError(
                f"{where} asks a state of the topology, not {state!r}; "
                "new_static_state() makes one of a factory"
            )
        if state.topology is not self._topology:
            raise TopologyError(f"{where} asks a state of another topology")
        if state.keeps_rows:
            raise TopologyError(
                f"{where} asks {state.name}, which keeps rows: they have no key to be asked by"
            )
        names = self.fields if fields is None else field_names(fields)
        inputs = self.schema.select(names, where=where)
        output = Schema.parse(wanted)
        if not len(output):
            raise TopologyError(f"{where} has no output field")
        query = usable(as_query(operation, len(output), where), inputs, where)
        if type(query) is MapGet and len(state.values):
            query = state.get_columns(len(output), where)
        whole = getattr(query, "whole_tuples", False)
        stored = state.tuple_types(len(output)) if whole else state.value_types(len(output))
        known = query.output_types(inputs.types) or stored
        output = output.fill_types(known).require_types(where=where)
        schema = self.schema.append(output, where=where)
        return self._add(
            Query, where=where, schema=schema, state=state.name, fields=names, query=query,
            out=output,
        )  # fmt: skip

    def name(self, name: str) -> Stream:
        """Give the last operation a name, shown in plans and errors."""
        self._topology.rename(self._node, name)
        return self

    def to_stream(self) -> Stream:
        """Return this stream: streams and grouped streams can be used alike."""
        return self

    def update(
        self,
        factory: StateFactory,
        shape: Shape,
        keys: Schema,
        values: Schema,
        schema: Schema,
        updating: Updating,
        *,
        shown: Schema | None = None,
    ) -> TridentState:
        """Add the update of a state; `shown` is how its values look to a reader."""
        require_factory(factory)
        if shape is not Shape.OWN:
            factory = factory.bind(keys, values)
        finisher = updating.operation if isinstance(updating, CombineInto) else None
        finishes = finisher is not None and finisher.finishes
        name = self._topology.add_state(factory, shape, finisher=finisher if finishes else None)
        update = self._add(
            Update, where=f"update of {name}", schema=schema, state=name, updating=updating
        )
        return TridentState(self._topology, name, keys, shown or values, update.node)

    def _add(self, kind: type[Node], *, where: str, schema: Schema, **fields: Any) -> Stream:
        return self._topology.add(kind, where, schema, [self._node], **fields)

    def _mapped(self, function: Any, output: Schema, where: str, on_error: str | None) -> Stream:
        output = _fitting(function, output, self.schema, where)
        failing = _on_error(on_error, function, where)
        return self._add(
            Mapped, where=where, schema=output, fields=self.fields, operation=function,
            on_error=failing,
        )  # fmt: skip

    def _repartition(
        self, route: Route, *, fields: tuple[str, ...] = (), grouping: Any = None
    ) -> Stream:
        return self._add(
            Repartition, where=route.value, schema=self.schema, route=route, fields=fields,
            grouping=grouping,
        )  # fmt: skip

    def _aggregate_one(
        self,
        method: str,
        args: Sequence[Any],
        out: FieldNames | None,
        scope: Scope,
        group: tuple[str, ...] | None = None,
    ) -> Stream:
        aggregation = make_aggregation(self.schema, method, args, out)
        return self._aggregate(method, group, [aggregation], scope)

    def _extreme(self, method: str, aggregator: MinBy | MaxBy) -> Stream:
        return self._aggregate_one(method, [aggregator], self.fields, Scope.PARTITION)

    def _aggregate(
        self,
        method: str,
        group: tuple[str, ...] | None,
        aggregations: Sequence[Aggregation],
        scope: Scope,
        *,
        finished: bool = True,
    ) -> Stream:
        operations = [each.aggregator for each in aggregations]
        where = f"{method}({', '.join(map(describe, operations))})"
        expressions = {is_expression(operation) for operation in operations}
        if scope is not Scope.BATCH and True in expressions:
            raise TopologyError(f"{where}: a Spark expression aggregates a batch, not a partition")
        if len(expressions) > 1:
            raise TopologyError(f"{where}: chain Spark expressions with each other only")
        schema = self.schema.select(group or (), where=where)
        for each in aggregations:
            schema = schema.append(each.out if finished else value_schema(each), where=where)
        return self._add(
            Aggregate, where=where, schema=schema, group=group, aggregations=tuple(aggregations),
            scope=scope, finished=finished,
        )  # fmt: skip

    def _persist_aggregate(
        self,
        keys: tuple[str, ...],
        factory: StateFactory,
        args: Sequence[Any],
        out: FieldNames | None,
    ) -> TridentState:
        method = "persistent_aggregate"
        refuse_to_keep(self._node, method)
        require_factory(factory, method)
        aggregation = make_aggregation(self.schema, method, args, out)
        aggregator = aggregation.aggregator
        shape = Shape.MAP if keys else Shape.SNAPSHOT
        key_schema = self.schema.select(keys, where=method)
        schema = key_schema.append(aggregation.out, where=method)
        if isinstance(aggregator, CombinerAggregator):
            made = self._aggregate(
                "aggregate", keys or None, [aggregation], Scope.BATCH, finished=False
            )
            values = value_schema(aggregation)
            combine = CombineInto(keys, values.names, aggregator)
            return made.update(
                factory, shape, key_schema, values, schema, combine, shown=aggregation.out
            )
        if not isinstance(aggregator, ReducerAggregator):
            where = f"{method}({describe(aggregator)})"
            raise TopologyError(f"{where} needs a CombinerAggregator or ReducerAggregator")
        wanted = keys + tuple(name for name in aggregation.fields if name not in keys)
        reduce = ReduceInto(keys, aggregation.fields, aggregation.out.names[0], aggregator)
        return self.project(wanted).update(
            factory, shape, key_schema, aggregation.out, schema, reduce
        )


def _fitting(function: Any, output: Schema, inputs: Schema, where: str) -> Schema:
    """Return the output fields with their types; refuse another number of expressions."""
    if is_expression(function):
        count = len(function) if isinstance(function, (list, tuple)) else 1
        if count != len(output):
            many = "one expression" if count == 1 else f"{count} expressions"
            raise TopologyError(f"{where} is {many}, but has {len(output)} outputs")
    return typed(function, output, inputs, where)


def _updated_keys(updater: Any, inputs: Schema, where: str) -> tuple[str, ...] | None:
    """Return the key fields that an updater declares, or None; refuse others than it is given."""
    if updater.keys is None:
        return None
    names = field_names(updater.keys)
    if not names:
        raise TopologyError(
            f"{where} declares keys, but no field; leave keys out, and one partition has all tuples"
        )
    return inputs.select(names, where=f"keys of {where}").require_keys(where=where).names


def _on_error(given: str | None, operation: Any, where: str) -> str | None:
    """Check what is to happen with a row on which an operation fails; None: as configured."""
    if given is not None and given not in _ON_ERROR:
        raise TopologyError(f"{where}: on_error is 'fail' or 'dead_letter', not {given!r}")
    if given == "dead_letter" and is_expression(operation):
        raise TopologyError(
            f"{where} is a Spark expression, which fails for a batch and not for a row; use a "
            "Python function, or an expression that cannot fail such as try_cast or try_divide"
        )
    return given
