"""Streams and grouped streams: what a user chains. Each method makes one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from waterspout.errors import TopologyError
from waterspout.schema import FieldNames, Schema, field_names
from waterspout.state.base import StateFactory
from waterspout.trident.operations.adapters import (
    ArrowFunction,
    PandasFunction,
    PlainFilter,
    PlainFunction,
    SqlExpression,
)
from waterspout.trident.operations.contracts import (
    Aggregator,
    CombinerAggregator,
    Filter,
    Function,
    QueryFunction,
    ReducerAggregator,
    StateUpdater,
    describe,
)
from waterspout.trident.plan.nodes import (
    Aggregate,
    CombineInto,
    Each,
    Keep,
    NewValues,
    Node,
    Project,
    Query,
    ReduceInto,
    Transform,
    Update,
    UpdateWith,
    Updating,
)
from waterspout.trident.plan.plan import Shape
from waterspout.trident.tridentstate import TridentState

if TYPE_CHECKING:
    from waterspout.trident.topology import TridentTopology

__all__ = ["GroupedStream", "Stream", "new_values"]

AnyAggregator = CombinerAggregator[Any] | ReducerAggregator[Any] | Aggregator[Any]


class Stream:
    """Batches of tuples with named fields. A method returns a new stream."""

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

    def each(self, fields: FieldNames, operation: Any, out: FieldNames | None = None) -> Stream:
        """Append what a function gives for each tuple, or keep what a filter lets through.

        `operation` is a Function or Filter, a plain Python function of the field values, an
        `arrow_function` or `pandas_function`, or a Spark expression (`expr("...")` or a Column).
        With `out` it is a function, without it a filter.
        """
        where = f"each({describe(operation)})"
        names = field_names(fields)
        inputs = self._node.schema.select(names, where=where)
        if out is None:
            predicate = _as_filter(operation, where)
            return self._add(
                Keep, where=where, schema=self.schema, fields=names, predicate=predicate
            )
        output = Schema.parse(out)
        function = _as_function(operation, len(output), where)
        output = _typed(function, output, inputs, where)
        schema = self.schema.append(output, where=where)
        return self._add(
            Each, where=where, schema=schema, fields=names, function=function, out=output
        )

    def filter(self, fields: FieldNames | Any, operation: Any = None) -> Stream:
        """Keep what a filter lets through; without fields it sees the whole tuple."""
        if operation is None:
            return self.each(self.fields, fields)
        return self.each(fields, operation)

    def project(self, fields: FieldNames) -> Stream:
        """Keep only some fields, in this order."""
        schema = self.schema.select(field_names(fields), where="project")
        return self._add(Project, where="project", schema=schema, fields=schema.names)

    def transform(
        self, function: Callable[[Any], Any], out: FieldNames | Schema | None = None
    ) -> Stream:
        """Apply a function from DataFrame to DataFrame; it stays in the JVM.

        `out` declares the fields that come out, where they are not those that go in.
        """
        where = f"transform({describe(function)})"
        if not callable(function):
            raise TopologyError(f"{where} needs a function of a DataFrame, not {function!r}")
        schema = self.schema if out is None else Schema.parse(out).require_types(where=where)
        return self._add(Transform, where=where, schema=schema, function=function)

    def group_by(self, fields: FieldNames) -> GroupedStream:
        """Group each batch by some fields, for the aggregation that follows."""
        schema = self.schema.select(field_names(fields), where="group_by")
        if not len(schema):
            raise TopologyError("group_by needs a field; without one, aggregate the stream itself")
        return GroupedStream(self, schema.names)

    def aggregate(self, *args: Any, out: FieldNames | None = None) -> Stream:
        """Aggregate each batch: `aggregate([fields,] aggregator, out)`.

        One tuple per batch, also for an empty one.
        """
        fields, aggregator, names = _arguments("aggregate", args, out)
        return self._aggregate(None, fields, aggregator, names)

    def persistent_aggregate(
        self, factory: StateFactory, *args: Any, out: FieldNames | None = None
    ) -> TridentState:
        """Aggregate all batches into one value of a state.

        `persistent_aggregate(factory, [fields,] aggregator, out)`
        """
        fields, aggregator, names = _arguments("persistent_aggregate", args, out)
        return self._persist_aggregate((), factory, fields, aggregator, names)

    def partition_persist(
        self,
        factory: StateFactory,
        fields: FieldNames,
        updater: StateUpdater[Any],
        out: FieldNames | None = None,
    ) -> TridentState:
        """Update a state of any kind with some fields; `out` is what the updater emits."""
        where = f"partition_persist({describe(updater)})"
        if not isinstance(updater, StateUpdater):
            raise TopologyError(f"{where} needs a StateUpdater, not {updater!r}")
        inputs = self.schema.select(field_names(fields), where=where)
        schema = Schema.parse(out or ()).require_types(where=where)
        stream = self.project(inputs.names)
        updating = UpdateWith(inputs.names, updater)
        return stream._update(factory, Shape.OWN, inputs, schema, schema, updating)

    def state_query(
        self,
        state: TridentState,
        fields: FieldNames,
        query: QueryFunction[Any, Any],
        out: FieldNames,
    ) -> Stream:
        """Append what a state answers for some fields."""
        where = f"state_query({describe(query)})"
        if not isinstance(query, QueryFunction):
            raise TopologyError(f"{where} needs a QueryFunction, not {query!r}")
        if not isinstance(state, TridentState):
            raise TopologyError(
                f"{where} asks a state of the topology, not {state!r}; "
                "new_static_state() makes one of a factory"
            )
        if state.topology is not self._topology:
            raise TopologyError(f"{where} asks a state of another topology")
        names = field_names(fields)
        inputs = self.schema.select(names, where=where)
        output = Schema.parse(out)
        known = query.output_types(inputs.types) or state.value_types(len(output))
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

    def parallelism_hint(self, n: int) -> Stream:
        """Spread the operations since the last shuffle over `n` partitions."""
        self._topology.hint(self._node, n)
        return self

    # --- how nodes are made ------------------------------------------------------------------

    def _add(self, kind: type[Node], *, where: str, schema: Schema, **fields: Any) -> Stream:
        node = kind(
            number=self._topology.next_number(),
            schema=schema,
            parents=(self._node,),
            name=where,
            **fields,
        )
        return Stream(self._topology, self._topology.add(node))

    def _aggregate(
        self,
        group: tuple[str, ...] | None,
        fields: FieldNames | None,
        aggregator: Any,
        out: FieldNames,
    ) -> Stream:
        where = f"aggregate({describe(aggregator)})"
        if not isinstance(aggregator, (CombinerAggregator, ReducerAggregator, Aggregator)):
            raise TopologyError(
                f"{where} needs a CombinerAggregator, ReducerAggregator or Aggregator"
            )
        own = getattr(aggregator, "input_fields", self.fields)
        names = own if fields is None else field_names(fields)
        inputs = self.schema.select(names, where=where)
        output = _aggregate_types(aggregator, Schema.parse(out), inputs, where)
        keys = self.schema.select(group or (), where=where)
        schema = keys.append(output, where=where)
        return self._add(
            Aggregate, where=where, schema=schema, group=group, fields=names,
            aggregator=aggregator, out=output,
        )  # fmt: skip

    def _persist_aggregate(
        self,
        keys: tuple[str, ...],
        factory: StateFactory,
        fields: FieldNames | None,
        aggregator: Any,
        out: FieldNames,
    ) -> TridentState:
        where = f"persistent_aggregate({describe(aggregator)})"
        shape = Shape.MAP if keys else Shape.SNAPSHOT
        updating: Updating
        if isinstance(aggregator, CombinerAggregator):
            partial = self._aggregate(keys or None, fields, aggregator, out)
            key_schema = partial.schema.select(keys, where=where)
            values = Schema(partial.schema.fields[len(keys) :])
            updating = CombineInto(keys, values.names, aggregator)
            return partial._update(factory, shape, key_schema, values, partial.schema, updating)
        if not isinstance(aggregator, ReducerAggregator):
            raise TopologyError(f"{where} needs a CombinerAggregator or ReducerAggregator")
        names = self.fields if fields is None else field_names(fields)
        inputs = self.schema.select(names, where=where)
        values = _aggregate_types(aggregator, Schema.parse(out), inputs, where)
        key_schema = self.schema.select(keys, where=where)
        wanted = keys + tuple(name for name in names if name not in keys)
        updating = ReduceInto(keys, names, values.names[0], aggregator)
        schema = key_schema.append(values, where=where)
        return self.project(wanted)._update(factory, shape, key_schema, values, schema, updating)

    def _update(
        self,
        factory: StateFactory,
        shape: Shape,
        keys: Schema,
        values: Schema,
        schema: Schema,
        updating: Updating,
    ) -> TridentState:
        if not isinstance(factory, StateFactory):
            raise TopologyError(f"{factory!r} is not a StateFactory; a state is made by a recipe")
        if shape is not Shape.OWN:
            factory = factory.bind(keys, values)
        name = self._topology.add_state(factory, shape)
        update = Update(
            number=self._topology.next_number(),
            schema=schema,
            parents=(self._node,),
            name=f"update of {name}",
            state=name,
            updating=updating,
        )
        self._topology.add(update)
        return TridentState(self._topology, name, keys, values, update)


class GroupedStream:
    """A stream whose batches are grouped by some fields."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys

    @property
    def group_fields(self) -> tuple[str, ...]:
        """The fields that it is grouped by."""
        return self._keys

    def aggregate(self, *args: Any, out: FieldNames | None = None) -> Stream:
        """Aggregate each group of each batch: `aggregate([fields,] aggregator, out)`.

        Gives the group fields and the result; nothing for an empty batch.
        """
        fields, aggregator, names = _arguments("aggregate", args, out)
        return self._stream._aggregate(self._keys, fields, aggregator, names)

    def persistent_aggregate(
        self, factory: StateFactory, *args: Any, out: FieldNames | None = None
    ) -> TridentState:
        """Aggregate all batches into a state, one value per group.

        `persistent_aggregate(factory, [fields,] aggregator, out)`
        """
        fields, aggregator, names = _arguments("persistent_aggregate", args, out)
        return self._stream._persist_aggregate(self._keys, factory, fields, aggregator, names)

    def to_stream(self) -> Stream:
        """Return the stream without its grouping."""
        return self._stream


def new_values(topology: TridentTopology, update: Update) -> Stream:
    """Return the stream of an update's new values."""
    node = NewValues(
        number=topology.next_number(),
        schema=update.schema,
        parents=(update,),
        name=f"new values of {update.state}",
    )
    return Stream(topology, topology.add(node))


def _arguments(
    method: str, args: Sequence[Any], out: FieldNames | None
) -> tuple[FieldNames | None, Any, FieldNames]:
    """Sort out `([fields,] aggregator[, out])`, as Storm's overloads have it."""
    rest = list(args)
    fields = rest.pop(0) if rest and isinstance(rest[0], (str, list, tuple)) else None
    aggregator = rest.pop(0) if rest else None
    if rest and out is None:
        out = rest.pop(0)
    if out is None:
        out = getattr(aggregator, "output_names", None)
    if aggregator is None or out is None or rest:
        raise TopologyError(
            f"{method} takes ([fields,] aggregator, out); got {len(args)} arguments"
        )
    return fields, aggregator, out


def _as_function(operation: Any, width: int, where: str) -> Any:
    if isinstance(operation, (Function, ArrowFunction, PandasFunction, SqlExpression)):
        return operation
    if _is_column(operation):
        return operation
    if isinstance(operation, Filter) or not callable(operation) or isinstance(operation, type):
        raise TopologyError(f"{where} has output fields, so it needs a Function; got {operation!r}")
    return PlainFunction(operation, width)


def _as_filter(operation: Any, where: str) -> Any:
    if isinstance(operation, (Filter, ArrowFunction, PandasFunction, SqlExpression)):
        return operation
    if _is_column(operation):
        return operation
    if isinstance(operation, Function):
        raise TopologyError(f'{where} is a Function, so it needs output fields: out="name type"')
    if not callable(operation) or isinstance(operation, type):
        raise TopologyError(f"{where} needs a Filter or a predicate; got {operation!r}")
    return PlainFilter(operation)


def _is_column(operation: Any) -> bool:
    # Known by its class's home, because pyspark is not imported here.
    kind = type(operation)
    return kind.__module__.startswith("pyspark.sql") and kind.__name__ == "Column"


def _typed(function: Any, output: Schema, inputs: Schema, where: str) -> Schema:
    known = function.output_types(inputs.types) if isinstance(function, Function) else None
    if known is not None:
        if len(known) != len(output):
            raise TopologyError(f"{where} makes {len(known)} fields, but out has {len(output)}")
        output = output.fill_types(known)
    return output.require_types(where=where)


def _aggregate_types(aggregator: Any, output: Schema, inputs: Schema, where: str) -> Schema:
    known = aggregator.output_types(inputs.types)
    if known is not None and len(known) == len(output):
        output = output.fill_types(known)
    width = len(getattr(aggregator, "output_names", ("value",)))
    if not isinstance(aggregator, Aggregator) and len(output) != width:
        gives = "one value" if width == 1 else f"{width} values"
        raise TopologyError(f"{where} gives {gives}, but out has {len(output)} fields")
    return output.require_types(where=where)
