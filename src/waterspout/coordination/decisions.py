"""The deliberate way past a batch that cannot be read: skip its input, or accept what is there now.

A batch of a transactional spout is pinned: every attempt must read the same. If its input is lost
or was changed, every attempt fails, and so does every run. Then a person decides. The decision
changes the metadata of the batch in the ledger and is kept beside it, with who, when and why, in
one durable write under the lease: it is refused while a driver runs, and a crash leaves all of it
or nothing. The next run emits the batch again, by a new attempt, as after any failure.

What was skipped counts as read: positions go on behind it, and it never comes again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from waterspout.coordination.batch_clock import CLOCK
from waterspout.coordination.commit_protocol import LedgerKeeper
from waterspout.coordination.store import CoordinationStore, acquire_when_free
from waterspout.errors import ConfigError
from waterspout.spouts._base import Piece, PlannedSpout, SpoutKind
from waterspout.state._base import StateKind
from waterspout.transactional._ledger import SKIPPED, Ledger, Metadata, is_skipped

__all__ = ["Decision", "StuckBatch", "decide", "stuck_batches", "why_inexact"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person has decided about a batch."""

    action: Literal["skip", "accept"]
    reason: str
    who: str
    time: str
    txid: int | None = None
    """Which batch; None: the first that cannot be read, else the next to commit."""
    files: Sequence[str] = ()
    """Of a skip, the files to go on without; none: without all input of the batch."""
    inexact: bool = False
    """Whether it may be taken though a state could be left with a part of the batch."""


@dataclass(frozen=True, slots=True)
class StuckBatch:
    """A batch that was emitted and has not committed: what each spout is pinned to."""

    txid: int
    attempt: int
    begun: tuple[int, ...]
    """The attempts that may have written."""
    metadata: Metadata
    pieces: Mapping[str, list[Piece]] = field(default_factory=dict)
    """By spout, what can be looked at one by one."""

    @property
    def is_readable(self) -> bool:
        """Whether nothing is known to be wrong with what it is pinned to."""
        return not any(piece.wrong for pieces in self.pieces.values() for piece in pieces)

    @property
    def skipped(self) -> list[str]:
        """The spouts that give nothing to it, because a person decided so."""
        return list(self.metadata.get(SKIPPED, ()))

    @property
    def spouts(self) -> dict[str, Any]:
        """By spout, what it is pinned to."""
        return {name: m for name, m in self.metadata.items() if name not in (CLOCK, SKIPPED)}


def stuck_batches(ledger: Ledger, spouts: Mapping[str, PlannedSpout]) -> list[StuckBatch]:
    """Return the unfinished batches of a ledger, and look at what they are pinned to."""
    found = []
    for txid, batch in sorted(ledger.emitted.items()):
        pieces = {
            name: spouts[name].pieces(metadata)
            for name, metadata in batch.metadata.items()
            if name in spouts and not is_skipped(batch.metadata, name)
        }
        begun = ledger.begun if txid == ledger.current else ()
        found.append(StuckBatch(txid, batch.attempt, begun, batch.metadata, pieces))
    return found


def why_inexact(batch: StuckBatch, kinds: Mapping[str, StateKind | None]) -> list[str]:
    """Return the states that may be left with a part of what an earlier attempt has written.

    An opaque state takes back what a lost attempt wrote. A transactional one counts on a replay
    that holds the same, and what is not waterspout's (None) nobody knows. One that is
    non-transactional promises nothing in any case.
    """
    if not batch.begun:
        return []
    return [n for n, kind in kinds.items() if kind is None or kind is StateKind.TRANSACTIONAL]


def decide(
    topology: str,
    fingerprint: Mapping[str, Any],
    store: CoordinationStore,
    spouts: Mapping[str, PlannedSpout],
    kinds: Mapping[str, StateKind | None],
    decision: Decision,
) -> tuple[int, bool]:
    """Record a decision; return the batch that it is about, and whether it was taken just now.

    `kinds` has the kind of everything that the topology updates, by name.
    """
    if not decision.reason.strip():
        raise ConfigError("give a reason: whoever finds the gap later wants to know it")
    if store.peek() is None:
        raise ConfigError(f"topology {topology!r} has never run here: nothing is stuck")
    acquire_when_free(store, fingerprint)
    try:
        keeper = LedgerKeeper(store.load(), store.save, store.note)
        batch = _chosen(keeper.ledger, spouts, decision.txid)
        changed, spouts_of = _changed(batch, spouts, decision)
        if changed == batch.metadata:
            return batch.txid, False  # by this command before: a crash came after it
        inexact = why_inexact(batch, kinds)
        if inexact and not decision.inexact:
            raise ConfigError(
                f"batch {batch.txid} has begun to commit, and {', '.join(inexact)} may hold a part "
                "of it, which only a replay of the same input makes whole. Put the input back as "
                "it was; or take it that this state is not exact (--inexact)."
            )
        keeper.decide(batch.txid, changed, _record(decision, spouts_of, inexact))
    finally:
        store.release()
    return batch.txid, True


def _chosen(ledger: Ledger, spouts: Mapping[str, PlannedSpout], txid: int | None) -> StuckBatch:
    batches = stuck_batches(ledger, spouts)
    if not batches:
        raise ConfigError(
            f"no batch is unfinished: {ledger.current - 1} have committed, and the next was not "
            "planned yet. Nothing is stuck."
        )
    if txid is None:
        unreadable = [batch for batch in batches if not batch.is_readable]
        chosen = (unreadable or batches)[0]
    else:
        found = [batch for batch in batches if batch.txid == txid]
        if not found:
            numbers = ", ".join(str(batch.txid) for batch in batches)
            raise ConfigError(f"batch {txid} is not unfinished; these are: {numbers}")
        chosen = found[0]
    if not chosen.metadata:
        raise ConfigError(
            f"batch {chosen.txid} was rolled back and is planned anew by the next run: it holds "
            "nothing yet"
        )
    return chosen


def _changed(
    batch: StuckBatch, spouts: Mapping[str, PlannedSpout], decision: Decision
) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata that a decision makes of a batch's, and the spouts it is about."""
    metadata = dict(batch.metadata)
    if decision.action == "accept":
        wrong = [n for n, pieces in batch.pieces.items() if any(p.wrong for p in pieces)]
        for name in wrong:
            metadata[name] = spouts[name].accept(metadata[name])
        return metadata, wrong
    if decision.files:
        name = _who_reads(batch, decision.files)
        metadata[name] = spouts[name].leave_out(metadata[name], decision.files)
        return metadata, [name]
    # What a non-transactional spout had is gone with its driver; its source gives it again.
    fixed = [
        name
        for name in batch.spouts
        if name in spouts and spouts[name].kind is not SpoutKind.NON_TRANSACTIONAL
    ]
    if not fixed:
        raise ConfigError(f"no spout is pinned to anything in batch {batch.txid}; just run it")
    metadata[SKIPPED] = sorted({*batch.skipped, *fixed})
    return metadata, fixed


def _who_reads(batch: StuckBatch, files: Sequence[str]) -> str:
    """Return the spout that these files of a batch belong to."""
    for name, pieces in batch.pieces.items():
        known = {piece.name for piece in pieces}
        if known.issuperset(files):
            return name
    missing = {*files} - {p.name for pieces in batch.pieces.values() for p in pieces}
    what = f"{sorted(missing)[0]} is not" if missing else "they are not all of one spout"
    raise ConfigError(f"{what} among the files of batch {batch.txid}; `batch show` lists them")


def _record(decision: Decision, spouts: Sequence[str], inexact: Sequence[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "action": decision.action,
        "spouts": list(spouts),
        "reason": decision.reason,
        "who": decision.who,
        "time": decision.time,
    }
    if decision.files:
        kept["files"] = list(decision.files)
    if inexact:
        kept["inexact"] = list(inexact)
    return kept
