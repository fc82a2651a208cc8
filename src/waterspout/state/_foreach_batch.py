"""What to do with a batch that Spark hands to `foreachBatch`. Pure rules, no I/O.

Structured Streaming numbers its batches. After a restart it hands over the last batch again, with
the same rows, unless its own commit log has that batch. The head of the state says which batches
the state has. So the head alone decides: a batch that the state has is skipped, one that was left
half-written is written again by a new attempt, and one that cannot follow is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from waterspout.errors import ForeignStoreError, StateMismatchError
from waterspout.state._head import Claim, Head, Stamp, Writer, refuse_other_name
from waterspout.transactional._attempt import TransactionAttempt

__all__ = ["QueryIdentity", "beginnings", "check_adoptable", "decide", "handed_over", "next_writer"]


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The streaming query whose batches these are, and the sink that writes them.

    `owner` names the sink. `query` is the id that Spark keeps in the checkpoint; "" if no query
    calls, but somebody by hand; None where Spark cannot be asked for it. `starts_at` is the first
    batch that the state is to hold, if the sink says so.
    """

    owner: str
    query: str | None = ""
    starts_at: int | None = None


def next_writer(head: Head | None, who: QueryIdentity, lease: str) -> Writer:
    """Return as whom a new process writes: one epoch after whoever wrote last."""
    if head is None:
        return Writer(who.owner, 1, who.query or "", lease)
    before = head.stamp.writer
    # The query id of the first writer stays, even if it is "" because Spark could not be asked.
    return Writer(who.owner, before.epoch + 1, before.history, lease)


def decide(head: Head | None, batch_id: int, who: QueryIdentity, *, state: str) -> Claim | None:
    """Return the claim to make for a batch; None if the state has the batch; or refuse."""
    first = _first_batch(head, who, state)
    txid = batch_id - first + 1
    if txid < 1:
        raise StateMismatchError(
            f"{state} begins with batch {first} of the query, and this is batch "
            f"{batch_id}. Begin it there: exactly_once(...).starting_at({batch_id})"
        )
    if head is None:
        if txid > 1:
            raise StateMismatchError(
                f"{state} is empty, but the query is at batch {batch_id}. If the state was wiped, "
                "restore it. If it is new and only the batches from here on shall count, say so: "
                f"exactly_once(...).starting_at({batch_id})"
            )
        return Claim(TransactionAttempt(txid, 0), starts_at=first)
    _refuse_other_query(head, who, state)
    at = head.stamp.txid
    if at > txid:
        raise StateMismatchError(
            f"{state} holds batch {at - 1 + first} of the query, but the query is at batch "
            f"{batch_id}: the checkpoint is younger than the state. Point to the checkpoint with "
            "which the state was written, or use another table."
        )
    if at == txid:
        _refuse_unknown_query(head, batch_id, who, state)
        if head.committed:
            return None
        attempt = TransactionAttempt(txid, head.stamp.attempt + 1)
        return Claim(attempt, None, head.resolved, starts_at=first)
    if at < txid - 1 or not head.committed:
        raise StateMismatchError(
            f"{state} holds batch {at - 1 + first}{' in part' * (not head.committed)}, but "
            f"the query has gone on to batch {batch_id}. The state was restored from an older "
            "copy: restore the matching checkpoint too, or start over with an empty table."
        )
    attempt = TransactionAttempt(txid, 0)
    return Claim(attempt, head.stamp.attempt, _resolved(head), starts_at=first)


def beginnings(heads: Sequence[Head | None], said: int | None) -> list[int | None]:
    """Return, for each state of a sink, with which batch the sink says that it begins.

    A sink says it once for all its states. Where one of them is new, it is meant for that one: the
    others, which have noted another batch, go on. Where it fits none of them, each refuses it.
    """
    noted = [None if head is None else head.starts_at for head in heads]
    if said not in noted and None not in noted:
        return [said] * len(heads)
    return [said if first in (None, said) else None for first in noted]


def check_adoptable(
    head: Head | None,
    *,
    state: str,
    name: str,
    sink: str,
    topology: str,
    query: str,
    checkpoint: str,
) -> Head:
    """Return the head of a state that a topology may take over from a sink; or refuse.

    A state that the topology owns already is one that an interrupted adoption has reached; it
    then has the topology's `name` for it.
    """
    if head is None:
        raise StateMismatchError(
            f"{state} is empty: the query of {checkpoint} never wrote to it. Give the topology the "
            "states that the query's sink has written."
        )
    writer = head.stamp.writer
    if writer.owner not in (sink, topology):
        raise StateMismatchError(
            f"{state} belongs to {writer.owner!r}, not to {sink!r}. If the sink has a name of its "
            "own, pass it: adopt(..., name=...)"
        )
    if writer.owner == topology:
        refuse_other_name(head, name, state)
    if writer.history not in ("", query):
        raise StateMismatchError(
            f"{state} was written by the streaming query {writer.history}, and {checkpoint} is the "
            f"checkpoint of {query}. Pass the checkpoint with which the state was written."
        )
    if not head.committed:
        raise StateMismatchError(
            f"{state} holds batch {head.stamp.txid} in part. Start the query once more, let it "
            "come to rest, and stop it."
        )
    return head


def handed_over(head: Head, stamp: Stamp, name: str = "") -> Head:
    """Return a committed head under the stamp of its new owner, and its name for the state."""
    # A topology counts its own batches: Spark's number of the first one means nothing to it.
    return replace(
        head,
        stamp=stamp,
        committed=True,
        resolved=_resolved(head),
        name=name or head.name,
        starts_at=None,
    )


def _resolved(head: Head) -> dict[int, int]:
    """Return which attempts count, the one that committed the batch at the head included."""
    if head.stamp.attempt == 0:
        return dict(head.resolved)
    # The attempts before it may have left records.
    return {**head.resolved, head.stamp.txid: head.stamp.attempt}


def _first_batch(head: Head | None, who: QueryIdentity, state: str) -> int:
    """Return the number of the state's first batch: what the head says, else what the sink says."""
    noted = None if head is None else head.starts_at
    if noted is None:
        return who.starts_at or 0
    if who.starts_at not in (None, noted):
        raise StateMismatchError(
            f"{state} begins with batch {noted} of the query, and this sink says "
            f"starting_at({who.starts_at}). Its batches would be taken for others. Say "
            f"starting_at({noted}), or nothing: the state knows it."
        )
    return noted


def _refuse_unknown_query(head: Head, batch_id: int, who: QueryIdentity, state: str) -> None:
    """Refuse batch 0 of a query that may be another one than that whose batch 0 is there.

    A new checkpoint begins at batch 0. At any later batch it is found to be younger than the
    state; at batch 0 only the query's id tells it from the same batch handed over again.
    """
    if batch_id > 0:
        return
    if who.query is None or bool(who.query) != bool(head.stamp.writer.history):
        raise StateMismatchError(
            f"{state} holds batch 0 of a query, and this is batch 0 of a query. Whether it is the "
            "same batch again or that of a new checkpoint cannot be told, because Spark has not "
            "said which query wrote it, or which one this is: on Spark Connect it does not if "
            "several begin at once in a session. Start this one in a session of its own "
            "(SparkSession.builder.remote(...).create()), or use another table."
        )


def _refuse_other_query(head: Head, who: QueryIdentity, state: str) -> None:
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
