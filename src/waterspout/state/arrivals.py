"""What to do with a batch of a streaming query, given the head of the state. No I/O.

Structured Streaming numbers its batches and repeats the last one, with the same rows, unless
its own commit log has it. The state's head says which batches have arrived. So the head alone
decides: skip a batch that is there, go on with one that was left half-written, refuse one that
cannot follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from waterspout.errors import ForeignStoreError, StateMismatchError
from waterspout.state.head import Head

__all__ = ["Attempt", "QueryIdentity", "decide"]


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """Whose batches these are.

    `query` is the id that Spark keeps in the checkpoint, or "" where it cannot be asked for.
    `starts_at` is the batch with which the state begins.
    """

    owner: str
    query: str = ""
    starts_at: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that may now be made at a batch, with what its claim must know."""

    txid: int
    number: int
    committed_attempt: int | None = None
    resolved: Mapping[int, int] = field(default_factory=dict)


def decide(head: Head | None, batch_id: int, who: QueryIdentity, *, state: str) -> Attempt | None:
    """Return the attempt to make at a batch; None if the state has it already; or refuse."""
    txid = batch_id - who.starts_at + 1
    if txid < 1:
        raise StateMismatchError(
            f"{state} begins with batch {who.starts_at} of the query, and this is batch "
            f"{batch_id}. Begin it there: exactly_once(...).starting_at({batch_id})"
        )
    if head is None:
        if txid > 1:
            raise StateMismatchError(
                f"{state} is empty, but the query is at batch {batch_id}. If the state was wiped, "
                "restore it. If it is new and only the batches from here on shall count, say so: "
                f"exactly_once(...).starting_at({batch_id})"
            )
        return Attempt(txid, 0)
    _refuse_strangers(head, who, state)
    at = head.stamp.txid
    if at > txid:
        raise StateMismatchError(
            f"{state} holds batch {at - 1 + who.starts_at} of the query, but the query is at batch "
            f"{batch_id}: the checkpoint is younger than the state. Point to the checkpoint with "
            "which the state was written, or use another table."
        )
    if at == txid and head.committed:
        return None
    if at == txid:
        return Attempt(txid, head.stamp.attempt + 1, None, head.resolved)
    if at < txid - 1 or not head.committed:
        raise StateMismatchError(
            f"{state} holds batch {at - 1 + who.starts_at}{' in part' * (not head.committed)}, but "
            f"the query has gone on to batch {batch_id}. The state was restored from an older "
            "copy: restore the matching checkpoint too, or start over with an empty table."
        )
    resolved = dict(head.resolved)
    if head.stamp.attempt > 0:
        resolved[at] = head.stamp.attempt  # earlier attempts at it may have left records
    return Attempt(txid, 0, head.stamp.attempt, resolved)


def _refuse_strangers(head: Head, who: QueryIdentity, state: str) -> None:
    writer = head.stamp.writer
    if writer.owner != who.owner:
        raise ForeignStoreError(
            f"{state} belongs to {writer.owner!r}; {who.owner!r} may not write to it. Use another "
            "table, or give this sink the name of that one: exactly_once(...).named(...)"
        )
    if writer.history and who.query and writer.history != who.query:
        raise StateMismatchError(
            f"{state} was written by the streaming query {writer.history}, and this is "
            f"{who.query}: another checkpoint. Point to the checkpoint with which the state was "
            "written, or use another table."
        )
