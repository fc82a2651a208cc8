"""`submit`: the way from a described topology to a running one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waterspout._config import Config
from waterspout.coordination.run import Run, runs

if TYPE_CHECKING:
    from waterspout.topology._graph import Topology
    from waterspout.trident._topology import TridentTopology

__all__ = ["Run", "runs", "submit"]


def submit(
    topology: Topology | TridentTopology,
    spark: Any = None,
    config: Config | None = None,
    *,
    replace: bool = False,
) -> Run:
    """Start a topology and return its run.

    `spark` is the session to run on, used and never stopped; None makes an embedded local one.
    Everything is checked before anything runs: fields, names, stores, pickling.
    `replace` first stops the run of a topology of this name in this process, if there is one:
    what it had in flight is replayed by the new run. Another process is never stopped.
    """
    from waterspout.spark.submit import start

    if replace:
        for run in runs():
            if run.name == topology.name:
                run.stop()
    return start(topology, spark, config or Config())
