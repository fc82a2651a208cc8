"""Other ways to write an operation: a plain function, an Arrow or pandas function, SQL."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from waterspout.trident.operations.contracts import Filter, Function, TridentCollector
from waterspout.tuples import TridentTuple

__all__ = [
    "ArrowFunction",
    "PandasFunction",
    "PlainFilter",
    "PlainFunction",
    "SqlExpression",
    "arrow_function",
    "expr",
    "pandas_function",
]


class PlainFunction(Function):
    """A Python function of the field values.

    It returns the new value (a tuple of them for several fields), or yields one of these per
    output tuple.
    """

    def __init__(self, function: Callable[..., Any], width: int) -> None:
        self.label = getattr(function, "__name__", "function")
        self._function = function
        self._width = width
        self._yields = inspect.isgeneratorfunction(function)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        """Call the function with the values."""
        result = self._function(*tuple.values)
        for one in result if self._yields else (result,):
            collector.emit((one,) if self._width == 1 else one)


class PlainFilter(Filter):
    """A Python predicate over the field values."""

    def __init__(self, predicate: Callable[..., Any]) -> None:
        self.label = getattr(predicate, "__name__", "predicate")
        self._predicate = predicate

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Call the predicate with the values."""
        return bool(self._predicate(*tuple.values))


@dataclass(frozen=True)
class ArrowFunction:
    """A function over whole Arrow batches.

    It gets a RecordBatch of the input fields and returns an array, a tuple of arrays, or a
    RecordBatch of the output fields, as long as its input; or `(indices, arrays)`, where
    `indices` says for each output row which input row it belongs to. As a filter (no output
    fields) it returns a boolean array.
    """

    function: Callable[..., Any]
    deterministic: bool = True

    @property
    def label(self) -> str:
        """The function's own name."""
        return getattr(self.function, "__name__", "arrow function")


@dataclass(frozen=True)
class PandasFunction:
    """A function over pandas DataFrames of the input fields.

    It gives a Series or DataFrame as long as its input; as a filter, a boolean Series.
    """

    function: Callable[..., Any]
    deterministic: bool = True

    @property
    def label(self) -> str:
        """The function's own name."""
        return getattr(self.function, "__name__", "pandas function")


@dataclass(frozen=True)
class SqlExpression:
    """A Spark SQL expression over the fields of the stream; stays in the JVM."""

    text: str
    deterministic: bool = True

    @property
    def label(self) -> str:
        """The expression itself."""
        return self.text


def arrow_function(function: Callable[..., Any]) -> ArrowFunction:
    """Mark a function as one over Arrow batches. Usable as a decorator."""
    return ArrowFunction(function)


def pandas_function(function: Callable[..., Any]) -> PandasFunction:
    """Mark a function as one over pandas DataFrames. Usable as a decorator."""
    return PandasFunction(function)


def expr(text: str) -> SqlExpression:
    """Return a Spark SQL expression, to be used where a function or filter is.

    >>> expr("upper(word)").text
    'upper(word)'
    """
    return SqlExpression(text)
