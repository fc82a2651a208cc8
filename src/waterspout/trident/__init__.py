"""Trident: streams, operations and states with exactly-once updates."""

# fmt: off
# isort: off
from waterspout.trident.operations.adapters import (
    arrow_function, expr, nondeterministic, pandas_function,
)
from waterspout.trident.operations.aggregate_forms import (
    aggregator, arrow_aggregator, combiner, grouped_multi_reducer, multi_reducer,
    pandas_aggregator, reducer,
)
from waterspout.trident.operations.aggregators import Average, Columns, Count, Max, Min, Sum
from waterspout.trident.operations.collecting import CollectSet, CountDistinct, TopN
from waterspout.trident.operations.contracts import (
    Aggregator, Assembly, CombinerAggregator, Consumer, Filter, FlatMapFunction, Function,
    GroupedMultiReducer, MapFunction, MultiReducer, OperationContext, QueryFunction,
    ReducerAggregator, StateUpdater, TridentCollector,
)
from waterspout.trident.operations.extremes import FirstN, MaxBy, MinBy
from waterspout.trident.operations.filters import Debug, Equals, FilterNull, Negate, TrueFilter
from waterspout.trident.operations.functions import Split, StringLength
from waterspout.trident.operations.queries import MapGet, SnapshotGet, TupleCollectionGet
from waterspout.trident.operations.row_updaters import AppendRows, UpsertRows
from waterspout.trident.operations.state_forms import query, updater
from waterspout.trident._grouped import ChainedAggregatorDeclarer, GroupedStream
from waterspout.trident._stream import Stream
from waterspout.trident._topology import TridentTopology
from waterspout.trident._tridentstate import TridentState
from waterspout.trident.windowing.config import (
    SlidingCountWindow, SlidingDurationWindow, TumblingCountWindow, TumblingDurationWindow,
)
from waterspout.trident.windowing.updater import WindowSpan
from waterspout._tuples import TridentTuple

__all__ = [
    "Aggregator", "AppendRows", "Assembly", "Average", "ChainedAggregatorDeclarer", "CollectSet",
    "Columns", "CombinerAggregator", "Consumer", "Count", "CountDistinct", "Debug",
    "Equals", "Filter", "FilterNull", "FirstN", "FlatMapFunction", "Function",
    "GroupedMultiReducer", "GroupedStream", "MapFunction", "MapGet", "Max", "MaxBy", "Min", "MinBy",
    "MultiReducer", "Negate", "OperationContext", "QueryFunction", "ReducerAggregator",
    "SlidingCountWindow", "SlidingDurationWindow", "SnapshotGet", "Split", "StateUpdater", "Stream",
    "StringLength", "Sum", "TopN", "TridentCollector", "TridentState", "TridentTopology",
    "TridentTuple", "TrueFilter", "TumblingCountWindow", "TumblingDurationWindow",
    "TupleCollectionGet", "UpsertRows", "WindowSpan", "aggregator", "arrow_aggregator",
    "arrow_function", "combiner", "expr", "grouped_multi_reducer", "multi_reducer",
    "nondeterministic", "pandas_aggregator", "pandas_function", "query", "reducer", "updater",
]
