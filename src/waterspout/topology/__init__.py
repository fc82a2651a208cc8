"""Describe a topology of spouts and bolts; nothing here runs it."""

from waterspout.topology.builder import TopologyBuilder
from waterspout.topology.collector import BasicCollector, OutputCollector, SpoutCollector
from waterspout.topology.component import BasicBolt, Bolt, Direct, LogSpout, Spout
from waterspout.topology.context import TopologyContext
from waterspout.topology.graph import Topology
from waterspout.topology.grouping import CustomGrouping
from waterspout.topology.windowing.bolt import WindowedBolt
from waterspout.topology.windowing.buffer import TupleWindow
from waterspout.topology.windowing.settings import Seconds, Tuples
from waterspout.tuples import Fields, Tuple

__all__ = [
    "BasicBolt",
    "BasicCollector",
    "Bolt",
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
