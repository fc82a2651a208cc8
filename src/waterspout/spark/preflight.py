"""Everything that can be found out about a topology before a JVM is started or a file written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from waterspout.config import Config
from waterspout.coordination.commit_protocol import verify_topology
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.factory import coordination_store, volatile_store
from waterspout.coordination.store import CoordinationStore
from waterspout.spark.checks import check_plan
from waterspout.state.base import HeadedState
from waterspout.trident.isolation.rewriting import letters_location, with_letters
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_headed_states
from waterspout.trident.topology import TridentTopology
from waterspout.trident.windowing.store import WindowsFile

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A topology that may run: its plan, its ledger's store, and states to move the heads of.

    `states` are named by their locations, which is what errors should name.
    """

    plan: Plan
    store: CoordinationStore
    folder: Path | None
    states: dict[str, HeadedState]

    def close(self) -> None:
        """Give up the connections."""
        for state in self.states.values():
            state.close()
        self.store.release()


def prepare(topology: TridentTopology, conf: Config) -> Prepared:
    """Return what is needed to run a topology, or raise what is wrong; writes nothing."""
    bare = topology.plan(conf)
    plan = with_letters(bare, conf, letters_location(bare, conf))
    check_plan(plan, conf)
    store, folder = _store(plan, conf)
    prepared = Prepared(plan, store, folder, {})
    try:
        for name, state in open_headed_states(plan, conf).items():
            prepared.states[plan.states[name].factory.location() or name] = state
        verify_topology(prepared.states, store.peek(), plan.name, plan.fingerprint())
        store.refuse_if_held()
    except BaseException:
        prepared.close()
        raise
    return prepared


def _store(plan: Plan, conf: Config) -> tuple[CoordinationStore, Path | None]:
    """Choose where the ledger is kept: as long-lived as the states are."""
    updated = [spec for spec in plan.states.values() if not (spec.static or spec.hidden)]
    if updated and all(spec.factory.volatile for spec in updated):
        locations = tuple(sorted(str(spec.factory.location()) for spec in updated))
        return volatile_store(plan.name, locations), None
    folder = None
    # A list of files that were read stays on this machine, and so do windows without a store and
    # dead letters.
    keeps_a_list = any(node.spout.needs_folder for node in plan.sources.values())
    has_letters = any(spec.hidden for spec in plan.states.values())
    if keeps_a_list or has_letters or any(isinstance(s.factory, WindowsFile) for s in updated):
        folder = conf.home_path().absolute() / plan.name
    store = coordination_store(plan.name, conf, folder)
    return store, store.folder if isinstance(store, EmbeddedStore) else folder
