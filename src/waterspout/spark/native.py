"""Built-in aggregators as Spark's own: what `operations.native_forms` says that there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from waterspout._schema import WHOLE, Schema
from waterspout.errors import NumberTooLargeError
from waterspout.spark.failures import TOO_LARGE
from waterspout.trident.operations.adapters import SqlExpression
from waterspout.trident.operations.aggregators import Average, Columns, Count, Max, Min, Sum
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.collecting import EMPTY_TEXT, CollectSet, CountDistinct
from waterspout.trident.operations.native_forms import has_native_form
from waterspout.trident.plan.nodes import Aggregate

__all__ = [
    "native_aggregate",
    "native_aggregates",
    "native_columns",
    "native_finish",
    "summed_column",
]


def native_columns(node: Aggregate) -> list[Column]:
    """Return the aggregates of a node that has a native form, named.

    Those of ours have the right types; whether an expression has, its node must see.
    """
    columns: list[Column] = []
    fields = node.schema.fields[len(node.group or ()) :]
    for one in node.aggregations:
        if is_expression(one.aggregator):
            given = one.aggregator
            column = F.expr(given.text) if isinstance(given, SqlExpression) else given
            columns.append(column.alias(fields[len(columns)][0]))
            continue
        values = native_aggregates(one.aggregator, one.inputs)
        assert values is not None, one
        if node.finished:
            values = _finished(one.aggregator, values)
        own = fields[len(columns) : len(columns) + len(values)]
        columns += [_of_type(v, str(kind), n) for v, (n, kind) in zip(values, own, strict=True)]
    return columns


def summed_column(node: Aggregate, numbers: str) -> Column:
    """Return the one aggregate of a node that counts, from numbers that are to be added up."""
    name, kind = node.schema.fields[-1]
    return _of_type(F.sum(F.col(numbers)), str(kind), name)


def _of_type(value: Column, kind: str, name: str) -> Column:
    """Return a value in the type of its field; an integer that is too large for it is an error."""
    bits = WHOLE.get(kind, 64)
    if bits < 64:  # whatever the session is set to: Spark may wrap it
        declared = f"{TOO_LARGE}field {name!r} is declared as {kind}, and cannot hold "
        said = F.concat(F.lit(declared), value)
        fits = value.between(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        value = F.when(fits | value.isNull(), value).otherwise(F.raise_error(said))
    return value.cast(kind).alias(name)


def _finished(aggregator: Any, values: list[Column]) -> list[Column]:
    several = [aggregator]
    if isinstance(aggregator, Columns):
        several = [one for _, one in aggregator.columns.values()]
    finished = [native_finish(one, value) for one, value in zip(several, values, strict=True)]
    # Whatever Spark aggregates, it finishes.
    return [column for column in finished if column is not None]


def native_aggregates(aggregator: Any, inputs: Schema) -> list[Column] | None:
    """Return the values that an aggregator combines and keeps, one for each of its columns.

    None if Spark cannot give the same. The types are near enough to be cast to those of
    `value_types`.
    """
    if not has_native_form(aggregator, inputs):
        return None
    if isinstance(aggregator, Columns):
        several = [
            native_aggregate(one, inputs.select(fields, where=name))
            for name, (fields, one) in aggregator.columns.items()
        ]
        return [one for one in several if one is not None]
    one = native_aggregate(aggregator, inputs)
    return None if one is None else [one]


def native_aggregate(aggregator: Any, inputs: Schema) -> Column | None:
    """Return the value of one aggregator that is no `Columns`; None if Spark has no such thing."""
    if type(aggregator) is Columns or not has_native_form(aggregator, inputs):
        return None
    if isinstance(aggregator, CountDistinct):
        return _sketch(aggregator, inputs)
    return _NATIVE[type(aggregator)](inputs.names)


def native_finish(aggregator: Any, column: Column) -> Column | None:
    """Return what a reader sees of a value; None if that takes Python."""
    if not aggregator.finishes:
        return column
    finish = _FINISH.get(type(aggregator))
    return None if finish is None else finish(column)


def _sketch(aggregator: CountDistinct, inputs: Schema) -> Column:
    ((name, kind),) = inputs
    if kind == "string":
        # A sketch does not count empty texts, and a collation would make two texts one.
        value = F.when(F.col(name) == F.lit(""), F.lit(EMPTY_TEXT)).otherwise(F.col(name))
    else:
        value = F.col(name).cast("bigint")
    return F.hll_sketch_agg(value, aggregator.lg_k)


def _total(fields: Sequence[str]) -> Column:
    """Return the sum of a field, 0 for nothing; one that is too large fails the batch.

    Whatever the session is set to: `sum` itself would start again from the other end of the
    numbers where ANSI mode is off.
    """
    field = F.col(fields[0])
    total = F.try_sum(field)
    limits = "it is beyond 64 bits, or beyond 38 digits of a decimal"
    error = NumberTooLargeError.of(f"the sum of field {fields[0]!r}", "its total", limits)
    refusal = F.raise_error(F.lit(f"{TOO_LARGE}{error}"))
    none = F.count(field) == 0
    return F.when(none, F.lit(0)).when(total.isNull(), refusal).otherwise(total)


def _average(fields: Sequence[str]) -> Column:
    field = F.col(fields[0])
    total = _total(fields)
    return F.struct(total.alias("sum"), F.count(field).alias("count"))


def _quotient(value: Column) -> Column:
    count = value.getField("count")
    return value.getField("sum").cast("double") / F.nullif(count, F.lit(0))


def _estimate(sketch: Column) -> Column:
    # United with itself, as in Python: the estimate then does not depend on the order of values.
    return F.hll_sketch_estimate(F.hll_union(sketch, sketch))


_NATIVE: dict[type, Callable[[Sequence[str]], Column]] = {
    Count: lambda fields: F.count(F.lit(1)),
    Sum: _total,
    Min: lambda fields: F.min(F.col(fields[0])),
    Max: lambda fields: F.max(F.col(fields[0])),
    Average: _average,
    CollectSet: lambda fields: F.sort_array(F.collect_set(F.col(fields[0]))),
}
_FINISH: dict[type, Callable[[Column], Column]] = {Average: _quotient, CountDistinct: _estimate}
