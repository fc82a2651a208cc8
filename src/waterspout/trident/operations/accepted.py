"""What the methods of a stream take as operations: each contract, and the plain forms of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from waterspout._schema import FieldNames
from waterspout.state._base import StateFactory
from waterspout.trident.operations.adapters import SqlExpression, Vectorised
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
    QueryFunction,
    ReducerAggregator,
    StateUpdater,
)

__all__ = [
    "AggregateArgument",
    "AggregateOperation",
    "AnyTable",
    "ColumnOperation",
    "ConsumeOperation",
    "EachOperation",
    "FilterOperation",
    "FlatMapOperation",
    "MapOperation",
    "QueryArgument",
    "QueryOperation",
    "ReduceOperation",
    "SparkColumn",
    "SparkExpression",
    "UpdateArgument",
    "UpdateOperation",
    "WindowArgument",
]


class SparkColumn(Protocol):
    """A Column of Spark's, of either kind of session; pyspark is not imported here."""

    def isNotNull(self) -> Any:
        """Return whether it is not null, as a Column."""

    def over(self, window: Any) -> Any:
        """Return it over a window, as a Column."""


class AnyTable(Protocol):
    """A DataFrame of Spark's or of pandas, or a table of pyarrow."""

    @property
    def columns(self) -> Any:
        """The columns, or their names."""


_PlainFunction: TypeAlias = Callable[..., object]

SparkExpression: TypeAlias = (
    SqlExpression | SparkColumn | Sequence[SqlExpression] | Sequence[SparkColumn]
)
FilterOperation: TypeAlias = Filter | Vectorised | SparkExpression | _PlainFunction
EachOperation: TypeAlias = Function | FilterOperation
MapOperation: TypeAlias = MapFunction | Vectorised | SparkExpression | _PlainFunction
FlatMapOperation: TypeAlias = FlatMapFunction | Vectorised | SparkExpression | _PlainFunction
ConsumeOperation: TypeAlias = Consumer | _PlainFunction
AggregateOperation: TypeAlias = (
    CombinerAggregator[Any] | ReducerAggregator[Any] | Aggregator[Any] | SparkExpression
)
ReduceOperation: TypeAlias = MultiReducer[Any] | GroupedMultiReducer[Any] | _PlainFunction
QueryOperation: TypeAlias = QueryFunction[Any, Any] | _PlainFunction
UpdateOperation: TypeAlias = StateUpdater[Any] | _PlainFunction
AggregateArgument: TypeAlias = FieldNames | AggregateOperation | None
QueryArgument: TypeAlias = FieldNames | QueryOperation | None
UpdateArgument: TypeAlias = FieldNames | UpdateOperation | None
WindowArgument: TypeAlias = AggregateArgument | StateFactory
"""The arguments of `aggregate([fields,] aggregator[, out])` and the like."""

ColumnOperation: TypeAlias = CombinerAggregator[Any] | tuple[FieldNames, CombinerAggregator[Any]]
"""A column of a state: an aggregator of the whole tuple, or fields and an aggregator of those."""
