"""Everything that can be found out about a topology before a JVM is started or a file written."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from waterspout.config import Config
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.home import why_not_writable
from waterspout.coordination.loop import check_states
from waterspout.coordination.store import (
    CoordinationStore,
    MemoryCoordinationStore,
    SharedMemory,
)
from waterspout.coordination.zookeeper import ZooKeeperStore
from waterspout.errors import StoreError
from waterspout.spark.checks import check_plan
from waterspout.spouts.files import FileSpout
from waterspout.state.base import HeadedState
from waterspout.trident.isolation.rewriting import letters_place, with_letters
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_state
from waterspout.trident.topology import TridentTopology
from waterspout.trident.windowing.store import WindowsFile

__all__ = ["ZOOKEEPER_AUTH", "Prepared", "coordination_store", "prepare"]

# `user:password` for ZooKeeper; not an option, because options are shown.
ZOOKEEPER_AUTH = "WATERSPOUT_ZOOKEEPER_AUTH"

_memory: dict[tuple[str, ...], SharedMemory] = {}
_memory_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A topology that may run: its plan, its ledger's store, and states to move the heads of.

    `states` are named by their places, which is what errors should name.
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
    plan = with_letters(bare, conf, letters_place(bare, conf))
    check_plan(plan, conf)
    store, folder = _store(plan, conf)
    prepared = Prepared(plan, store, folder, {})
    try:
        for name, spec in plan.states.items():
            if spec.static:
                continue
            state = open_state(spec, conf, 0, None)
            if isinstance(state, HeadedState):
                prepared.states[spec.factory.location() or name] = state
            else:
                state.close()
        check_states(prepared.states, store.peek(), plan.name, plan.fingerprint())
        store.refuse_if_held()
    except BaseException:
        prepared.close()
        raise
    return prepared


def _store(plan: Plan, conf: Config) -> tuple[CoordinationStore, Path | None]:
    """Choose where the ledger is kept: as long-lived as the states are."""
    updated = [spec for spec in plan.states.values() if not (spec.static or spec.hidden)]
    if updated and all(spec.factory.volatile for spec in updated):
        places = tuple(sorted(str(spec.factory.location()) for spec in updated))
        with _memory_lock:
            shared = _memory.setdefault((plan.name, *places), SharedMemory())
        return MemoryCoordinationStore(plan.name, shared), None
    folder = None
    # A list of files that were read stays on this machine, and so do windows without a store and
    # dead letters.
    reads_files = any(isinstance(node.spout, FileSpout) for node in plan.sources.values())
    has_letters = any(spec.hidden for spec in plan.states.values())
    if reads_files or has_letters or any(isinstance(s.factory, WindowsFile) for s in updated):
        folder = conf.home_path().absolute() / plan.name
    store = coordination_store(plan.name, conf, folder)
    return store, store.folder if isinstance(store, EmbeddedStore) else folder


def coordination_store(name: str, conf: Config, folder: Path | None = None) -> CoordinationStore:
    """Return the durable store of a topology: in ZooKeeper if there is one, else embedded.

    `folder` is what the topology keeps on this machine beside a store in ZooKeeper.
    """
    if conf.zookeeper_servers is None:
        _check_home(conf)
        return EmbeddedStore(conf.home_path(), name, lease_s=conf.lease_secs)
    if folder is not None:
        _check_home(conf)
    return ZooKeeperStore(
        conf.zookeeper_servers,
        name,
        port=conf.zookeeper_port,
        root=conf.zookeeper_root,
        auth=f"${{{ZOOKEEPER_AUTH}}}" if ZOOKEEPER_AUTH in os.environ else None,
        session_s=conf.lease_secs,
        folder=folder,
    )


def _check_home(conf: Config) -> None:
    reason = why_not_writable(conf.home_path())
    if reason is not None:
        raise StoreError(
            f"the waterspout home {conf.home_path()} cannot be used: {reason}. Choose another "
            "place with WATERSPOUT_HOME or the option home."
        )
