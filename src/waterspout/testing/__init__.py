"""The public test kit: spouts, kill points, and an engine that needs no Spark."""

from waterspout.faults import Fault, FaultPlan
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.testing.engine import InProcessEngine, SimulatedCrash
from waterspout.testing.local import LocalRun, run_in_process
from waterspout.testing.spouts import MemoryLog

__all__ = [
    "Fault",
    "FaultPlan",
    "FixedBatchSpout",
    "InProcessEngine",
    "LocalRun",
    "MemoryLog",
    "SimulatedCrash",
    "run_in_process",
]
