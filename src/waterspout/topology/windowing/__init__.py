"""Windows for core topologies: bolts that get many tuples at once."""

from waterspout.topology.windowing.bolt import WindowedBolt
from waterspout.topology.windowing.buffer import TupleWindow, WindowBuffer
from waterspout.topology.windowing.settings import Seconds, Tuples
from waterspout.topology.windowing.task import Watermark, WindowCollector

__all__ = [
    "Seconds",
    "TupleWindow",
    "Tuples",
    "Watermark",
    "WindowBuffer",
    "WindowCollector",
    "WindowedBolt",
]
