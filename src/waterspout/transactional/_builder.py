"""`TransactionalTopologyBuilder`: one transactional spout, batch bolts, committers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Self

from waterspout._schema import FieldNames, Schema
from waterspout.errors import TopologyError
from waterspout.topology._builder import BoltDeclarer, SpoutDeclarer, declare, kind_of
from waterspout.topology._component import BasicBolt
from waterspout.topology._graph import ComponentSpec, Topology
from waterspout.topology._pickling import require_picklable
from waterspout.transactional._bolts import BatchBolt, Committer
from waterspout.transactional._spouts import AnyTransactionalSpout
from waterspout.transactional._states import BoltStateSpec, StateRecipe, deal_of_keys

__all__ = ["BatchBoltDeclarer", "TransactionalTopology", "TransactionalTopologyBuilder"]


@dataclass(frozen=True)
class TransactionalTopology(Topology):
    """A checked topology; `committers` finish in the commit phase, and `late` all behind them."""

    spout_id: str = ""
    committers: frozenset[str] = frozenset()
    states: Mapping[str, BoltStateSpec] = field(default_factory=dict)

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
        found |= {f"state {name}": state.identity() for name, state in self.states.items()}
        return found

    @property
    def varying(self) -> frozenset[str]:
        """Components that are declared not deterministic."""
        return frozenset(
            id
            for id, spec in self.components.items()
            if getattr(spec.component, "deterministic", True) is False
        )

    @property
    def on_their_own(self) -> list[str]:
        """Committers without a state: what they write, and how, only they know."""
        stateful = {state.component for state in self.states.values()}
        return sorted(self.committers - stateful)


class BatchBoltDeclarer(BoltDeclarer):
    """What can be said of a bolt of a transactional topology: its groupings, and its states."""

    def __init__(self, id: str, component: BatchBolt | BasicBolt, parallelism: int) -> None:
        super().__init__(id, component, parallelism)
        self._states: dict[str, tuple[StateRecipe, Schema | None]] = {}

    def with_state(
        self,
        name: str,
        factory: StateRecipe,
        *,
        keys: FieldNames | None = None,
        values: FieldNames | None = None,
    ) -> Self:
        """Give the bolt a state, which it gets by `context.state(name)`.

        `factory` is a recipe of `waterspout.state`: `SQLiteState.opaque(path, table="words")`.
        `keys` and `values` are its fields (`keys="word string", values="count bigint"`; no keys
        for a state of one value); without them keys and values are stored as JSON. A bolt with
        several tasks needs keys, and takes its input by fields of them: one task has a key.
        """
        where = f"state {name!r} of bolt {self._id!r}"
        if not isinstance(name, str) or not name:
            raise TopologyError(f"a state of bolt {self._id!r} has a name, not {name!r}")
        if name in self._states:
            raise TopologyError(f"bolt {self._id!r} has already a state {name!r}")
        if isinstance(factory, type) or not callable(getattr(factory, "make_state", None)):
            raise TopologyError(
                f"{where} needs a recipe, such as SQLiteState.opaque(path, table=...); it got "
                f"{kind_of(factory)}"
            )
        if keys is not None and values is None:
            raise TopologyError(f'{where} has keys, so it needs values: values="count bigint"')
        schema = None
        if values is not None:
            schema = Schema.parse(keys or ()).require_types(where=where)
            factory = factory.bind(schema, Schema.parse(values).require_types(where=where))
        self._states[name] = (factory, schema)
        return self

    def states(self, spec: ComponentSpec) -> list[BoltStateSpec]:
        """Return the states of the bolt, when all is said of it."""
        return [
            BoltStateSpec(
                name, spec.id, factory, keys, spec.num_tasks, deal_of_keys(name, spec, keys)
            )
            for name, (factory, keys) in self._states.items()
        ]


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

    def set_bolt(
        self, id: str, bolt: BatchBolt | BasicBolt, parallelism: int = 1
    ) -> BatchBoltDeclarer:
        """Add a bolt; a BatchBolt that is a `Committer` too finishes in the commit phase."""
        if not isinstance(bolt, BatchBolt | BasicBolt):
            raise TopologyError(
                f"bolt {id!r} is {kind_of(bolt)}; a transactional topology takes objects of "
                "classes derived from BatchBolt or BasicBolt"
            )
        _refuse_idle(id, bolt)
        if isinstance(bolt, Committer) and not isinstance(bolt, BatchBolt):
            raise self._no_committer(id, bolt)
        declarer = declare(self._declared, id, BatchBoltDeclarer, bolt, parallelism)
        if isinstance(bolt, Committer):
            self._committers.add(id)
        return declarer

    def set_committer_bolt(
        self, id: str, bolt: BatchBolt, parallelism: int = 1
    ) -> BatchBoltDeclarer:
        """Add a BatchBolt that finishes in the commit phase, `Committer` or not."""
        if not isinstance(bolt, BatchBolt):
            raise self._no_committer(id, bolt)
        declarer = self.set_bolt(id, bolt, parallelism)
        self._committers.add(id)
        return declarer

    def build_topology(self) -> TransactionalTopology:
        """Return the checked, frozen topology."""
        specs = {id: declarer.spec() for id, declarer in self._declared.items()}
        states = self._states(specs)
        topology = TransactionalTopology(
            self._id, specs, self._spout_id, frozenset(self._committers), states
        )
        _refuse_cycles(topology)
        _refuse_early_states(topology)
        for spec in specs.values():
            _require_attempts(spec)
            require_picklable(spec.component, spec.title)
        return topology

    def _states(self, specs: Mapping[str, ComponentSpec]) -> dict[str, BoltStateSpec]:
        """Return the states of all bolts by name; refuse two of one name, or in one place."""
        found: dict[str, BoltStateSpec] = {}
        declared = self._declared.items()
        bolts = {id: each for id, each in declared if isinstance(each, BatchBoltDeclarer)}
        for state in [state for id, bolt in bolts.items() for state in bolt.states(specs[id])]:
            if state.name in found:
                raise TopologyError(
                    f"bolts {found[state.name].component!r} and {state.component!r} both have a "
                    f"state {state.name!r}; a state has one name and one bolt that writes it"
                )
            place = state.factory.location()
            for other in found.values():
                if place is not None and other.factory.location() == place:
                    raise TopologyError(
                        f"the states {other.name!r} and {state.name!r} are both kept in {place}; "
                        "their batches would overwrite each other. Use another table for one of "
                        "them."
                    )
            require_picklable(state.factory, f"the factory of state {state.name!r}")
            found[state.name] = state
        return found

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


def _refuse_early_states(topology: TransactionalTopology) -> None:
    late = topology.late
    for state in topology.states.values():
        spec = topology.components[state.component]
        if isinstance(spec.component, BasicBolt):
            raise TopologyError(
                f"state {state.name!r}: {spec.title} is a BasicBolt, which does not know when its "
                "batch is complete; a state belongs to a BatchBolt"
            )
        if state.component not in late:
            raise TopologyError(
                f"state {state.name!r}: {spec.title} finishes in the processing phase, when "
                "batches before it may not have committed. Set it with set_committer_bolt, or "
                "behind a committer."
            )


def _refuse_idle(id: str, bolt: BatchBolt | BasicBolt) -> None:
    if not isinstance(bolt, BatchBolt) or bolt.takes_batches:
        return
    if type(bolt).execute is BatchBolt.execute:
        raise TopologyError(
            f"bolt {id!r}: {type(bolt).__name__} has neither execute(tuple) nor "
            "execute_batch(batch)"
        )


def _require_attempts(spec: ComponentSpec) -> None:
    for stream, schema in spec.streams.items():
        if not schema.fields:
            raise TopologyError(
                f"{spec.id!r}: stream {stream!r} has no field for the transaction attempt; the "
                "first field of every stream holds it"
            )
