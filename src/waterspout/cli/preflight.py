"""Everything that can be found out about a topology before a JVM is started."""

from __future__ import annotations

import os
from pathlib import Path

from waterspout.config import Config
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.loop import check_states
from waterspout.errors import StoreError
from waterspout.state.base import HeadedState, State
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_state
from waterspout.trident.topology import TridentTopology

__all__ = ["preflight", "why_not_writable"]


def preflight(topology: TridentTopology, conf: Config) -> Plan:
    """Return the plan if it may run, else raise what is wrong; writes nothing."""
    from waterspout.spark.checks import check_plan

    plan = topology.plan(conf)
    check_plan(plan, conf)
    updated = [spec for spec in plan.states.values() if not spec.static]
    if updated and all(spec.factory.volatile for spec in updated):
        return plan  # nothing of it outlives the process, so nothing can be there already
    reason = why_not_writable(conf.home_path())
    if reason is not None:
        raise StoreError(
            f"the waterspout home {conf.home_path()} cannot be used: {reason}. Choose another "
            "place with WATERSPOUT_HOME or -c home=FOLDER."
        )
    _compare_states(plan, conf)
    return plan


def why_not_writable(folder: Path) -> str | None:
    """Return why a folder could not be made or written to; None if it could."""
    place = folder.expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is not a folder"
    return None if os.access(place, os.W_OK | os.X_OK) else f"{place} is read-only"


def _compare_states(plan: Plan, conf: Config) -> None:
    """See that every state and the coordination store tell the same history."""
    store = EmbeddedStore(conf.home_path(), plan.name, lease_s=conf.lease_secs)
    states: dict[str, State] = {}
    try:
        for name, spec in plan.states.items():
            if not spec.static:
                # Under the name of its place, which is what a complaint should name.
                states[spec.factory.location() or name] = open_state(spec, conf, 0, None)
        headed = {name: s for name, s in states.items() if isinstance(s, HeadedState)}
        check_states(headed, store.peek(), plan.name)
    finally:
        store.release()
        for state in states.values():
            state.close()
