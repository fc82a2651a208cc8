"""Aggregators as plain functions, and as functions over Arrow tables or pandas DataFrames."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from waterspout._schema import Schema
from waterspout._signatures import refuse_misfit
from waterspout._tuples import TridentTuple
from waterspout.errors import TopologyError
from waterspout.trident.operations.adapters import (
    OfFunction,
    plain_name,
    required_function,
    unmarked,
    values_of,
)
from waterspout.trident.operations.annotations import returned_types, row_types
from waterspout.trident.operations.contracts import (
    Aggregator,
    CombinerAggregator,
    GroupedMultiReducer,
    MultiReducer,
    ReducerAggregator,
    TridentCollector,
)

__all__ = [
    "ArrowAggregator",
    "PandasAggregator",
    "PlainAggregator",
    "PlainCombiner",
    "PlainGroupedMultiReducer",
    "PlainMultiReducer",
    "PlainReducer",
    "aggregator",
    "arrow_aggregator",
    "combiner",
    "grouped_multi_reducer",
    "multi_reducer",
    "pandas_aggregator",
    "reducer",
    "rows_of",
]

_tuple: Any = tuple  # some methods have an argument of that name, as Storm's do


def rows_of(result: Any) -> list[Sequence[Any]]:
    """Return what a plain function gave as rows.

    A list, or what was yielded, is many rows; None is none. A row is a tuple, and a bare value
    is a row of one field.

    >>> rows_of(3), rows_of((1, "a")), rows_of([(1, "a"), (2, "b")]), rows_of(None)
    ([(3,)], [(1, 'a')], [(1, 'a'), (2, 'b')], [])
    """
    if result is None:
        return []
    many = result if isinstance(result, (list, Iterator)) else (result,)
    return [row if isinstance(row, (tuple, TridentTuple)) else (row,) for row in many]


class PlainReducer(OfFunction, ReducerAggregator[Any]):
    """A function of the value so far and the field values, which returns the next value."""

    def __init__(self, function: Callable[..., Any], init: Any, out: str | None) -> None:
        super().__init__(function)
        self._init = init
        known = _type(out, f"reducer({self.label})")
        self._types = [known] if known else returned_types(self._function, 1, many=False)

    def _given(self, inputs: Schema) -> tuple[int, str]:
        return 1 + len(inputs), f"the value so far and {values_of(inputs)}"

    def init(self) -> Any:
        return _fresh(self._init)

    def reduce(self, value: Any, tuple: TridentTuple) -> Any:
        return self._function(value, *tuple.values)

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        return self._types


def reducer(
    init: object = None, out: str | None = None
) -> Callable[[Callable[..., object]], PlainReducer]:
    """Make a ReducerAggregator of `f(value, *fields)`, which returns the next value.

    `init` is the value to start from, or a function without arguments that makes it. The type
    is `out`, or what the function is annotated to return.

    >>> @reducer(init=0)
    ... def total(value, amount) -> int:
    ...     return value + amount
    >>> total.output_types([None])
    ['bigint']
    """
    if inspect.isfunction(init) and _takes_something(init):
        raise TopologyError(
            f"reducer needs its start value: write @reducer(init=0) before {plain_name(init)}"
        )
    return lambda function: PlainReducer(required_function(function, "reducer"), init, out)


class PlainCombiner(CombinerAggregator[Any]):
    """Three functions (and one more, to finish) as a combiner."""

    def __init__(
        self,
        init: Callable[..., Any],
        combine: Callable[[Any, Any], Any],
        zero: Any,
        types: tuple[str | None, str | None],
        finish: Callable[[Any], Any] | None,
        label: str,
    ) -> None:
        self.label = label
        (self._init, own), (self._combine, also) = unmarked(init), unmarked(combine)
        self.deterministic = own and also
        self._zero = zero
        self._out, self._value = types
        self._finish = finish
        self.finishes = finish is not None

    def _check_use(self, inputs: Schema, where: str) -> None:
        refuse_misfit(self._init, len(inputs), f"{where}: its init", values_of(inputs))
        refuse_misfit(self._combine, 2, f"{where}: its combine", "two values")
        if self._finish is not None:
            refuse_misfit(self._finish, 1, f"{where}: its finish", "one value")

    def init(self, tuple: TridentTuple) -> Any:
        return self._init(*tuple.values)

    def combine(self, left: Any, right: Any) -> Any:
        return self._combine(left, right)

    def zero(self) -> Any:
        return _fresh(self._zero)

    def finish(self, value: Any) -> Any:
        return value if self._finish is None else self._finish(value)

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        if self._out is not None:
            return [self._out]
        if self._finish is not None:
            return returned_types(self._finish, 1, many=False)
        return self.value_types(inputs)

    def value_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        if self._value is not None:
            return [self._value]
        if self._finish is None and self._out is not None:
            return [self._out]
        return returned_types(self._combine, 1, many=False) or returned_types(
            self._init, 1, many=False
        )


def combiner(
    init: Callable[..., object],
    combine: Callable[..., object],
    zero: object,
    out: str | None = None,
    *,
    finish: Callable[..., object] | None = None,
    value: str | None = None,
    name: str | None = None,
) -> PlainCombiner:
    """Make a CombinerAggregator of functions.

    `init(*fields)` makes a value of a tuple, `combine(a, b)` one of two; `zero` is that of no
    tuples, or a function that makes it. With `finish`, what a reader sees is `finish(value)`: then
    `out` is the type of that, and `value` the type of what is combined and kept.

    >>> longest = combiner(len, max, 0, out="bigint")
    >>> longest.combine(longest.init(TridentTuple(("storm",), {"word": 0})), 3)
    5
    """
    for role, given in {"init": init, "combine": combine}.items():
        required_function(given, f"combiner: {role}")
    if finish is not None:
        required_function(finish, "combiner: finish")
    label = name or f"combiner({plain_name(init)}, {plain_name(combine)})"
    made = PlainCombiner(
        init, combine, zero, (_type(out, label), _type(value, label)), finish, label
    )
    if made.finishes and made.value_types(()) is None:
        raise TopologyError(
            f"{label} finishes, so what it keeps has a type of its own: "
            'value="struct<sum:double,n:bigint>", for example, or annotate its functions'
        )
    return made


class _OverRows(OfFunction):
    """What adapters share that hold all tuples and call a function once."""

    _takes = "one list of tuples"

    def _given(self, inputs: Schema) -> tuple[int, str]:
        return 1, self._takes

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        return row_types(self._function)


class PlainAggregator(_OverRows, Aggregator[list[TridentTuple]]):
    """A function from the list of a batch's (or group's) tuples to rows."""

    def init(self, batch_id: Any, collector: TridentCollector) -> list[TridentTuple]:
        return []

    def aggregate(
        self, value: list[TridentTuple], tuple: TridentTuple, collector: TridentCollector
    ) -> None:
        value.append(tuple)

    def complete(self, value: list[TridentTuple], collector: TridentCollector) -> None:
        for row in rows_of(self._function(value)):
            collector.emit(row)


def aggregator(function: Callable[..., object]) -> PlainAggregator:
    """Make an Aggregator of a function from the list of tuples to rows.

    It returns one row or a list of them, or yields rows; a row of one field is the bare value.

    >>> @aggregator
    ... def spread(rows) -> float:
    ...     return max(r["x"] for r in rows) - min(r["x"] for r in rows) if rows else 0.0
    >>> spread.output_types([])
    ['double']
    """
    return PlainAggregator(required_function(function, "aggregator"))


class ArrowAggregator(PlainAggregator):
    """A function from the Arrow table of a batch (or group) to rows."""

    _takes = "one Arrow table"

    def run_table(self, table: pa.Table) -> Sequence[Sequence[Any]]:
        """Call the function with a table of the input fields; return its rows."""
        return _rows_of_table(self._function(table))

    def complete(self, value: list[TridentTuple], collector: TridentCollector) -> None:
        for row in self.run_table(_table_of(value)):
            collector.emit(row)


class PandasAggregator(ArrowAggregator):
    """A function from the DataFrame of a batch (or group) to rows."""

    _takes = "one DataFrame"

    def run_table(self, table: pa.Table) -> Sequence[Sequence[Any]]:
        return _rows_of_table(self._function(table.to_pandas()))


def arrow_aggregator(function: Callable[..., object]) -> ArrowAggregator:
    """Make an Aggregator of a function from an Arrow table to rows.

    It returns a table (fields go by position), an array of rows of one field, a tuple (one row),
    a list of tuples, or one value. It is called once per batch, partition or group.
    """
    return ArrowAggregator(required_function(function, "arrow_aggregator"))


def pandas_aggregator(function: Callable[..., object]) -> PandasAggregator:
    """Make an Aggregator of a function from a DataFrame to rows.

    It returns a DataFrame (fields go by position), a Series of rows of one field, a tuple (one
    row), a list of tuples, or one value. It is called once per batch, partition or group.
    """
    return PandasAggregator(required_function(function, "pandas_aggregator"))


class _OverStreams(_OverRows):
    """What adapters share that hold the tuples of several streams."""

    before = 0  # arguments before the streams
    streams = 0

    def _given(self, inputs: Schema) -> tuple[int, str]:
        first = "the group and " if self.before else ""
        each = f"one list of tuples for each of the {self.streams} streams"
        return self.before + self.streams, f"{first}{each}"

    def bound(self: _S, streams: int) -> _S:
        """Return the same reducer for so many streams."""
        made = copy.copy(self)
        made.streams = streams
        return made


_S = TypeVar("_S", bound=_OverStreams)


class PlainMultiReducer(_OverStreams, MultiReducer[list[list[TridentTuple]]]):
    """A function of one list of tuples per stream, which gives rows."""

    def init(self, collector: TridentCollector) -> list[list[TridentTuple]]:
        return [[] for _ in range(self.streams)]

    def execute(
        self,
        value: list[list[TridentTuple]],
        stream_index: int,
        tuple: TridentTuple,
        collector: TridentCollector,
    ) -> None:
        value[stream_index].append(tuple)

    def complete(self, value: list[list[TridentTuple]], collector: TridentCollector) -> None:
        for row in rows_of(self._function(*value)):
            collector.emit(row)


class PlainGroupedMultiReducer(_OverStreams, GroupedMultiReducer[list[list[TridentTuple]]]):
    """A function of a group and one list of its tuples per stream, which gives rows."""

    before = 1

    def init(self, collector: TridentCollector, group: TridentTuple) -> list[list[TridentTuple]]:
        return [[] for _ in range(self.streams)]

    def execute(
        self,
        value: list[list[TridentTuple]],
        stream_index: int,
        group: TridentTuple,
        tuple: TridentTuple,
        collector: TridentCollector,
    ) -> None:
        value[stream_index].append(tuple)

    def complete(
        self, value: list[list[TridentTuple]], group: TridentTuple, collector: TridentCollector
    ) -> None:
        for row in rows_of(self._function(group, *value)):
            collector.emit(row)


def multi_reducer(function: Callable[..., object]) -> PlainMultiReducer:
    """Make a MultiReducer of `f(tuples_of_first, tuples_of_second, ...)`, which gives rows."""
    return PlainMultiReducer(required_function(function, "multi_reducer"))


def grouped_multi_reducer(function: Callable[..., object]) -> PlainGroupedMultiReducer:
    """Make a GroupedMultiReducer of `f(group, tuples_of_first, ...)`, which gives rows."""
    return PlainGroupedMultiReducer(required_function(function, "grouped_multi_reducer"))


def _fresh(value: Any) -> Any:
    """Return a start value that nobody else changes."""
    return value() if callable(value) else copy.deepcopy(value)


def _takes_something(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def _type(ddl: str | None, where: str) -> str | None:
    """Return the canonical form of a type, which may be written with a name or without."""
    if ddl is None:
        return None
    try:
        bare = Schema.parse(f"value {ddl}")
    except TopologyError:
        bare = Schema.parse(ddl)
    if len(bare) != 1 or bare.types[0] is None:
        raise TopologyError(f"{where} gives one value; write its type, out={ddl!r} is not one")
    return bare.types[0]


def _table_of(tuples: Sequence[TridentTuple]) -> pa.Table:
    names = tuples[0].fields if tuples else ()
    return pa.table({name: [row[name] for row in tuples] for name in names})


def _rows_of_table(result: Any) -> list[Sequence[Any]]:
    if hasattr(result, "columns") and hasattr(result, "iloc"):
        result = pa.Table.from_pandas(result, preserve_index=False)
    if isinstance(result, (pa.Table, pa.RecordBatch)):
        columns = [column.to_pylist() for column in result.columns]
        return list(zip(*columns, strict=True)) if columns else []
    if isinstance(result, (pa.Array, pa.ChunkedArray)):
        return [(value,) for value in result.to_pylist()]
    if hasattr(result, "iloc") and hasattr(result, "to_numpy"):  # a Series
        return [(value,) for value in pa.Array.from_pandas(result).to_pylist()]
    return [_tuple(map(_plain_value, row)) for row in rows_of(result)]


def _plain_value(value: Any) -> Any:
    """Return a scalar of Arrow, numpy or pandas as Python's own."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    kind = type(value).__module__.partition(".")[0]
    if kind == "pandas" and type(value).__name__ in ("NAType", "NaTType"):
        return None
    if kind == "pandas" and hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    if kind == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return value
