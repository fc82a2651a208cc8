"""Turns what a stream's method was given into the operation it needs, or says what is wrong."""

from __future__ import annotations

from typing import Any

from waterspout._schema import TYPE_OF_CLASS, Schema
from waterspout._signatures import refuse_misfit
from waterspout.errors import TopologyError
from waterspout.trident.operations.adapters import (
    PlainConsumer,
    PlainFilter,
    PlainFlatMap,
    PlainFunction,
    PlainMap,
    SqlExpression,
    Vectorised,
)
from waterspout.trident.operations.aggregate_forms import (
    PlainGroupedMultiReducer,
    PlainMultiReducer,
)
from waterspout.trident.operations.contracts import (
    Aggregator,
    CombinerAggregator,
    Consumer,
    Filter,
    FlatMapFunction,
    Function,
    GroupedMultiReducer,
    MapFunction,
    MultiReducer,
    Operation,
    QueryFunction,
    ReducerAggregator,
    StateUpdater,
)
from waterspout.trident.operations.state_forms import PlainQuery, PlainUpdater

__all__ = [
    "as_aggregator",
    "as_consumer",
    "as_filter",
    "as_flat_map",
    "as_function",
    "as_map",
    "as_multi_reducer",
    "as_query",
    "as_updater",
    "is_column",
    "is_expression",
    "typed",
    "usable",
]


def as_function(operation: Any, width: int, where: str) -> Any:
    """Return a Function, a vectorised function or an expression."""
    if isinstance(operation, (Function, Vectorised)) or is_expression(operation):
        return operation
    _require_function(operation, f"{where} has output fields, so it needs a Function")
    return PlainFunction(operation, width)


def as_filter(operation: Any, where: str) -> Any:
    """Return a Filter, a vectorised function or an expression."""
    if isinstance(operation, (Filter, Vectorised)) or is_expression(operation):
        return operation
    if isinstance(operation, Function):
        raise TopologyError(f'{where} is a Function, so it needs output fields: out="name type"')
    _require_function(operation, f"{where} needs a Filter or a predicate")
    return PlainFilter(operation)


def as_map(operation: Any, width: int, where: str) -> Any:
    """Return a MapFunction, a vectorised function or an expression."""
    if isinstance(operation, (MapFunction, Vectorised)) or is_expression(operation):
        return operation
    _require_function(operation, f"{where} needs a MapFunction or a function of the field values")
    return PlainMap(operation, width)


def as_flat_map(operation: Any, width: int, where: str) -> Any:
    """Return a FlatMapFunction, a vectorised function or an expression."""
    if isinstance(operation, (FlatMapFunction, Vectorised)) or is_expression(operation):
        return operation
    wanted = f"{where} needs a FlatMapFunction or a function that yields"
    _require_function(operation, wanted)
    return PlainFlatMap(operation, width)


def as_consumer(operation: Any, where: str) -> Consumer:
    """Return a Consumer."""
    if isinstance(operation, Consumer):
        return operation
    _require_function(operation, f"{where} needs a Consumer or a function of the field values")
    return PlainConsumer(operation)


def as_aggregator(operation: Any, where: str) -> Any:
    """Return an aggregator of one of the three kinds."""
    if isinstance(operation, (CombinerAggregator, ReducerAggregator, Aggregator)):
        return operation
    advice = ""
    if isinstance(operation, type):
        advice = f"; write {operation.__name__}()"
    elif callable(operation) and not isinstance(operation, Operation):
        advice = "; mark a function with @aggregator, @reducer, @arrow_aggregator or such"
    raise TopologyError(
        f"{where} needs a CombinerAggregator, ReducerAggregator or Aggregator, "
        f"not {operation!r}{advice}"
    )


def as_multi_reducer(operation: Any, streams: int, where: str, *, grouped: bool = False) -> Any:
    """Return a MultiReducer, or a GroupedMultiReducer, for so many streams.

    A plain function takes a list of the tuples of each; before them the group, if there is one.
    """
    plain = PlainGroupedMultiReducer if grouped else PlainMultiReducer
    contract = GroupedMultiReducer if grouped else MultiReducer
    if not isinstance(operation, contract):
        _require_function(operation, f"{where} needs a {contract.__name__}")
        operation = plain(operation)
    return operation.bound(streams) if isinstance(operation, plain) else operation


def as_query(operation: Any, width: int, where: str) -> QueryFunction[Any, Any]:
    """Return a QueryFunction."""
    if not isinstance(operation, QueryFunction):
        wanted = f"{where} needs a QueryFunction or a function of (state, tuples)"
        _require_function(operation, wanted)
        operation = PlainQuery(operation)
    return operation.of_width(width) if isinstance(operation, PlainQuery) else operation


def as_updater(operation: Any, where: str) -> StateUpdater[Any]:
    """Return a StateUpdater."""
    if isinstance(operation, StateUpdater):
        return operation
    _require_function(operation, f"{where} needs a StateUpdater or a function of (state, tuples)")
    return PlainUpdater(operation)


def usable(operation: Any, inputs: Schema, where: str) -> Any:
    """Return an operation that can be called with these fields; refuse another one now."""
    if isinstance(operation, Operation):
        operation._check_use(inputs, where)
    elif isinstance(operation, Vectorised):
        refuse_misfit(operation.function, 1, where, operation.takes)
    return operation


def is_column(operation: Any) -> bool:
    """Whether this is a Column of Spark's."""
    # Recognised by the module of its class, because pyspark is not imported here.
    kind = type(operation)
    return kind.__module__.startswith("pyspark.sql") and kind.__name__ == "Column"


def typed(operation: Any, output: Schema, inputs: Schema, where: str) -> Schema:
    """Return the output fields with the types that the operation knows; refuse one without.

    An operation that cannot be called with its inputs is refused as well.
    """
    usable(operation, inputs, where)
    if not len(output):
        raise TopologyError(f'{where} has no output field; write out="name type"')
    known = operation.output_types(inputs.types) if isinstance(operation, Operation) else None
    if known is not None:
        if len(known) != len(output):
            raise TopologyError(f"{where} makes {len(known)} fields, but out has {len(output)}")
        output = output.fill_types(known)
    for name, kind in output:
        if kind is None:
            raise TopologyError(
                f"{where} does not know the type of its output field {name!r}; write it as Spark "
                f'DDL, for example out="{name} string"{_or_annotate(operation, len(output))}'
            )
    return output


def _or_annotate(operation: Any, width: int) -> str:
    # A class of the user's has no annotation to go by; a plain function has.
    label = getattr(operation, "label", None)
    if label is None or not isinstance(operation, Operation):
        return ""
    row = "str" if width == 1 else f"tuple[{', '.join(['str'] * width)}]"
    many = isinstance(operation, FlatMapFunction) or getattr(operation, "_yields", False)
    return f", or annotate what it returns: def {label}(...) -> " + (
        f"Iterator[{row}]" if many else row
    )


def is_expression(operation: Any) -> bool:
    """Whether an operation is a Spark expression, or several of them."""
    if isinstance(operation, (list, tuple)):
        return bool(operation) and all(map(is_expression, operation))
    return isinstance(operation, SqlExpression) or is_column(operation)


def _require_function(operation: Any, wanted: str) -> None:
    """Refuse what is no plain function, such as an operation of another kind or a class."""
    if isinstance(operation, type) and issubclass(operation, Operation):
        raise TopologyError(f"{wanted}; got the class, write {operation.__name__}()")
    if isinstance(operation, str):
        raise TopologyError(f"{wanted}; an expression of Spark's is written expr({operation!r})")
    other = isinstance(operation, (Operation, Vectorised)) or is_expression(operation)
    is_class = isinstance(operation, type) and operation not in TYPE_OF_CLASS
    if other or not callable(operation) or is_class:
        raise TopologyError(f"{wanted}; got {operation!r}")
