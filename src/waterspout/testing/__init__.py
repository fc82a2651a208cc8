"""The public test kit: spouts, kill points, a faulty network, an engine that needs no Spark."""

from typing import TYPE_CHECKING, Any

from waterspout.faults import Fault, FaultPlan
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.testing._batch_bolts import LocalBatches
from waterspout.testing._batches import Batches
from waterspout.testing._emitters import check_emitter
from waterspout.testing._engine import SimulatedCrash
from waterspout.testing._feeder import AckFailTracker, FeederSpout
from waterspout.testing._local import LocalRun, LocalWaves, run_in_process
from waterspout.testing._proxy import FaultProxy
from waterspout.testing._spouts import MemoryLog

if TYPE_CHECKING:
    from waterspout.testing.conformance import RowsConformance, StateConformance

__all__ = [
    "AckFailTracker",
    "Batches",
    "Fault",
    "FaultPlan",
    "FaultProxy",
    "FeederSpout",
    "FixedBatchSpout",
    "LocalBatches",
    "LocalRun",
    "LocalWaves",
    "MemoryLog",
    "RowsConformance",
    "SimulatedCrash",
    "StateConformance",
    "check_emitter",
    "run_in_process",
]


def __getattr__(name: str) -> Any:
    # It needs pytest and hypothesis, which nothing else here does.
    if name in ("RowsConformance", "StateConformance"):
        from waterspout.testing import conformance

        return getattr(conformance, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
