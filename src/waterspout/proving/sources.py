"""The sources of a topology while it is proved: which must not be read, and in how many batches.

Every life reads the user's own source, dozens of times in all. So a spout that takes messages away
by acknowledging them is refused. A source that fits into one batch would prove little: where a
spout can be told how much to take, it is told to take a share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from waterspout._signatures import takes
from waterspout.errors import TopologyError
from waterspout.proving.stand_ins import Stateful
from waterspout.spouts._base import BatchPlanner, BatchSpout, SpoutContext
from waterspout.spouts._emitting import EmittingSource, EmittingSpout
from waterspout.spouts._pulled import PulledSource
from waterspout.topology._component import Spout
from waterspout.transactional._builder import TransactionalTopology

__all__ = ["SHARES", "cut", "refuse_consuming", "stored_shares"]

_TEST_KIT = "waterspout.testing"
SHARES = "shares.json"
"""The file with the shares, in the folder of a trial."""


def refuse_consuming(topology: Stateful, *, trusted: bool) -> None:
    """Refuse a spout that takes away what it reads; `trusted` lets those of the user's own pass."""
    if isinstance(topology, TransactionalTopology):
        return  # what its spouts emit again they must read again, from their metadata
    for spout_id, spout in _sources(topology).items():
        original = getattr(spout, "original", None)
        own = f"spout {spout_id!r} is a {type(original).__name__}"
        if type(original).__module__.startswith(_TEST_KIT):
            continue
        if isinstance(spout, PulledSource) and type(original).__module__.startswith("waterspout."):
            raise TopologyError(
                f"{own}, which acknowledges its messages at their source: to read them for a proof "
                "would take them away from whoever they are meant for. Prove the topology with a "
                "source that can be read again: files, Kafka, or FixedBatchSpout with some rows."
            )
        acknowledges = (isinstance(spout, PulledSource) and _overrides(original, Spout)) or (
            isinstance(spout, EmittingSource) and _overrides(original, EmittingSpout)
        )
        if acknowledges and not trusted:
            raise TopologyError(
                f"{own}, a class of your own with a method ack: if that takes messages away from "
                "their source, a proof would, too, since it reads the source dozens of times. If "
                "it does not, say so: --trust-source."
            )


def cut(topology: Stateful, batches: int, folder: Path) -> None:
    """Have the spouts that can be told so take a share of what there is, in each of some batches.

    The shares are chosen when the source is first looked at, and kept in the folder: the next life
    cuts the rest likewise.
    """
    if isinstance(topology, TransactionalTopology):
        return
    for spout_id, spout in _sources(topology).items():
        object.__setattr__(spout, "open", _Opening(spout, spout_id, batches, folder))


def stored_shares(folder: Path) -> dict[str, int]:
    """Return the shares that were chosen by now, by spout."""
    path = folder / SHARES
    found: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    return found


class _Opening:
    """In place of a spout's `open`: the planner that it makes is asked for shares."""

    def __init__(self, spout: BatchSpout, spout_id: str, batches: int, folder: Path) -> None:
        self._open = spout.open
        self._spout_id = spout_id
        self._batches = batches
        self._folder = folder

    def __call__(self, context: SpoutContext) -> BatchPlanner:
        planner = self._open(context)
        inner = planner.plan
        if takes(inner, 3):

            def plan(txid: int, previous: Any, target: int | None = None) -> Any:
                share = self._share(planner, previous)
                return inner(txid, previous) if share is None else inner(txid, previous, share)

            object.__setattr__(planner, "plan", plan)
        return planner

    def _share(self, planner: BatchPlanner, previous: Any) -> int | None:
        shares = stored_shares(self._folder)
        if self._spout_id not in shares and previous is None:
            waiting = planner.lag(previous).get(planner.unit, 0)
            if waiting:
                shares[self._spout_id] = max(1, -(-waiting // self._batches))
                (self._folder / SHARES).write_text(json.dumps(shares))
        return shares.get(self._spout_id)


def _sources(topology: Any) -> Mapping[str, BatchSpout]:
    sources = topology.plan().sources.items()
    return {spout_id: node.spout for spout_id, node in sources if not node.hidden}


def _overrides(spout: Any, base: type) -> bool:
    return type(spout).ack is not base.ack  # type: ignore[attr-defined]
