"""What a server knows of the run that it serves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

from waterspout._config import Config
from waterspout.coordination.run import Run
from waterspout.topology._graph import Topology
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.plan import Plan

__all__ = ["Served"]


@dataclass(frozen=True)
class Served:
    """A run, the topology that it runs, and its options. Every router is made of one of these."""

    run: Run
    topology: Topology | TridentTopology
    config: Config
    """Without the token: what tasks get may be shown."""
    started: float = field(default_factory=time.time)

    @cached_property
    def described(self) -> Topology | Plan:
        """The topology, or the plan of one of Trident."""
        found = self.topology
        return found.plan(self.config) if isinstance(found, TridentTopology) else found
