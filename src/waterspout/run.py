"""`submit`: the way from a described topology to a running one."""

from __future__ import annotations

from typing import Any

from waterspout.config import Config
from waterspout.coordination.run import Run
from waterspout.errors import TopologyError

__all__ = ["Run", "submit"]


def submit(topology: Any, spark: Any = None, config: Config | None = None) -> Run:
    """Start a topology and return its run.

    `spark` is the session to run on, used and never stopped; None makes an embedded local one.
    Everything is checked before anything runs: fields, names, stores, pickling.
    """
    from waterspout.spark.core_run import start_core
    from waterspout.spark.transactional_run import start_transactional
    from waterspout.spark.trident_run import start_trident
    from waterspout.topology.graph import Topology
    from waterspout.transactional.builder import TransactionalTopology
    from waterspout.trident.topology import TridentTopology

    if isinstance(topology, TridentTopology):
        return start_trident(topology, spark, config or Config())
    if isinstance(topology, TransactionalTopology):
        return start_transactional(topology, spark, config or Config())
    if isinstance(topology, Topology):
        return start_core(topology, spark, config or Config())
    raise TopologyError(f"submit takes a topology, not {type(topology).__name__}")
