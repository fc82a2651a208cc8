"""Describe a topology of spouts and bolts; nothing here runs it."""

from waterspout._tuples import Fields, Tuple
from waterspout.topology._builder import TopologyBuilder
from waterspout.topology._collector import (
    BasicCollector,
    ColumnCollector,
    OutputCollector,
    SpoutCollector,
)
from waterspout.topology._component import BasicBolt, Bolt, Direct, LogSpout, Spout
from waterspout.topology._context import TopologyContext
from waterspout.topology._graph import Topology
from waterspout.topology._grouping import CustomGrouping
from waterspout.topology.windowing.bolt import WindowedBolt
from waterspout.topology.windowing.buffer import TupleWindow
from waterspout.topology.windowing.settings import Seconds, Tuples

__all__ = [
    "BasicBolt",
    "BasicCollector",
    "Bolt",
    "ColumnCollector",
    "CustomGrouping",
    "Direct",
    "Fields",
    "LogSpout",
    "OutputCollector",
    "Seconds",
    "Spout",
    "SpoutCollector",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "Tuple",
    "TupleWindow",
    "Tuples",
    "WindowedBolt",
]
