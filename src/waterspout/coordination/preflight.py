"""What is checked before a run, on any engine: guarantees asked for, sources, stores, pickling.

All this is found out before a JVM is started or a file written. What only Spark can tell of a
plan is in `spark/dry_run.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout.coordination.commit_protocol import verify_topology
from waterspout.coordination.factory import coordination_store, volatile_store
from waterspout.coordination.graph_changes import NOTHING_CHANGED, Comparison
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import TopologyError
from waterspout.state._headed import HeadedState
from waterspout.topology._pickling import require_picklable
from waterspout.trident._topology import TridentTopology
from waterspout.trident.drpc.streams import why_spark
from waterspout.trident.isolation.rewriting import letters_location, with_letters
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.plan.explain import refuse_weak
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_headed_states
from waterspout.trident.windowing.store import WindowsFile

__all__ = ["Prepared", "check_pickling", "checked_plan", "prepare", "stored_graph"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A topology that may run: its plan, its ledger's store, and states to move the heads of.

    `states` are by the names that the plan has for them.
    """

    plan: Plan
    store: CoordinationStore
    states: dict[str, HeadedState]
    changes: Comparison = NOTHING_CHANGED
    """What is not as it was in the last run."""

    @property
    def folder(self) -> Path | None:
        """Where the topology keeps what goes with its ledger."""
        return self.store.folder

    def close(self) -> None:
        """Give up the connections."""
        for state in self.states.values():
            state.close()
        self.store.release()


def prepare(
    topology: TridentTopology, conf: Config, *, taking_back: bool = False, filling: bool = False
) -> Prepared:
    """Return what is needed to run a topology on Spark, or raise what is wrong.

    Writes nothing. `taking_back`: see `verify_topology`. `filling` if a fill that was interrupted
    may be what this is for.
    """
    plan = checked_plan(_whole_plan(topology, conf), conf)
    check_pickling(plan)
    store = _store(plan, conf)
    prepared = Prepared(plan, store, {})
    try:
        prepared.states.update(open_headed_states(plan, conf))
        changes = verify_topology(
            prepared.states,
            store.peek(),
            plan.name,
            plan.fingerprint(),
            retire=conf.retire,
            taking_back=taking_back,
        )
        if not filling:
            changes.refuse_half_filled()
        store.refuse_if_held()
    except BaseException:
        prepared.close()
        raise
    return replace(prepared, changes=changes)


def stored_graph(
    topology: TridentTopology, conf: Config
) -> tuple[CoordinationStore, Mapping[str, Any]]:
    """Return where the ledger is kept, and the graph to compare with the one in it."""
    plan = _whole_plan(topology, conf)
    return _store(plan, conf), plan.fingerprint()


def _whole_plan(topology: TridentTopology, conf: Config) -> Plan:
    bare = topology.plan(conf)
    return with_letters(bare, conf, letters_location(bare, conf))


def _store(plan: Plan, conf: Config) -> CoordinationStore:
    """Choose where the ledger is kept: as long-lived as the states are."""
    updated = [spec for spec in plan.states.values() if not (spec.static or spec.hidden)]
    if updated and all(spec.factory.volatile for spec in updated):
        locations = tuple(sorted(str(spec.factory.location()) for spec in updated))
        return volatile_store(plan.name, locations)
    folder = None
    # A list of files that were read stays on this machine, and so do windows without a store and
    # dead letters.
    keeps_a_list = any(node.spout.needs_folder for node in plan.sources.values())
    has_letters = any(spec.hidden for spec in plan.states.values())
    if keeps_a_list or has_letters or any(isinstance(s.factory, WindowsFile) for s in updated):
        folder = conf.home_path().absolute() / plan.name
    return coordination_store(plan.name, conf, folder)


def checked_plan(plan: Plan, conf: Config) -> Plan:
    """Check all that is checked wherever the plan runs; writes nothing.

    Return the plan with what its stores have told.
    """
    if conf.strict:
        refuse_weak(plan)  # what needs no store to be asked
    states = {}
    for name, spec in plan.states.items():
        spec.factory.check()
        states[name] = spec if spec.static else replace(spec, asked=spec.factory.ask_risk())
        chosen = not (spec.static or spec.hidden)
        if spec.factory.driver_only and conf.commit_in == "tasks" and chosen:
            raise TopologyError(
                f"commit_in='tasks' is not possible with {spec.name}, which only the driver "
                "reaches; leave commit_in at 'auto', or use a state on a server"
            )
    for node in plan.sources.values():
        node.spout.check()
    plan = replace(plan, states=states)
    if conf.strict:
        refuse_weak(plan)
    return plan


def check_pickling(plan: Plan) -> None:
    """Check that whatever Spark's workers need can travel to them."""
    on_spark = [call.nodes for call in plan.calls if why_spark(call, plan.hints) is not None]
    for node in (*plan.nodes, *chain.from_iterable(on_spark)):
        for operation in [*node.operations, getattr(node, "grouping", None)]:
            if operation is not None and not is_expression(operation):
                require_picklable(operation, node.title)
    for spec in plan.states.values():
        require_picklable(spec.factory, f"the factory of {spec.name}")
