"""What must survive the driver: a value, its three transitions, and its JSON form.

The ledger is what a coordination store keeps. It changes only through `emit` (before a
batch is emitted), `begin` (before the first write of a commit) and `commit` (after the
last), and every change is stored before anyone acts on it. `settle` notes, when all states know of
the `commit`, that they do; nobody acts on that before it is stored, so it may be stored late.
`roll_back` undoes a `commit` of a topology that is stopped; `grow` takes in a graph that has
changed. `decide` changes what an unfinished batch of such a topology holds, because a person has
said so, and keeps who, when and why.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from waterspout.errors import DamagedStoreError
from waterspout.transactional._attempt import TransactionAttempt

__all__ = ["SKIPPED", "EmittedBatch", "Ledger", "Metadata", "first_batch", "is_skipped"]

T = TypeVar("T")

Metadata = Mapping[str, Any]
"""Per spout id, the JSON value that says what this spout gives to a batch."""

SKIPPED = "$skipped"
"""The key, beside the spout ids, of the ids of those that give nothing to a batch: a person has
decided so. What they would have given stands in the metadata, and counts as read."""


def is_skipped(metadata: Metadata, spout_id: str) -> bool:
    """Whether a spout gives nothing to a batch of this metadata, because a person decided so."""
    return spout_id in metadata.get(SKIPPED, ())


@dataclass(frozen=True, slots=True)
class EmittedBatch:
    """A batch that was emitted and has not committed: its last attempt, and what is in it."""

    attempt: int
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Ledger:
    """The whole memory of a topology's coordinator.

    `fingerprint` is the graph that it was last run with, piece by piece; `since` in a piece is the
    first batch that it has part in, if that is not the first of all
    (`coordination/graph_changes.py`).
    `history` is a random name that no other ledger has. `current` is the next txid to commit.
    `committed_*` describe batch `current - 1`, `earlier_*` the one before it, to which a
    rollback goes. `settled` says that every state has answered that it knows of that commit.
    `emitted` holds batches from `current` on.
    `begun` are the attempts of batch `current` that may have written. `resolved` says, for each
    committed txid that had several begun attempts, which one committed: records of the others
    are void. `decisions` are those of `decide`, oldest first. `positions` belong to a core
    topology, which has no batches: up to where, by spout and partition, every message is acked. So
    does `failing`: by spout and digest of a message, how often it has failed, and since when.
    """

    topology: str
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    history: str = ""
    current: int = 1
    committed_attempt: int | None = None
    committed_metadata: Metadata | None = None
    emitted: Mapping[int, EmittedBatch] = field(default_factory=dict)
    begun: tuple[int, ...] = ()
    resolved: Mapping[int, int] = field(default_factory=dict)
    earlier_attempt: int | None = None
    earlier_metadata: Metadata | None = None
    positions: Mapping[str, Any] = field(default_factory=dict)
    failing: Mapping[str, Any] = field(default_factory=dict)
    settled: bool = False
    decisions: tuple[Mapping[str, Any], ...] = ()

    def emit(self, attempt: TransactionAttempt, metadata: Metadata) -> Ledger:
        """Record an attempt before anything of it is emitted."""
        txid, number = attempt.txid, attempt.attempt_id
        before = self.emitted.get(txid)
        assert txid >= self.current, f"batch {txid} has already committed"
        assert txid == self.current or txid - 1 in self.emitted, f"batch {txid} follows no other"
        assert before is None or number > before.attempt, f"attempt {attempt} was used before"
        return replace(self, emitted={**self.emitted, txid: EmittedBatch(number, metadata)})

    def begin(self, attempt: TransactionAttempt) -> Ledger:
        """Record that an attempt is about to write."""
        assert attempt.txid == self.current, f"{attempt} may not commit before {self.current}"
        assert self.emitted[attempt.txid].attempt == attempt.attempt_id
        assert all(earlier < attempt.attempt_id for earlier in self.begun)
        return replace(self, begun=(*self.begun, attempt.attempt_id))

    def commit(
        self,
        attempt: TransactionAttempt,
        *,
        keep_resolved: bool = True,
        passed: Container[int] = (),
    ) -> Ledger:
        """Mark the current batch as committed by this attempt, and move on to the next.

        `keep_resolved` may be False when every state undoes the rows of a lost attempt, so
        that no void record is ever left to be told apart. Of the batches `passed` none is left.
        """
        assert attempt.txid == self.current
        assert self.begun
        assert self.begun[-1] == attempt.attempt_id
        resolved = {t: a for t, a in self.resolved.items() if t not in passed}
        if keep_resolved and len(self.begun) > 1:
            resolved = {**resolved, attempt.txid: attempt.attempt_id}
        emitted = dict(self.emitted)
        done = emitted.pop(attempt.txid)
        return replace(
            self,
            current=self.current + 1,
            committed_attempt=attempt.attempt_id,
            committed_metadata=done.metadata,
            earlier_attempt=self.committed_attempt,
            earlier_metadata=self.committed_metadata,
            emitted=emitted,
            begun=(),
            resolved=resolved,
            settled=False,
        )

    def settle(self) -> Ledger:
        """Note that every state knows that the last batch has committed."""
        assert self.committed_attempt is not None
        return replace(self, settled=True)

    def grow(self, fingerprint: Mapping[str, Any]) -> Ledger:
        """Take in a graph that has changed; what is new in it begins with the current batch."""
        spouts = {piece.removeprefix("spout ") for piece in fingerprint}
        positions = {spout: at for spout, at in self.positions.items() if spout in spouts}
        return replace(self, fingerprint=fingerprint, positions=positions)

    def begin_to_fill(self, fingerprint: Mapping[str, Any]) -> Ledger:
        """Note that states are being filled; the values from before the last batch are not kept."""
        return replace(self, fingerprint=fingerprint, earlier_attempt=None, earlier_metadata=None)

    def why_not_roll_back(self, *, unclaimed: bool = False) -> str | None:
        """Say why the last committed batch cannot be taken back; None if it can.

        `unclaimed` if no state was claimed for the batch after it: then that has written nothing,
        though it has begun.
        """
        if self.current == 1:
            return "nothing has committed yet"
        if self.begun and not unclaimed:
            return (
                f"batch {self.current} has begun to commit over it; run the topology until that "
                "batch has committed"
            )
        if self.earlier_attempt is None and self.current > 2:
            return "only one batch can be taken back, and the one after it was already"
        return None

    def roll_back(self, *, unclaimed: bool = False) -> Ledger:
        """Take back the mark of the last batch: its attempt is then one that was lost.

        What it held is forgotten, so that it is planned anew from where it began. `unclaimed` as
        in `why_not_roll_back`.
        """
        assert self.why_not_roll_back(unclaimed=unclaimed) is None
        assert self.committed_attempt is not None
        txid, lost = self.current - 1, self.committed_attempt
        return replace(
            self,
            fingerprint={p: _beginning_by(txid, entry) for p, entry in self.fingerprint.items()},
            current=txid,
            committed_attempt=self.earlier_attempt,
            committed_metadata=self.earlier_metadata,
            earlier_attempt=None,
            earlier_metadata=None,
            emitted={txid: EmittedBatch(lost, {})},
            begun=(lost,),
            resolved={t: a for t, a in self.resolved.items() if t != txid},
            settled=False,
            decisions=tuple(d for d in self.decisions if d["txid"] < txid),
        )

    def decide(self, txid: int, metadata: Metadata, decision: Mapping[str, Any]) -> Ledger:
        """Change what an unfinished batch holds, and keep why: the next attempt goes by it."""
        batch = self.emitted[txid]
        assert batch.metadata, f"batch {txid} holds nothing yet"
        changed = {**self.emitted, txid: replace(batch, metadata=metadata)}
        kept = (*self.decisions, {"txid": txid, **decision})
        return replace(self, emitted=changed, decisions=kept)

    def has_begun(self, txid: int) -> bool:
        """Whether an attempt at a batch may have written: only the current one commits."""
        return txid == self.current and bool(self.begun)

    def metadata_before(self, txid: int) -> Metadata | None:
        """Return what the batch before `txid` holds: that is where `txid` goes on."""
        if txid == self.current:
            return self.committed_metadata
        return self.emitted[txid - 1].metadata

    def to_json(self) -> dict[str, Any]:
        return {
            "topology": self.topology,
            "fingerprint": dict(self.fingerprint),
            "history": self.history,
            "current": self.current,
            "committed_attempt": self.committed_attempt,
            "committed_metadata": self.committed_metadata,
            "earlier_attempt": self.earlier_attempt,
            "earlier_metadata": self.earlier_metadata,
            "emitted": [[t, b.attempt, b.metadata] for t, b in sorted(self.emitted.items())],
            "begun": list(self.begun),
            "resolved": sorted(self.resolved.items()),
            **({"positions": dict(self.positions)} if self.positions else {}),
            **({"failing": dict(self.failing)} if self.failing else {}),
            **({"settled": True} if self.settled else {}),
            **({"decisions": [dict(each) for each in self.decisions]} if self.decisions else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Ledger:
        """Read a ledger back; anything odd in it is damage, never a fresh start."""
        try:
            ledger = cls(
                topology=_of(str, document["topology"]),
                fingerprint=_of(dict, document["fingerprint"]),
                history=_of(str, document["history"]),
                current=_number(document["current"]),
                committed_attempt=_optional(_number, document["committed_attempt"]),
                committed_metadata=_optional(_metadata, document["committed_metadata"]),
                earlier_attempt=_optional(_number, document["earlier_attempt"]),
                earlier_metadata=_optional(_metadata, document["earlier_metadata"]),
                emitted=_by_txid(document["emitted"], _emitted),
                begun=tuple(_number(a) for a in _of(list, document["begun"])),
                resolved=_by_txid(document["resolved"], _number),
                positions=_of(dict, document.get("positions", {})),
                failing=_failing(document.get("failing", {})),
                settled=_of(bool, document.get("settled", False)),
                decisions=tuple(_decision(d) for d in _of(list, document.get("decisions", []))),
            )
            ledger._refuse_contradictions()
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedStoreError(f"the ledger cannot be read: {error!r}") from error
        return ledger

    def _refuse_contradictions(self) -> None:
        """Raise ValueError for what `emit`, `begin` and `commit` can never have left."""
        current, emitted, begun = self.current, sorted(self.emitted), self.begun
        window = list(range(current, current + len(emitted)))
        fresh = self.committed_attempt is None
        alone = self.earlier_attempt is None
        last = self.emitted[current].attempt if current in self.emitted else -1
        rules = {
            "transaction ids start at 1": current >= 1,
            "batch 0 has committed": fresh == (current == 1),
            "a committed batch has no metadata": fresh == (self.committed_metadata is None),
            "the batch before has no metadata": alone == (self.earlier_metadata is None),
            "a batch before the first has committed": alone or current > 2,
            "what has not committed is settled": not (fresh and self.settled),
            "there is a gap in the batches in flight": emitted == window,
            "begun attempts are not in order": sorted(set(begun)) == list(begun),
            "an attempt has begun before it was emitted": not begun or begun[-1] <= last,
            "a batch is resolved before its time": all(1 <= t < current for t in self.resolved),
        }
        for wrong, holds in rules.items():
            if not holds:
                raise ValueError(wrong)


def first_batch(entry: Any) -> int:
    """Return the first batch that a piece of a graph has part in."""
    return int(entry.get("since", 1)) if isinstance(entry, Mapping) else 1


def _beginning_by(txid: int, entry: Any) -> Any:
    """Return a piece that begins with this batch at the latest: it is emitted again, with it."""
    if not isinstance(entry, Mapping):
        return entry
    since = {key: min(txid, value) for key, value in entry.items() if key == "since"}
    columns = entry.get("columns_since")
    if columns:
        since["columns_since"] = {name: min(txid, first) for name, first in columns.items()}
    return {**entry, **since}


def _of(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no transaction or attempt id")
    return value


def _metadata(value: Any) -> Metadata:
    return _of(dict, value)


def _decision(value: Any) -> Mapping[str, Any]:
    _number(_of(dict, value)["txid"])
    return value  # type: ignore[no-any-return]


def _optional(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)


def _failing(value: Any) -> dict[str, Any]:
    for messages in _of(dict, value).values():
        for count, since in _of(dict, messages).values():
            _number(count)
            _of(float, since)
    return _of(dict, value)


def _emitted(attempt: Any, metadata: Any) -> EmittedBatch:
    return EmittedBatch(_number(attempt), _metadata(metadata))


def _by_txid(entries: Any, read: Callable[..., T]) -> dict[int, T]:
    found: dict[int, T] = {}
    for txid, *rest in _of(list, entries):
        if txid in found:
            raise ValueError(f"batch {txid} is there twice")
        found[_number(txid)] = read(*rest)
    return found
