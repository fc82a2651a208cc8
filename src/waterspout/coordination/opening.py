"""The planners of a loop's spouts: opened with what the ledger knows of their batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from waterspout._config import Config
from waterspout.coordination.store import CoordinationStore
from waterspout.spouts._base import BatchPlanner, PlannedSpout, SpoutContext
from waterspout.transactional._ledger import Ledger, first_batch

__all__ = ["open_planners"]


def open_planners(
    spouts: Mapping[str, PlannedSpout],
    ledger: Ledger,
    store: CoordinationStore,
    conf: Config,
    clock: Callable[[], float],
    opened: dict[str, BatchPlanner],
) -> None:
    """Open every spout into `opened`, where those are found that an error leaves open."""
    known = {txid: batch.metadata for txid, batch in ledger.emitted.items()}
    if ledger.committed_metadata is not None:
        known[ledger.current - 1] = ledger.committed_metadata
    for spout_id, spout in spouts.items():
        context = SpoutContext(
            conf=conf,
            spout_id=spout_id,
            folder=store.folder,
            known={t: m[spout_id] for t, m in known.items() if spout_id in m},
            current=ledger.current,
            since=first_batch(ledger.fingerprint.get(f"spout {spout_id}")),
            kept=store.kept,
            clock=clock,
        )
        opened[spout_id] = spout.open(context)
