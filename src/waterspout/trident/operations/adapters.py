"""Other ways to write an operation: a plain function, an Arrow or pandas function, SQL."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Any, ClassVar, Generic, TypeVar, overload

from waterspout._schema import Schema
from waterspout._signatures import refuse_misfit
from waterspout._tuples import TridentTuple
from waterspout.errors import ResultError, TopologyError
from waterspout.trident.operations.annotations import returned_types, yields
from waterspout.trident.operations.contracts import (
    Consumer,
    Filter,
    FlatMapFunction,
    Function,
    MapFunction,
    Operation,
    TridentCollector,
)

__all__ = [
    "ArrowFunction",
    "Nondeterministic",
    "OfFunction",
    "PandasFunction",
    "PlainConsumer",
    "PlainFilter",
    "PlainFlatMap",
    "PlainFunction",
    "PlainMap",
    "SqlExpression",
    "Vectorised",
    "arrow_function",
    "expr",
    "nondeterministic",
    "pandas_function",
    "plain_name",
    "required_function",
    "unmarked",
    "values_of",
]


@dataclass(frozen=True)
class Nondeterministic:
    """A plain function that may give other results another time; see `nondeterministic`."""

    function: Callable[..., Any]
    deterministic: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return plain_name(self.function)


def nondeterministic(operation: object) -> Any:
    """Mark an operation of any form as one that may give other results another time.

    A stream of such an operation counts as opaque: a state that wants the same batch again
    cannot be exact over it. Usable as a decorator of a plain function; an object is copied.
    """
    if isinstance(operation, Operation):
        marked = copy.copy(operation)
        try:
            object.__setattr__(marked, "deterministic", False)
        except AttributeError:
            raise TopologyError(
                f"{operation!r} is as deterministic as what it wraps: mark that"
            ) from None
        return marked
    if isinstance(operation, (Vectorised, SqlExpression)):
        return dataclasses.replace(operation, deterministic=False)
    if not callable(operation) or isinstance(operation, type):
        raise TopologyError(
            f"nondeterministic needs an operation or a function, not {operation!r}; a Column is "
            'written as expr("...", deterministic=False)'
        )
    return Nondeterministic(operation)


def unmarked(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Return a function without its mark, and whether it is deterministic."""
    if isinstance(function, Nondeterministic):
        return function.function, False
    return function, bool(getattr(function, "deterministic", True))


def plain_name(function: Any) -> str:
    """Return what plans and errors call a function."""
    while not isinstance(getattr(function, "__name__", None), str) and hasattr(function, "func"):
        function = function.func  # a partial has no name of its own
    return str(getattr(function, "__name__", type(function).__name__))


def values_of(inputs: Schema) -> str:
    """Return in words what a function is called with that is called with the field values."""
    if len(inputs) == 1:
        return f"the value of {inputs.names[0]}"
    values = f"the values of {', '.join(inputs.names)}, one argument each"
    return values if len(inputs) else "no argument"


class OfFunction(Operation):
    """What adapters of plain functions share: the function, its name and its mark."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.label = plain_name(function)
        self._function, self.deterministic = unmarked(function)

    def _given(self, inputs: Schema) -> tuple[int, str]:
        """Return with how many arguments the function is called, and in words with which."""
        return len(inputs), values_of(inputs)

    def _check_use(self, inputs: Schema, where: str) -> None:
        count, given = self._given(inputs)
        refuse_misfit(self._function, count, where, given)


class _Plain(OfFunction):
    """What adapters share that call a function for each tuple."""

    _many = False

    def __init__(self, function: Callable[..., Any], width: int = 1) -> None:
        super().__init__(function)
        self._width = width
        self._yields = yields(self._function)

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        many = self._many or self._yields
        return returned_types(self._function, self._width, many=many)

    def call_with(self, rows: Iterable[Sequence[Any]]) -> tuple[list[int], list[Any]]:
        """Call the function for many rows at once, without tuples in between.

        Returns how many results each row gave, and all results: bare values where there is one
        output field.
        """
        function = self._function
        if not (self._many or self._yields):
            results = [function(*row) for row in rows]
            return [1] * len(results), results
        counts: list[int] = []
        results, before, yields = [], 0, self._yields
        take, count = results.extend, counts.append
        for row in rows:
            made = function(*row)
            take(made if yields or made.__class__ is list else self._several(made))
            after = len(results)
            count(after - before)
            before = after
        return counts, results

    def results_of(self, rows: Iterable[Sequence[Any]]) -> list[Any]:
        """Return the results of many rows, where nobody asks which row gave how many."""
        made: Iterable[Any] = starmap(self._function, rows)
        if not (self._many or self._yields):
            return list(made)
        if not self._yields:
            made = (one if one.__class__ is list else self._several(one) for one in made)
        return list(chain.from_iterable(made))

    def _several(self, made: Any) -> Iterable[Any]:
        """Return what a function gave that returns many results."""
        if isinstance(made, (str, bytes)) or not isinstance(made, (Iterable, type(None))):
            raise ResultError(
                f"flat_map({self.label}) gave {made!r}, which is not a list of rows; "
                "return a list, or yield"
            )
        return made or ()

    def _row(self, result: Any) -> Sequence[Any]:
        # A row of one field is the bare value, which may itself be a list.
        if self._width == 1:
            return (result,)
        row: Sequence[Any] = result
        return row


class PlainFunction(_Plain, Function):
    """A Python function of the field values.

    It returns the new value (a tuple of them for several fields), or yields one of these per
    output tuple.
    """

    def __init__(self, function: Callable[..., Any], width: int = 1) -> None:
        super().__init__(function, width)
        self.gives_one = not self._yields

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        result = self._function(*tuple.values)
        if self._yields:
            for one in result:
                collector.emit(self._row(one))
        else:
            collector.emit(self._row(result))


class PlainMap(_Plain, MapFunction):
    """A Python function of the field values, which returns the new value, or a tuple of them."""

    def __init__(self, function: Callable[..., Any], width: int = 1) -> None:
        super().__init__(function, width)
        if self._yields:
            raise TopologyError(
                f"map({self.label}) gives one tuple for each, but {self.label} yields; "
                "use flat_map, or return"
            )

    def execute(self, tuple: TridentTuple) -> Sequence[Any]:
        return self._row(self._function(*tuple.values))


class PlainFlatMap(_Plain, FlatMapFunction):
    """A Python function of the field values, which yields or returns any number of rows.

    A row is a value, or a tuple of them for several fields; None instead of rows is no row.
    """

    _many = True

    def execute(self, tuple: TridentTuple) -> Iterable[Sequence[Any]]:
        made = self._function(*tuple.values)
        return [self._row(one) for one in self._several(made)]


class PlainFilter(_Plain, Filter):
    """A Python predicate over the field values."""

    def __init__(self, predicate: Callable[..., Any]) -> None:
        super().__init__(predicate)
        if self._yields:
            raise TopologyError(
                f"{self.label} yields, so it is no predicate: without `out` an operation is a "
                f'filter; write out="name type" to make it a function'
            )

    def _check_use(self, inputs: Schema, where: str) -> None:
        super()._check_use(inputs, where)
        returns = returned_types(self._function, 1, many=False) or ["boolean"]
        if returns != ["boolean"]:
            raise TopologyError(
                f"{where} returns {returns[0]}, so it is no predicate: without `out` an "
                'operation is a filter; write out="name type" to make it a function'
            )

    def is_keep(self, tuple: TridentTuple) -> bool:
        return bool(self._function(*tuple.values))


class PlainConsumer(_Plain, Consumer):
    """A Python function that is called with the field values; what it returns does not matter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        if self._yields:
            raise TopologyError(
                f"peek({self.label}) only calls {self.label}, which yields: none of it would run"
            )

    def accept(self, tuple: TridentTuple) -> None:
        self._function(*tuple.values)


@dataclass(frozen=True)
class Vectorised:
    """A function over many rows at once."""

    function: Callable[..., Any]
    deterministic: bool = True
    takes: ClassVar[str] = "all rows"

    @property
    def label(self) -> str:
        """The function's own name."""
        return plain_name(self.function)


_V = TypeVar("_V", bound=Vectorised)


class ArrowFunction(Vectorised):
    """A function over whole Arrow batches.

    It gets a RecordBatch of the input fields and returns an array, a tuple of arrays, or a
    RecordBatch of the output fields, as long as its input; or `(indices, arrays)`, where
    `indices` says for each output row which input row it belongs to. As a filter (no output
    fields) it returns a boolean array. In `map` and `flat_map` the rows that it gives take the
    place of its input; in `flat_map` there are always indices.
    """

    takes = "one Arrow batch"


class PandasFunction(Vectorised):
    """A function over pandas DataFrames of the input fields.

    It gives a Series or DataFrame as long as its input, or `(indices, columns)` as an
    `ArrowFunction` does; as a filter, a boolean Series.
    """

    takes = "one DataFrame"


@dataclass(frozen=True)
class SqlExpression:
    """A Spark SQL expression over the fields of the stream; stays in the JVM."""

    text: str
    deterministic: bool = True

    @property
    def label(self) -> str:
        """The expression itself."""
        return self.text


class _Marker(Generic[_V]):
    """Marks a function as one over many rows. A decorator, with options or without."""

    def __init__(self, kind: type[_V], name: str) -> None:
        self._kind = kind
        self.__name__ = name

    @overload
    def __call__(self, function: Callable[..., object], *, deterministic: bool = True) -> _V: ...

    @overload
    def __call__(
        self, function: None = None, *, deterministic: bool = True
    ) -> Callable[[Callable[..., object]], _V]: ...

    def __call__(
        self, function: Callable[..., object] | None = None, *, deterministic: bool = True
    ) -> _V | Callable[[Callable[..., object]], _V]:
        if function is None:
            return lambda f: self(f, deterministic=deterministic)
        plain, own = unmarked(required_function(function, self.__name__))
        return self._kind(plain, deterministic and own)


arrow_function = _Marker(ArrowFunction, "arrow_function")
"""Mark a function as one over Arrow batches."""

pandas_function = _Marker(PandasFunction, "pandas_function")
"""Mark a function as one over DataFrames."""


def expr(text: str, *, deterministic: bool = True) -> SqlExpression:
    """Return a Spark SQL expression, to be used where a function or filter is.

    >>> expr("upper(word)").text
    'upper(word)'
    """
    if not isinstance(text, str):
        raise TopologyError(f"expr needs the text of a Spark SQL expression, not {text!r}")
    return SqlExpression(text, deterministic)


def required_function(function: Any, where: str) -> Callable[..., Any]:
    """Refuse what cannot be called."""
    if not callable(function):
        raise TopologyError(f"{where} needs a function, not {function!r}")
    found: Callable[..., Any] = function
    return found
