"""Trident: streams, operations and states with exactly-once updates."""

from waterspout.trident.operations.adapters import arrow_function, expr, pandas_function
from waterspout.trident.operations.aggregators import Columns, Count, Max, Min, Sum
from waterspout.trident.operations.contracts import (
    Aggregator,
    CombinerAggregator,
    Filter,
    Function,
    QueryFunction,
    ReducerAggregator,
    StateUpdater,
    TridentCollector,
)
from waterspout.trident.operations.filters import Debug, Equals, FilterNull, Negate
from waterspout.trident.operations.functions import Split
from waterspout.trident.operations.queries import MapGet, SnapshotGet
from waterspout.trident.stream import GroupedStream, Stream
from waterspout.trident.topology import TridentTopology
from waterspout.trident.tridentstate import TridentState
from waterspout.tuples import TridentTuple

__all__ = [
    "Aggregator",
    "Columns",
    "CombinerAggregator",
    "Count",
    "Debug",
    "Equals",
    "Filter",
    "FilterNull",
    "Function",
    "GroupedStream",
    "MapGet",
    "Max",
    "Min",
    "Negate",
    "QueryFunction",
    "ReducerAggregator",
    "SnapshotGet",
    "Split",
    "StateUpdater",
    "Stream",
    "Sum",
    "TridentCollector",
    "TridentState",
    "TridentTopology",
    "TridentTuple",
    "arrow_function",
    "expr",
    "pandas_function",
]
