"""Fill states and columns that were added later with what the batches before them held.

The source is read again, as for an audit, into states in a scratch folder. Then the values are set,
not added, so that a fill which was interrupted is done again from the beginning. Meanwhile the
ledger says that it goes on, and no run begins. A state keeps the value from before its last batch
for a rollback, and nobody counts that again: after a fill the last batch cannot be taken back.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waterspout import faults
from waterspout._config import Config
from waterspout.coordination.preflight import Prepared, prepare
from waterspout.coordination.store import acquire_when_free
from waterspout.errors import ConfigError
from waterspout.spark.audit import (
    committed_ledger,
    count_again,
    everything,
    scratch_plan,
    why_not,
)
from waterspout.spark.session import SparkRuntime
from waterspout.state._base import Key, ValueUpdater
from waterspout.state._batched import BatchedMap
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_state

__all__ = ["backfill", "to_be_filled"]


@dataclass(frozen=True, slots=True)
class _Fill(ValueUpdater[Any]):
    """Set some columns of a value, or all of it if no columns are named."""

    counted: Any
    columns: tuple[int, ...]

    def update(self, stored: Any | None) -> Any:
        if not self.columns:
            return self.counted
        if stored is None:
            return None  # it has no part in the others either
        return tuple(
            new if i in self.columns else old
            for i, (old, new) in enumerate(zip(stored, self.counted, strict=True))
        )


def to_be_filled(prepared: Prepared) -> dict[str, tuple[str, ...]]:
    """Return the states that lack earlier batches, each with the columns that do; or refuse.

    No columns: the whole state began later.
    """
    changes = prepared.changes
    if changes.changes:
        raise ConfigError(
            f"topology {prepared.plan.name!r} has changed since its last run: "
            f"{changes.changes[0]} Run it first; what is new is filled then."
        )
    changes.refuse_retired_spouts()
    found = {name: changes.lacking(name) for name in prepared.plan.updates}
    wanted = {name: columns for name, columns in found.items() if columns is not None}
    for name in wanted:
        reason = why_not(name, prepared.plan)
        if reason is not None:
            raise ConfigError(f"{name} cannot be filled: {reason}")
    return wanted


def backfill(topology: TridentTopology, spark: Any, conf: Config) -> dict[str, int]:
    """Fill what was added later; return how many keys were set, by state."""
    with closing(prepare(topology, conf, filling=True)) as prepared:
        wanted = to_be_filled(prepared)
        if not wanted:
            return {}
        plan, store, changes = prepared.plan, prepared.store, prepared.changes
        acquire_when_free(store, plan.fingerprint())
        ledger = committed_ledger(prepared)
        if not ledger.settled:
            raise ConfigError(
                f"the last run ended in the middle of batch {ledger.current - 1}; run the topology "
                "until it comes to rest, then fill"
            )
        metadata = everything(prepared, ledger)
        ledger = ledger.begin_to_fill(changes.filling(wanted))
        store.save(ledger)
        faults.point("fill.before")
        with tempfile.TemporaryDirectory(prefix="waterspout-backfill-") as scratch:
            counted = scratch_plan(plan, Path(scratch))
            count_again(counted, metadata, SparkRuntime(spark), conf)
            filled = {
                name: _fill(plan, counted, name, columns, conf) for name, columns in wanted.items()
            }
        store.save(ledger.grow(changes.filled(wanted)))
        return filled


def _fill(plan: Plan, scratch: Plan, name: str, columns: tuple[str, ...], conf: Config) -> int:
    stored = open_state(plan.states[name], conf, 0, None)
    counted = open_state(scratch.states[name], conf, 0, None)
    assert isinstance(stored, BatchedMap)
    assert isinstance(counted, BatchedMap)
    names = plan.states[name].factory.values.names  # type: ignore[attr-defined]
    chosen = tuple(names.index(column) for column in columns)
    keys = 0
    with closing(stored), closing(counted):
        for chunk in counted.scan():
            todo: list[Key] = [key for key, _ in chunk]
            stored.multi_update(todo, [_Fill(value, chosen) for _, value in chunk])
            keys += len(todo)
            faults.point("fill.after", state=name)
    return keys
