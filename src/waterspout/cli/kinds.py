"""The kinds of topologies that commands take: how each is checked, and watched as it runs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from waterspout.cli.watching import BatchWatcher, Watcher, WaveWatcher
from waterspout.config import Config
from waterspout.errors import TopologyError
from waterspout.run import Run
from waterspout.topology.graph import Topology
from waterspout.transactional.builder import TransactionalTopology
from waterspout.transactional.explain import explain as explain_transactions
from waterspout.trident.plan.explain import explain_as
from waterspout.trident.topology import TridentTopology
from waterspout.waves.explain import explain as explain_waves

__all__ = ["Kind", "kind_of"]


class Kind(ABC):
    """What a command must know of a topology, whatever is in it."""

    checked: str
    """What was looked at, as a list in words."""

    @abstractmethod
    def check(self, conf: Config) -> str:
        """Return the plan and what it promises, or raise what is wrong; runs nothing."""

    def draw(self, conf: Config, form: str) -> str:
        """Return the plan as a graph, in mermaid or dot; refused where there is none to draw."""
        raise TopologyError(
            "--graph draws Trident topologies; this is one of spouts and bolts, of which check "
            "prints the stages. Leave --graph out."
        )

    @abstractmethod
    def watch(self, run: Run) -> Watcher:
        """Return what tells how far a run of the topology is."""


class _Trident(Kind):
    checked = "fields, names, pickling, sources and stores"

    def __init__(self, topology: TridentTopology) -> None:
        self._topology = topology

    def check(self, conf: Config) -> str:
        return self.draw(conf, "text")

    def draw(self, conf: Config, form: str) -> str:
        from waterspout.spark.preflight import prepare

        prepared = prepare(self._topology, conf)
        try:
            return explain_as(prepared.plan, conf, form)
        finally:
            prepared.close()

    def watch(self, run: Run) -> Watcher:
        return BatchWatcher(run)


class _Core(Kind):
    checked = "streams, groupings, names, pickling and the coordination store"

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def check(self, conf: Config) -> str:
        from waterspout.spark.submit import prepare_bolts

        store, _ = prepare_bolts(self._topology, conf)
        store.release()
        # The embedded Spark has as many workers; another one tells when it is there.
        return explain_waves(self._topology, conf, os.cpu_count() or 2)

    def watch(self, run: Run) -> Watcher:
        return WaveWatcher(run)


class _Transactional(Kind):
    checked = "streams, groupings, names, pickling and the coordination store"

    def __init__(self, topology: TransactionalTopology) -> None:
        self._topology = topology

    def check(self, conf: Config) -> str:
        from waterspout.spark.submit import prepare_bolts

        store, _ = prepare_bolts(self._topology, conf)
        store.release()
        return explain_transactions(self._topology, conf, os.cpu_count() or 2)

    def watch(self, run: Run) -> Watcher:
        return BatchWatcher(run, key="executed_tuples", noun="tuple")


def kind_of(topology: Topology | TridentTopology) -> Kind:
    """Return how to treat a topology."""
    if isinstance(topology, TridentTopology):
        return _Trident(topology)
    if isinstance(topology, TransactionalTopology):
        return _Transactional(topology)
    return _Core(topology)
