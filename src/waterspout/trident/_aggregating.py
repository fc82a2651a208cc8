"""How the arguments of aggregations are read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waterspout._arrow import arrow_type
from waterspout._fitting import widens
from waterspout._safe_repr import shown
from waterspout._schema import WHOLE, FieldNames, Schema, field_names
from waterspout.errors import TopologyError
from waterspout.trident.operations.coercion import as_aggregator, is_expression, typed
from waterspout.trident.operations.contracts import Aggregator, CombinerAggregator, describe
from waterspout.trident.operations.extremes import MaxBy, MinBy
from waterspout.trident.operations.native_forms import has_native_form
from waterspout.trident.plan.nodes import Aggregation

__all__ = ["arguments", "make_aggregation", "value_schema"]


_FIRST = {"persistent_aggregate": "factory, ", "state_query": "state, ", "window": "config, "}
_OPERATIONS = {"partition_persist": "updater", "state_query": "query"}


def arguments(
    method: str, args: Sequence[Any], out: FieldNames | None, *, needs_out: bool = True
) -> tuple[FieldNames | None, Any, FieldNames]:
    """Sort out `([fields,] operation[, out])`, as Storm's overloads have it."""
    rest = list(args)
    fields = None
    if rest and (rest[0] is None or isinstance(rest[0], (str, list, tuple))):
        fields = rest.pop(0)
    operation = rest.pop(0) if rest else None
    if rest and out is None:
        out = rest.pop(0)
    if out is None:
        out = getattr(operation, "output_names", None)
    if out is None and not needs_out:
        out = ()
    kind = _OPERATIONS.get(method, "aggregator")
    if operation is not None and out is None:
        raise TopologyError(
            f"{method}({describe(operation)}) does not say what its result is called; write "
            f'{method}({_FIRST.get(method, "")}[fields,] {kind}, "name"), with a type behind the '
            "name if it has none"
        )
    if operation is None or out is None or rest:
        got = ", ".join(shown(arg, 40) for arg in args) or "nothing"
        raise TopologyError(f"{method} takes ([fields,] {kind}, out); got {got}")
    return fields, operation, out


def make_aggregation(
    schema: Schema, method: str, args: Sequence[Any], out: FieldNames | None
) -> Aggregation:
    """Check `([fields,] aggregator[, out])` against the fields; return it with its types."""
    fields, operation, names = arguments(method, args, out)
    where = f"{method}({describe(operation)})"
    aggregator = operation if is_expression(operation) else as_aggregator(operation, where)
    own = getattr(aggregator, "input_fields", schema.names)
    inputs = schema.select(own if fields is None else field_names(fields), where=where)
    if isinstance(aggregator, (MinBy, MaxBy)) and aggregator.field is not None:
        inputs.select([aggregator.field], where=where)
    return Aggregation(inputs, aggregator, _output(aggregator, Schema.parse(names), inputs, where))


def _output(aggregator: Any, output: Schema, inputs: Schema, where: str) -> Schema:
    if is_expression(aggregator):
        if len(output) != 1:
            raise TopologyError(f"{where} is one expression, but out has {len(output)} fields")
        return output.require_types(where=where)
    known = aggregator.output_types(inputs.types)
    if known is not None and len(known) == len(output):
        output = output.fill_types(known)
        if has_native_form(aggregator, inputs):
            _refuse_narrower(output, known, where)
    if not isinstance(aggregator, Aggregator):
        width = len(getattr(aggregator, "output_names", ("value",)))
        if len(output) != width:
            gives = "one value" if width == 1 else f"{width} values"
            raise TopologyError(f"{where} gives {gives}, but out has {len(output)} fields")
    return typed(aggregator, output, inputs, where)


def _refuse_narrower(output: Schema, known: Sequence[str | None], where: str) -> None:
    """Refuse a type in `out` that does not hold what the aggregator gives: Spark would cut it.

    A smaller integer will do: one that is too large for it is an error then.
    """
    for (name, kind), own in zip(output, known, strict=True):
        both_whole = kind in WHOLE and own in WHOLE
        if both_whole or kind == own:
            continue
        if not widens(arrow_type(own or "?"), arrow_type(kind or "?")):
            raise TopologyError(
                f"{where} gives {own}, but {name} is declared as {kind}, which does not hold "
                f'every {own}; write out="{name}"'
            )


def value_schema(aggregation: Aggregation) -> Schema:
    """Return the fields of a combiner's results as a state keeps them."""
    assert isinstance(aggregation.aggregator, CombinerAggregator)
    known = aggregation.aggregator.value_types(aggregation.inputs.types)
    if known is None or not aggregation.aggregator.finishes:
        return aggregation.out
    # Where the aggregator does not know the type of what it keeps, it is the type in `out`.
    return Schema(tuple(zip(aggregation.out.names, known, strict=True))).fill_types(
        aggregation.out.types
    )
