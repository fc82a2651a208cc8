"""`TransactionalTopologyBuilder`: one transactional spout, batch bolts, committers."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from waterspout.errors import TopologyError
from waterspout.topology._builder import BoltDeclarer, SpoutDeclarer, declare, kind_of
from waterspout.topology._component import BasicBolt
from waterspout.topology._graph import ComponentSpec, Topology
from waterspout.topology._pickling import require_picklable
from waterspout.transactional._bolts import BatchBolt, Committer
from waterspout.transactional._spouts import AnyTransactionalSpout

__all__ = ["TransactionalTopology", "TransactionalTopologyBuilder"]


@dataclass(frozen=True)
class TransactionalTopology(Topology):
    """A checked topology; `committers` finish in the commit phase, and `late` all behind them."""

    spout_id: str = ""
    committers: frozenset[str] = frozenset()

    @property
    def late(self) -> frozenset[str]:
        """Components that finish in the commit phase: committers and what is behind them."""
        late = set(self.committers)
        for id in self.producers_first().static_order():
            if any(given.source in late for given in self.components[id].inputs):
                late.add(id)
        return frozenset(late)

    def producers_first(self) -> TopologicalSorter[str]:
        """Return the components in an order in which each comes after those it takes from."""
        bolts = self.bolts
        return TopologicalSorter({spec.id: [i.source for i in spec.inputs] for spec in bolts})

    def fingerprint(self) -> dict[str, Any]:
        """Return what must not change while positions are stored: the spout and the committers."""
        found = super().fingerprint()
        for name in sorted(self.committers):
            spec = self.components[name]
            found[f"committer {name}"] = {
                "kind": type(spec.component).__name__,
                "inputs": sorted(f"{i.source}.{i.stream} by {i.grouping}" for i in spec.inputs),
            }
        return found


class TransactionalTopologyBuilder:
    """Describes a transactional topology; its id names what is stored about it."""

    def __init__(
        self,
        topology_id: str,
        spout_id: str,
        spout: AnyTransactionalSpout,
        parallelism: int | None = None,
    ) -> None:
        if not isinstance(spout, AnyTransactionalSpout):
            raise TopologyError(
                f"spout {spout_id!r} is {kind_of(spout)}; give a TransactionalSpout, a "
                "PartitionedTransactionalSpout or an OpaquePartitionedTransactionalSpout"
            )
        self._id = topology_id
        self._spout_id = spout_id
        self._declared: dict[str, SpoutDeclarer] = {}
        self._committers: set[str] = set()
        tasks = 1 if parallelism is None else parallelism
        self._spout = declare(self._declared, spout_id, SpoutDeclarer, spout, tasks)

    @property
    def spout_declarer(self) -> SpoutDeclarer:
        """Where the spout's own options are set."""
        return self._spout

    def set_bolt(self, id: str, bolt: BatchBolt | BasicBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt; a BatchBolt that is a `Committer` too finishes in the commit phase."""
        if not isinstance(bolt, BatchBolt | BasicBolt):
            raise TopologyError(
                f"bolt {id!r} is {kind_of(bolt)}; a transactional topology takes objects of "
                "classes derived from BatchBolt or BasicBolt"
            )
        if isinstance(bolt, Committer) and not isinstance(bolt, BatchBolt):
            raise self._no_committer(id, bolt)
        declarer = declare(self._declared, id, BoltDeclarer, bolt, parallelism)
        if isinstance(bolt, Committer):
            self._committers.add(id)
        return declarer

    def set_committer_bolt(self, id: str, bolt: BatchBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a BatchBolt that finishes in the commit phase, `Committer` or not."""
        if not isinstance(bolt, BatchBolt):
            raise self._no_committer(id, bolt)
        declarer = self.set_bolt(id, bolt, parallelism)
        self._committers.add(id)
        return declarer

    def build_topology(self) -> TransactionalTopology:
        """Return the checked, frozen topology."""
        specs = {id: declarer.spec() for id, declarer in self._declared.items()}
        topology = TransactionalTopology(
            self._id, specs, self._spout_id, frozenset(self._committers)
        )
        _refuse_cycles(topology)
        for spec in specs.values():
            _require_attempts(spec)
            require_picklable(spec.component, spec.title)
        return topology

    @staticmethod
    def _no_committer(id: str, bolt: Any) -> TopologyError:
        return TopologyError(
            f"committer {id!r} is {kind_of(bolt)}; give a BatchBolt, which knows when its batch is "
            "complete"
        )


def _refuse_cycles(topology: TransactionalTopology) -> None:
    try:
        topology.producers_first().prepare()
    except CycleError as error:
        circle = sorted(set(error.args[1]))
        raise TopologyError(
            f"the bolts {', '.join(map(repr, circle))} depend on each other in a circle: a batch "
            "could never be complete"
        ) from None


def _require_attempts(spec: ComponentSpec) -> None:
    for stream, schema in spec.streams.items():
        if not schema.fields:
            raise TopologyError(
                f"{spec.id!r}: stream {stream!r} has no field for the transaction attempt; the "
                "first field of every stream holds it"
            )
