"""The functions of a run as a service: those of Trident's streams, and those of core spouts."""

from __future__ import annotations

from waterspout._config import Config
from waterspout.coordination.events import BatchCommitted, Event, RunEnded
from waterspout.coordination.run import Run
from waterspout.drpc._functions import visible
from waterspout.drpc._service import DrpcService
from waterspout.drpc._spout import DRPCSpout
from waterspout.errors import TopologyError
from waterspout.topology._graph import Topology
from waterspout.transactional._ledger import Ledger
from waterspout.trident._topology import TridentTopology

__all__ = ["core_functions", "service_of"]


def core_functions(topology: Topology | TridentTopology) -> dict[str, DRPCSpout]:
    """Return the spouts that take requests, by function; a topology of Trident has none."""
    found: dict[str, DRPCSpout] = {}
    for spec in topology.spouts if isinstance(topology, Topology) else ():
        spout = spec.component
        if isinstance(spout, DRPCSpout):
            if spout.function in found:
                raise TopologyError(
                    f"{spec.title} takes requests for {spout.function!r}, and so does another "
                    "spout; use another function, or one spout of several tasks"
                )
            found[spout.function] = spout
    return found


def service_of(run: Run, topology: Topology | TridentTopology, conf: Config) -> DrpcService:
    """Return what takes calls for the functions of a run, until it has ended.

    Made before the first step of the run, which is then told of requests as they come.
    """
    service = DrpcService(conf, committed=lambda: _committed(run))
    for function in run._functions.values():
        service.add(function)
    for name, spout in core_functions(topology).items():
        line = service.open_line(name)
        line.wake = run._loop.wake
        spout.connect(line)

    def heard(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            service.look_again()
        elif isinstance(event, RunEnded):
            service.close()

    run.subscribe(heard)
    return service


def _committed(run: Run) -> int | None:
    """Return the last batch whose values readers see; None: there are no batches."""
    loop = run._loop
    ledger: Ledger | None = getattr(loop, "ledger", None)
    return None if ledger is None else visible(ledger)
