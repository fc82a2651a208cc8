"""A transactional topology before it runs: its checks, its plan as text, and what it promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from waterspout._config import Config
from waterspout.coordination.commit_protocol import verify_topology
from waterspout.coordination.factory import coordination_store, volatile_store
from waterspout.coordination.graph_changes import NOTHING_CHANGED, Comparison
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import TopologyError
from waterspout.spouts._base import SpoutKind
from waterspout.spouts._emitters import EmittedSpout
from waterspout.state._base import MapState, StateFactory, require_factory
from waterspout.state._batched import BatchedMap
from waterspout.state._head import Claim
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._runtime import commit_stages, written
from waterspout.transactional._spouts import OpaquePartitionedTransactionalSpout
from waterspout.transactional._states import BoltStateSpec
from waterspout.trident.plan.verdicts import Verdict, exactly_once, kind_name
from waterspout.waves.explain import describe_component, describe_stages
from waterspout.waves.shape import spread
from waterspout.waves.shards import Row

__all__ = [
    "PreparedBatches",
    "checked_topology",
    "commits_in_driver",
    "explain",
    "note_written",
    "open_states",
    "prepare_batches",
    "state_verdicts",
    "stored_batches_graph",
]


@dataclass(frozen=True, slots=True)
class PreparedBatches:
    """A transactional topology that may run: its ledger's store, and states to move the heads of.

    `states` are by the names that the topology has for them.
    """

    topology: TransactionalTopology
    store: CoordinationStore
    states: dict[str, BatchedMap[Any, Any]]
    changes: Comparison = NOTHING_CHANGED
    """What is not as it was in the last run."""

    def close(self) -> None:
        """Give up the connections."""
        for state in self.states.values():
            state.close()
        self.store.release()


def prepare_batches(
    topology: TransactionalTopology, conf: Config, *, taking_back: bool = False
) -> PreparedBatches:
    """Return what is needed to run a topology on Spark, or raise what is wrong.

    Writes nothing. `taking_back`: see `verify_topology`.
    """
    topology = checked_topology(topology, conf)
    store = _store(topology, conf)
    prepared = PreparedBatches(topology, store, {})
    try:
        prepared.states.update(open_states(topology, conf))
        graph = topology.fingerprint()
        changes = verify_topology(
            prepared.states,
            store.peek(),
            topology.name,
            graph,
            retire=conf.retire,
            taking_back=taking_back,
        )
        store.refuse_if_held()
    except BaseException:
        prepared.close()
        raise
    return replace(prepared, changes=changes)


def stored_batches_graph(
    topology: TransactionalTopology, conf: Config
) -> tuple[CoordinationStore, Mapping[str, Any]]:
    """Return where the ledger is kept, and the graph to compare with the one in it."""
    return _store(topology, conf), topology.fingerprint()


def _store(topology: TransactionalTopology, conf: Config) -> CoordinationStore:
    """Choose where the ledger is kept: as long-lived as what the committers write."""
    factories = [spec.factory for spec in topology.states.values()]
    volatile = bool(factories) and all(factory.volatile for factory in factories)
    if volatile and not topology.on_their_own:
        locations = tuple(sorted(str(factory.location()) for factory in factories))
        return volatile_store(topology.name, locations)
    return coordination_store(topology.name, conf)


def checked_topology(topology: TransactionalTopology, conf: Config) -> TransactionalTopology:
    """Check what is checked wherever the topology runs; writes nothing.

    Return the topology with what its stores have told.
    """
    if conf.strict:
        _refuse_weak(topology)  # what needs no store to be asked
    states = {}
    for name, spec in topology.states.items():
        require_factory(spec.factory, f"state {spec.name!r}")
        assert isinstance(spec.factory, StateFactory)
        spec.factory.check()
        states[name] = replace(spec, asked=spec.factory.ask_risk())
        if spec.factory.driver_only and conf.commit_in == "tasks":
            raise TopologyError(
                f"commit_in='tasks' is not possible with {spec.name}, which only the driver "
                "reaches; leave commit_in at 'auto', or use a state on a server"
            )
    topology = replace(topology, states=states)
    if conf.strict:
        _refuse_weak(topology)
    return topology


def open_states(topology: TransactionalTopology, conf: Config) -> dict[str, BatchedMap[Any, Any]]:
    """Open the states whose heads a driver moves."""
    states: dict[str, BatchedMap[Any, Any]] = {}
    for name, spec in topology.states.items():
        state = spec.factory.make_state(conf, 0, spec.partitions)
        if isinstance(state, BatchedMap):
            states[name] = state
            continue
        state.close()
        if not isinstance(state, MapState):
            raise TopologyError(
                f"state {name!r} of bolt {spec.component!r}: its factory made a "
                f"{type(state).__name__}, and a bolt uses a MapState"
            )
    return states


def commits_in_driver(topology: TransactionalTopology, conf: Config) -> bool:
    """Whether the bolts that finish in the commit phase do so in the driver, not in tasks."""
    if conf.commit_in == "driver":
        return True
    return any(spec.factory.driver_only for spec in topology.states.values())


def note_written(topology: TransactionalTopology, rows: Iterable[Row], claim: Claim) -> None:
    """Note for the heads what an attempt has written, when all its bolts have finished."""
    for name in topology.states:
        claim.writing(name)  # nothing, if nobody tells of it
    for name, told in written(rows):
        claim.writing(name).add(told)


def state_verdicts(topology: TransactionalTopology) -> dict[str, Verdict]:
    """Judge every state of a topology."""
    return {name: _verdict(topology, spec) for name, spec in topology.states.items()}


def _verdict(topology: TransactionalTopology, spec: BoltStateSpec) -> Verdict:
    above = _above(topology, spec.component)
    for other in topology.states.values():
        if other.component in above and other.component != spec.component:
            before = _verdict(topology, other)
            if not before.exact:
                why = f"it follows from {other.name}, which is not exactly-once"
                return Verdict(False, why, before.remedy)
    for alone in topology.on_their_own:
        if alone in above:
            why = f"it follows from {alone}, which writes by itself, and may emit what it reads"
            return Verdict(False, why, f"Give {alone} a state: with_state(...)")
    kind = EmittedSpout.of(topology).kind
    why = f"spout {topology.spout_id!r} is {kind.value}"
    for id in sorted(topology.varying & above):
        kind, why = SpoutKind.OPAQUE, f"bolt {id!r} is declared not deterministic"
    state = spec.factory.kind
    exact = exactly_once(kind, state)
    if exact and spec.risk is not None:
        return Verdict(False, spec.risk.why, spec.risk.remedy)
    return Verdict(exact, f"{why}, the state is {kind_name(state)}")


def _above(topology: TransactionalTopology, component: str) -> set[str]:
    """Return a component and all that it follows from."""
    found: set[str] = set()
    todo = [component]
    while todo:
        id = todo.pop()
        if id not in found:
            found.add(id)
            todo += [given.source for given in topology.components[id].inputs]
    return found


def _refuse_weak(topology: TransactionalTopology) -> None:
    for name, verdict in state_verdicts(topology).items():
        if not verdict.exact:
            raise TopologyError(
                f"strict=True refuses {name}: not exactly-once, because {verdict.why}. "
                f"{verdict.remedy}, or leave strict off."
            )
    for alone in topology.on_their_own:
        raise TopologyError(
            f"strict=True refuses committer {alone!r}: what it writes, and whether once, nobody "
            "else knows. Let it write to a state, with_state(...), or leave strict off."
        )


def explain(
    topology: TransactionalTopology,
    conf: Config,
    workers: int,
    widths: Mapping[str, int] | None = None,
) -> str:
    """Return the plan of a topology's batches, and what each state and committer promises."""
    lines = [f"{topology.name}: a transactional topology", ""]
    for spec in topology.components.values():
        lines += describe_component(topology, spec)
        lines += [
            f"    state {state.name} ({_place(state)})"
            for state in topology.states.values()
            if state.component == spec.id
        ]
    shape = spread(topology.outline(), workers, widths)
    many = "as many as pays" if conf.chooses_in_flight else f"{conf.max_batches} at most"
    lines += ["", f"in flight at once: {many}; in commit: one"]
    lines.append(f"processing: 1 job, {len(shape.stages)} stages")
    lines += describe_stages(shape)
    late = topology.late
    stages = commit_stages(shape, late)
    if not stages:
        lines.append("commit: nothing to do, there is no committer")
    else:
        lines.append(f"commit: {_where(topology, conf)}, {len(stages)} stages; these finish then:")
        lines += [
            f"  {name}{' (committer)' if name in topology.committers else ', behind a committer'}"
            for stage in shape.stages
            for name in stage.components
            if name in late
        ]
    if topology.states:
        lines += ["", "guarantees", *_guarantees(topology)]
    if topology.on_their_own or not topology.states:
        lines += ["", *_for_committers(topology)]
    return "\n".join(lines)


def _where(topology: TransactionalTopology, conf: Config) -> str:
    if commits_in_driver(topology, conf):
        return "in the driver"
    return "1 job" if conf.commit_in == "tasks" else "1 job, none where little is left to do"


def _place(spec: BoltStateSpec) -> str:
    return spec.factory.location() or type(spec.factory).__name__


def _guarantees(topology: TransactionalTopology) -> list[str]:
    lines = []
    for name, verdict in state_verdicts(topology).items():
        spec = topology.states[name]
        word = "exactly-once" if verdict.exact else "not exactly-once"
        lines.append(f"  {name} ({_place(spec)}): {word}: {verdict.why}")
        if spec.factory.weakness is not None:
            lines.append(f"    but: {spec.factory.weakness}")
    return lines


def _for_committers(topology: TransactionalTopology) -> list[str]:
    """Say what a committer must do that writes by itself."""
    spout = topology.components[topology.spout_id].component
    opaque = isinstance(spout, OpaquePartitionedTransactionalSpout)
    kind = "opaque" if opaque else "transactional"
    alone = topology.on_their_own
    who = f"each of {', '.join(alone)}" if topology.states else "each committer"
    lines = [f"the spout is {kind}: exactly-once if {who}"]
    if opaque:
        lines += [
            "  keeps (txid, attempt, value, prev) and takes context.resolved into account, as",
            "  waterspout.state.OpaqueMap does, in a store that takes nothing over a later attempt",
        ]
    else:
        lines += ["  keeps the txid with each value and skips a batch that is not later than it"]
    lines.append(
        "a committer without a state is on its own: what it writes is fenced only if its store "
        "checks that"
    )
    return lines
