"""The public test kit: spouts, kill points, a faulty network, an engine that needs no Spark."""

from typing import TYPE_CHECKING, Any

from waterspout.faults import Fault, FaultPlan
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.testing.batch_bolts import InProcessBatchBolts, LocalBatches, LostWorker
from waterspout.testing.batches import Batches
from waterspout.testing.emitters import check_emitter
from waterspout.testing.engine import InProcessEngine, SimulatedCrash
from waterspout.testing.faulty import FaultyMap, WriteFault
from waterspout.testing.feeder import AckFailTracker, FeederSpout
from waterspout.testing.local import LocalRun, LocalWaves, run_in_process
from waterspout.testing.proxy import FaultProxy
from waterspout.testing.spouts import MemoryLog
from waterspout.testing.waves import InProcessWaves

if TYPE_CHECKING:
    from waterspout.testing.conformance import StateConformance

__all__ = [
    "AckFailTracker",
    "Batches",
    "Fault",
    "FaultPlan",
    "FaultProxy",
    "FaultyMap",
    "FeederSpout",
    "FixedBatchSpout",
    "InProcessBatchBolts",
    "InProcessEngine",
    "InProcessWaves",
    "LocalBatches",
    "LocalRun",
    "LocalWaves",
    "LostWorker",
    "MemoryLog",
    "SimulatedCrash",
    "StateConformance",
    "WriteFault",
    "check_emitter",
    "run_in_process",
]


def __getattr__(name: str) -> Any:
    # It needs pytest and hypothesis, which nothing else here does.
    if name == "StateConformance":
        from waterspout.testing.conformance import StateConformance

        return StateConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
