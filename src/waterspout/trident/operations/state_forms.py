"""Queries and updates of a state as plain functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, overload

from waterspout._schema import FieldNames, Schema
from waterspout._tuples import TridentTuple
from waterspout.trident.operations.adapters import OfFunction
from waterspout.trident.operations.aggregate_forms import rows_of
from waterspout.trident.operations.annotations import returned_types
from waterspout.trident.operations.contracts import QueryFunction, StateUpdater, TridentCollector

__all__ = ["PlainQuery", "PlainUpdater", "query", "updater"]


class PlainQuery(OfFunction, QueryFunction[Any, Any]):
    """A function of a state and the tuples of a partition; it gives one answer per tuple."""

    _width = 1

    def _given(self, inputs: Schema) -> tuple[int, str]:
        return 2, "a state and a list of tuples"

    def of_width(self, width: int) -> PlainQuery:
        """Return the same query for so many output fields."""
        bound = copy.copy(self)
        bound._width = width
        return bound

    def batch_retrieve(self, state: Any, tuples: Sequence[TridentTuple]) -> Sequence[Any]:
        return list(self._function(state, tuples))

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        """Emit the answer: a bare value for one field, a tuple for several."""
        collector.emit((result,) if self._width == 1 else result)

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        return returned_types(self._function, self._width, many=True)


class PlainUpdater(OfFunction, StateUpdater[Any]):
    """A function of a state and the tuples of a partition; rows that it gives are new values."""

    def __init__(self, function: Callable[..., object], keys: FieldNames | None = None) -> None:
        super().__init__(function)
        self.keys = keys

    def _given(self, inputs: Schema) -> tuple[int, str]:
        return 2, "a state and a list of tuples"

    def update_state(
        self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector
    ) -> None:
        """Call the function, to its end if it yields."""
        for row in rows_of(self._function(state, tuples)):
            collector.emit(row)


def query(function: Callable[..., object]) -> PlainQuery:
    """Make a QueryFunction of `f(state, tuples)`, which returns one answer per tuple.

    >>> from waterspout._tuples import field_index
    >>> @query
    ... def known(state, tuples) -> list[bool]:
    ...     return [row["word"] in state for row in tuples]
    >>> known.batch_retrieve({"storm"}, [TridentTuple(("storm",), field_index(["word"]))])
    [True]
    """
    return PlainQuery(function)


@overload
def updater(function: Callable[..., object], *, keys: FieldNames | None = None) -> PlainUpdater: ...


@overload
def updater(
    function: None = None, *, keys: FieldNames | None = None
) -> Callable[[Callable[..., object]], PlainUpdater]: ...


def updater(
    function: Callable[..., object] | None = None, *, keys: FieldNames | None = None
) -> PlainUpdater | Callable[[Callable[..., object]], PlainUpdater]:
    """Make a StateUpdater of `f(state, tuples)`; rows that it returns or yields are emitted.

    `@updater(keys="user")` says which fields are the key of a map, as `StateUpdater.keys`.
    """
    if function is None:
        return lambda f: PlainUpdater(f, keys)
    return PlainUpdater(function, keys)
