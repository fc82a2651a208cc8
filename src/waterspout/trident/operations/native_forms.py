"""Which built-in aggregators Spark can do itself, in the JVM; told without pyspark."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from waterspout._schema import Schema
from waterspout.trident.operations.aggregators import Average, Columns, Count, Max, Min, Sum
from waterspout.trident.operations.collecting import CollectSet, CountDistinct

__all__ = ["has_native_form"]

_Types = Sequence[str | None]


def has_native_form(aggregator: Any, inputs: Schema) -> bool:
    """Whether Spark gives the same value as an aggregator over fields of these types.

    Exact classes only: a subclass may do something else.
    """
    if type(aggregator) is Columns:
        return all(
            has_native_form(column, inputs.select(fields, where=name))
            for name, (fields, column) in aggregator.columns.items()
        )
    test = _NATIVE.get(type(aggregator))
    return test is not None and test(inputs.types)


def _always(types: _Types) -> bool:
    return True


def _is_one_of(pattern: str) -> Callable[[_Types], bool]:
    def matches(types: _Types) -> bool:
        return len(types) == 1 and re.fullmatch(pattern, types[0] or "", re.I) is not None

    return matches


_NATIVE: dict[type, Callable[[_Types], bool]] = {
    Count: _always,
    Sum: _always,
    Min: _always,
    Max: _always,
    Average: _always,
    # Not doubles: which of 0.0 and -0.0 Spark's set keeps, or both, is not promised.
    CollectSet: _is_one_of(
        r"string|bigint|int|smallint|tinyint|boolean|binary|date|timestamp|timestamp_ntz"
        r"|decimal\(.*\)|varchar\(.*\)|char\(.*\)"
    ),
    # What Spark's sketches take, and the Python package takes the same way.
    CountDistinct: _is_one_of(r"string|bigint|int|smallint|tinyint"),
}
