"""From a Trident topology to a running one: check, compile once, start the loop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from waterspout.config import Config
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.loop import Parts
from waterspout.coordination.run import Run
from waterspout.coordination.store import (
    CoordinationStore,
    MemoryCoordinationStore,
    SharedMemory,
)
from waterspout.spark.checks import check_plan, dry_compile
from waterspout.spark.engine import SparkEngine
from waterspout.spark.session import SparkRuntime, embedded_session
from waterspout.state.base import HeadedState
from waterspout.state.head import Writer
from waterspout.trident.plan.explain import explain
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_state
from waterspout.trident.topology import TridentTopology

__all__ = ["start_trident"]

_memory: dict[tuple[str, ...], SharedMemory] = {}
_memory_lock = threading.Lock()


def start_trident(topology: TridentTopology, spark: Any, conf: Config) -> Run:
    """Check everything that can be checked, then run."""
    plan = topology.plan(conf)
    check_plan(plan, conf)
    store, folder = _store(plan, conf)
    runtime = SparkRuntime(spark if spark is not None else embedded_session())
    dry_compile(plan, conf, runtime)
    engine = SparkEngine(runtime, plan, conf)
    states = _headed_states(plan, conf)
    parts = Parts(
        topology=plan.name,
        fingerprint=plan.fingerprint(),
        spouts={spout_id: node.spout for spout_id, node in plan.sources.items()},
        states=states,
        store=store,
        engine=engine,
        config=conf,
        folder=folder,
    )

    def close() -> None:
        engine.close()
        for state in states.values():
            state.close()

    try:
        return Run(
            plan.name,
            parts,
            explain=lambda: explain(plan, conf),
            close=close,
            enroll=lambda epoch: engine.enroll(Writer(plan.name, epoch)),
        )
    except BaseException:
        close()
        raise


def _store(plan: Plan, conf: Config) -> tuple[CoordinationStore, Path | None]:
    """Choose where the ledger is kept: as long-lived as the states are."""
    updated = [spec for spec in plan.states.values() if not spec.static]
    if updated and all(spec.factory.volatile for spec in updated):
        places = tuple(sorted(str(spec.factory.location()) for spec in updated))
        with _memory_lock:
            shared = _memory.setdefault((plan.name, *places), SharedMemory())
        return MemoryCoordinationStore(plan.name, shared), None
    store = EmbeddedStore(conf.home_path(), plan.name, lease_s=conf.lease_secs)
    return store, store.folder


def _headed_states(plan: Plan, conf: Config) -> dict[str, HeadedState]:
    """Make one live state of each kind for the driver: it moves the heads."""
    states: dict[str, HeadedState] = {}
    for name, spec in plan.states.items():
        if spec.static:
            continue
        state = open_state(spec, conf, 0, None)
        if isinstance(state, HeadedState):
            states[name] = state
        else:
            state.close()
    return states
