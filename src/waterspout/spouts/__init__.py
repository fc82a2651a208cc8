"""Sources of batches. Those that are ready to use are imported by path (`waterspout.spouts.files`).

Here are the contracts of your own.
"""

from waterspout.spouts._base import BatchPlanner, BatchSpout, SpoutContext, SpoutKind
from waterspout.spouts._dataframe import DataFrameSpout
from waterspout.spouts._emitting import EmittingSpout, RowsCollector

__all__ = [
    "BatchPlanner",
    "BatchSpout",
    "DataFrameSpout",
    "EmittingSpout",
    "RowsCollector",
    "SpoutContext",
    "SpoutKind",
]
