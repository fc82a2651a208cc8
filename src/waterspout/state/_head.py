"""The head of a state: which attempt may write to it, and what it holds. Pure rules, no I/O.

A state keeps its head in its own store, beside the values. The driver moves it twice per batch:
before the first write of an attempt (`claimed`), and after the batch was marked (`settled`). It
does so by compare-and-set, so that a head which somebody else has moved since is noticed. Every
write of a batch checks the head in its own transaction, and is refused unless the head names its
attempt. That is the fence. When each of this happens: `coordination/commit_protocol.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from waterspout._serde import decode_value, encode_value
from waterspout.errors import ConfigError, FencedError, ForeignStoreError, StateMismatchError
from waterspout.state._witnesses import Witness, Written, witnessed
from waterspout.transactional._attempt import TransactionAttempt

__all__ = [
    "Claim",
    "Head",
    "Stamp",
    "Writer",
    "check_stamp",
    "claimed",
    "goes_on",
    "refuse_other_name",
    "replaces_attempt",
    "settled",
    "takes_over",
    "verify",
]

NOTHING: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Writer:
    """A driver that holds the lease of a topology.

    `epoch` counts the drivers of a topology. But topologies of the same name may run from two
    waterspout homes (two working directories, a copied home), and each counts from 1. So a
    writer also carries two random names: `history`, made with the ledger, and `lease`, made each
    time that the lease is taken. What one driver has written is never taken for another's.
    """

    owner: str
    epoch: int
    history: str = ""
    lease: str = ""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A writer's attempt at a batch. Every write carries one, and the head must have the same."""

    writer: Writer
    txid: int
    attempt: int

    def __str__(self) -> str:
        return f"batch {self.txid} attempt {self.attempt} (epoch {self.writer.epoch})"


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt that writes, and what is known of the batches before it; picklable.

    `committed_attempt` has committed the batch before (None: there is none). `resolved` says, of
    earlier batches with several attempts, which attempt counts. `begun` are the attempts at this
    batch that were ever recorded as begun. `settled` if the state has answered that it knows of
    the commit of the batch before. `writer` is who writes, where that is known.
    `batch_time` is when the batch was planned, in seconds since 1970, for windows by time.
    `starts_at` is the number that the state's first batch has in Spark, under `foreachBatch`.
    `written` says, by state, what those who write with this very object have written; `late_rows`,
    by window of event time, how many rows came too late for it.
    """

    attempt: TransactionAttempt
    committed_attempt: int | None = None
    resolved: Mapping[int, int] = field(default_factory=dict)
    begun: tuple[int, ...] = ()
    writer: Writer | None = None
    batch_time: float | None = None
    starts_at: int | None = None
    settled: bool = False
    written: dict[str, Written] = field(default_factory=dict, compare=False)
    late_rows: dict[str, int] = field(default_factory=dict, compare=False)

    def writing(self, state: str) -> Written:
        """Return what is known to be written to a state, to be added to."""
        return self.written.setdefault(state, Written())

    def add_late(self, window: str, rows: int) -> None:
        """Note that so many rows are in no window."""
        if rows:
            self.late_rows[window] = self.late_rows.get(window, 0) + rows


@dataclass(frozen=True, slots=True)
class Head:
    """The attempt that a state belongs to; `committed` once its batch is marked.

    `resolved` as in the claim: readers skip the records of the other attempts. `name` is what
    the writer's topology or sink calls the state, so that two of its states on one table are
    found out, however the table's address is spelled; "" in a head of an older version.
    `starts_at` as in the claim: without it nobody could tell a later batch from one that the
    state has. `witnesses` are keys that must have a record (`state/_witnesses.py`).
    `first` is the first batch of the topology that the state has part in: one that was added later
    does not begin with batch 1.

    What is optional is left out of the text where it is unset, and stays as it is when the head
    moves, unless whoever moves it says otherwise.
    """

    stamp: Stamp
    committed: bool = False
    resolved: Mapping[int, int] = field(default_factory=dict)
    name: str = ""
    starts_at: int | None = None
    witnesses: tuple[Witness, ...] = ()
    first: int = 1

    def holds(self, txid: int, attempt: int) -> bool:
        """Whether a reader outside of any batch may see a record of this batch and attempt."""
        if txid == self.stamp.txid:
            return self.committed and attempt == self.stamp.attempt
        return txid < self.stamp.txid and self.resolved.get(txid, attempt) == attempt

    def has(self, txid: int) -> bool:
        """Whether a batch has committed, by whichever attempt."""
        return txid < self.stamp.txid or (txid == self.stamp.txid and self.committed)

    def to_text(self) -> str:
        """Return the head as JSON text."""
        return encode_value(
            {
                "owner": self.stamp.writer.owner,
                "history": self.stamp.writer.history,
                "lease": self.stamp.writer.lease,
                "epoch": self.stamp.writer.epoch,
                "txid": self.stamp.txid,
                "attempt": self.stamp.attempt,
                "committed": self.committed,
                "resolved": [[txid, attempt] for txid, attempt in sorted(self.resolved.items())],
                **({"name": self.name} if self.name else {}),
                **({} if self.starts_at is None else {"starts_at": self.starts_at}),
                **({"witnesses": [list(w) for w in self.witnesses]} if self.witnesses else {}),
                **({} if self.first == 1 else {"first": self.first}),
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Head:
        """Read a head back."""
        fields = decode_value(text)
        names = ("owner", "epoch", "history", "lease")
        writer = Writer(*(fields[name] for name in names))
        stamp = Stamp(writer, fields["txid"], fields["attempt"])
        resolved = dict(fields["resolved"])
        optional = {name: fields[name] for name in ("name", "starts_at", "first") if name in fields}
        witnesses = tuple((txid, key) for txid, key in fields.get("witnesses", ()))
        return cls(stamp, fields["committed"], resolved, **optional, witnesses=witnesses)


def claimed(
    head: Head | None,
    stamp: Stamp,
    claim: Claim,
    *,
    state: str,
    name: str = "",
    first: int = 1,
    joins_late: bool = False,
) -> Head:
    """Return the head with which `stamp`, the claim's attempt, may write; or refuse.

    Claiming twice with the same stamp is allowed: the answer to the first claim may have been
    lost. So is a claim over a settled attempt at the same batch, if that attempt is one that had
    begun: its batch was rolled back. What this very writer has claimed under another `name` is
    the table of two states: refused, and as all states are claimed before the first is written,
    before either has written a value. `first` and `joins_late`: see `verify`.
    """
    if stamp.txid < 1:
        raise ConfigError(f"{state}: txids start at 1, so there is no batch {stamp.txid}")
    # The owner first: epochs and attempts of another topology mean nothing here.
    _refuse_other_owner(head, stamp.writer.owner, state)
    # The attempts before this one. Its own number in a settled head is that of another history.
    begun = tuple(attempt for attempt in claim.begun if attempt != stamp.attempt)
    if head is not None:
        if stamp.writer.epoch < head.stamp.writer.epoch:
            raise FencedError(
                f"{state}: {stamp} was refused, because a driver of epoch "
                f"{head.stamp.writer.epoch} has taken over and is at {head.stamp}. This driver "
                "must not write any more."
            )
        _refuse_other_lease(head, stamp, state)
        if head.stamp.writer == stamp.writer:
            refuse_other_name(head, name, state)
        if head.stamp != stamp and head.stamp.txid == stamp.txid:
            lowest = head.stamp.attempt + (not head.committed)
            if stamp.attempt < lowest:
                raise FencedError(
                    f"{state}: {stamp} was refused, because the state is at {head.stamp}. A later "
                    "attempt at this batch has taken over; this one must not write any more."
                )
        if not head.committed:
            begun = (*begun, head.stamp.attempt)
    verify(
        head,
        state=state,
        owner=stamp.writer.owner,
        history=stamp.writer.history,
        current=stamp.txid,
        committed_attempt=claim.committed_attempt,
        begun=begun,
        settled=claim.settled,
        first=first,
        joins_late=joins_late,
    )
    before = head or Head(stamp, first=first)
    # Of an attempt that is replaced, rolled back or not, no record may be asked for; and nobody
    # knows what a batch has removed that was marked and never settled.
    unsettled = not before.committed and before.stamp.txid < stamp.txid
    return replace(
        before,
        stamp=stamp,
        committed=False,
        witnesses=() if unsettled else tuple(w for w in before.witnesses if w[0] < stamp.txid),
        resolved=dict(claim.resolved),
        name=name or before.name,
        starts_at=claim.starts_at,
    )


def settled(head: Head | None, stamp: Stamp, *, state: str, written: Written | None = None) -> Head:
    """Return the head after the batch of `stamp` was marked as committed; or refuse.

    A later driver of the topology may settle what an earlier one has claimed; the head then
    names the later one, who does not know what was written.
    """
    _refuse_other_owner(head, stamp.writer.owner, state)
    _refuse_other_lease(head, stamp, state)
    if (
        head is None
        or (head.stamp.txid, head.stamp.attempt) != (stamp.txid, stamp.attempt)
        or head.stamp.writer.epoch > stamp.writer.epoch
        or head.stamp.writer.history != stamp.writer.history
    ):
        raise FencedError(_refusal(state, stamp, head))
    if head.committed:
        return replace(head, stamp=stamp)
    witnesses = witnessed(head.witnesses, stamp.txid, written)
    return replace(head, stamp=stamp, committed=True, witnesses=witnesses)


def replaces_attempt(expected: Head | None, new: Head) -> bool:
    """Whether a move of the head replaces an attempt at a batch by another attempt at it."""
    return (
        expected is not None
        and not new.committed
        and expected.stamp.txid == new.stamp.txid
        and expected.stamp.attempt != new.stamp.attempt
    )


def takes_over(expected: Head | None, new: Head) -> bool:
    """Whether a move of the head claims a batch for an attempt that has not claimed it yet."""
    return not new.committed and (expected is None or expected.stamp != new.stamp)


def goes_on(expected: Head | None, new: Head) -> bool:
    """Whether a move of the head claims a later batch: what the one before did is for good."""
    return (
        expected is not None
        and not new.committed
        and expected.committed
        and new.stamp.txid > expected.stamp.txid
    )


def check_stamp(head: Head | None, stamp: Stamp, *, state: str) -> None:
    """Refuse a write whose stamp is not the head's, or whose batch has committed."""
    if head is None or head.stamp != stamp or head.committed:
        raise FencedError(_refusal(state, stamp, head))


def verify(
    head: Head | None,
    *,
    state: str,
    name: str = "",
    owner: str,
    history: str = "",
    current: int,
    committed_attempt: int | None,
    begun: tuple[int, ...],
    settled: bool = False,
    first: int = 1,
    joins_late: bool = False,
) -> None:
    """Compare a state with the coordination store before anything is written.

    `current` is the next txid to commit, `begun` its attempts that may have written. `settled` if
    all states have answered that they know of the commit of the batch before. `first` is the batch
    that the state began with: until that has committed, it may be empty. A state that
    `joins_late` may be empty though batches have committed without it. `name` is given where the
    names of the states cannot have changed since the head was written.
    """
    if head is None:
        if current > first and not joins_late:
            raise _wiped(state, current - first)
        return
    _refuse_other_owner(head, owner, state)
    txid, attempt = head.stamp.txid, head.stamp.attempt
    # An attempt of `begun` may have been settled: if its batch was rolled back since.
    if txid > current or (txid == current and head.committed and attempt not in begun):
        raise StateMismatchError(
            f"{state} holds batch {txid}, but the coordination store is about to commit batch "
            f"{current}. The coordination store was reset, or the state belongs to another "
            "run. Point to the right waterspout home, or use another table."
        )
    if txid == current and attempt not in begun:
        raise StateMismatchError(
            f"{state} was written by attempt {attempt} of batch {txid}, which the coordination "
            "store never began. Point to the right waterspout home, or use another table."
        )
    if txid == current - 1 and attempt != committed_attempt:
        raise StateMismatchError(
            f"{state} holds attempt {attempt} of batch {txid}, but attempt {committed_attempt} "
            "is the one that committed. The state belongs to another run: use another table."
        )
    if txid == current - 1 and settled and not head.committed:
        raise StateMismatchError(
            f"{state} says that batch {txid} is being written, though it has already answered that "
            "the batch is committed. It is a copy from the middle of the batch, or a replica that "
            "took over without the last writes. Bring back the store that has them, or restore "
            "matching copies of the state and the waterspout home. If all states of the topology "
            "are opaque, the batch may be taken back in all of them, and the next run counts it "
            "again: waterspout state rollback"
        )
    if head.stamp.writer.history != history:
        raise StateMismatchError(
            f"{state} was written by topology {owner!r} from another waterspout home. Point to "
            "that home, or use another table."
        )
    if txid < current - 1:
        raise StateMismatchError(
            f"{state} holds batch {txid}, but batch {current - 1} was committed to it. It was "
            "restored from an older copy. Restore the matching copy of the waterspout home "
            "too, or start over with an empty table."
        )
    if head.first != first and not joins_late:
        raise _other_beginning(state, head.first, first)
    refuse_other_name(head, name, state)


def _wiped(state: str, batches: int) -> StateMismatchError:
    return StateMismatchError(
        f"{state} is empty, but {batches} batches were committed to it. It was wiped, or this is "
        "not the store they went to. Restore it, or start over by removing the topology's folder "
        "under the waterspout home."
    )


def _other_beginning(state: str, its: int, noted: int) -> StateMismatchError:
    return StateMismatchError(
        f"{state} says that it began with batch {its}, and the coordination store says that it "
        f"began with batch {noted}. One of them was restored from another copy: restore matching "
        "copies of both, or use another table."
    )


def _refuse_other_owner(head: Head | None, owner: str, state: str) -> None:
    if head is not None and head.stamp.writer.owner != owner:
        raise ForeignStoreError(
            f"{state} belongs to topology {head.stamp.writer.owner!r}; topology {owner!r} may "
            "not write to it. Use another table."
        )


def refuse_other_name(head: Head, name: str, state: str) -> None:
    """Refuse a state whose head is that of another state of the same owner: one table for two."""
    if head.name and name and head.name != name:
        raise ForeignStoreError(
            f"{state} is where {head.name!r} of {head.stamp.writer.owner!r} is kept, so {name!r} "
            "may not be kept there as well: each would take the other's batches for its own. If "
            "two addresses lead to one table, use two tables; if the order of the states has "
            "changed, change it back."
        )


def _refuse_other_lease(head: Head | None, stamp: Stamp, state: str) -> None:
    if head is None:
        return
    mine, its = stamp.writer, head.stamp.writer
    if mine.epoch == its.epoch and mine.lease != its.lease:
        raise FencedError(
            f"{state}: {stamp} was refused, because another driver of topology {mine.owner!r} "
            "works on it from another home. Stop one of the two."
        )


def _refusal(state: str, stamp: Stamp, head: Head | None) -> str:
    at = "nothing" if head is None else f"{head.stamp}{', committed' * head.committed}"
    return (
        f"{state}: a write of {stamp} was refused; the state is at {at}. "
        "A newer attempt or driver has taken over; this one must not write any more."
    )
