"""`submit`: the way from a described topology to a running one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waterspout.config import Config
from waterspout.coordination.run import Run

if TYPE_CHECKING:
    from waterspout.topology.graph import Topology
    from waterspout.trident.topology import TridentTopology

__all__ = ["Run", "submit"]


def submit(
    topology: Topology | TridentTopology, spark: Any = None, config: Config | None = None
) -> Run:
    """Start a topology and return its run.

    `spark` is the session to run on, used and never stopped; None makes an embedded local one.
    Everything is checked before anything runs: fields, names, stores, pickling.
    """
    from waterspout.spark.submit import start

    return start(topology, spark, config or Config())
