"""Taking the last committed batch back, in all states of a stopped topology together.

A rollback reverses the mark, and nothing else. The mark is removed from the ledger in one durable
step. From then on the batch's attempt counts as lost, like that of a driver which died before the
mark. Then the next attempt begins and claims every state, as always, and so the states show the
values from before the batch. A rollback that was interrupted is finished by calling it again, or
by the next run.

It is also the way out for a state that came back from the middle of the last batch (a copy, a
replica that took over): what there is of the batch is taken back with the rest. The next batch may
have begun by then, and been refused by that state. As no state is claimed unless all can be, it has
written nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waterspout.coordination.commit_protocol import (
    CommitProtocol,
    LedgerKeeper,
    verify_topology,
)
from waterspout.coordination.store import CoordinationStore, acquire_when_free
from waterspout.errors import ConfigError
from waterspout.state._base import StateKind
from waterspout.state._head import Writer
from waterspout.state._headed import HeadedState
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger

__all__ = ["refuse_states_without_past", "roll_back"]


def roll_back(
    topology: str,
    fingerprint: Mapping[str, Any],
    store: CoordinationStore,
    states: Mapping[str, HeadedState],
    kinds: Mapping[str, StateKind | None],
) -> int:
    """Take the last committed batch back and return its txid; its spouts go back with it.

    `kinds` has the kind of every state that the topology updates, by name. All must be opaque:
    other states do not keep the value from before a batch.
    """
    refuse_states_without_past(kinds, states)
    ledger = store.peek()
    if ledger is None:
        raise ConfigError(f"topology {topology!r} has never run here: there is nothing to undo")
    names = verify_topology(states, ledger, topology, fingerprint, taking_back=True).names
    epoch = acquire_when_free(store, fingerprint)
    try:
        keeper = LedgerKeeper(store.load(), store.save, store.note)
        commits = CommitProtocol(states, keeper, names=names)
        if not _is_rolled_back(keeper.ledger):
            txid = keeper.ledger.current
            heads = [_is_behind(state, txid) for state in states.values()]
            unclaimed = bool(heads) and all(heads)
            reason = keeper.ledger.why_not_roll_back(unclaimed=unclaimed)
            if reason is not None:
                raise ConfigError(f"batch {txid - 1} cannot be taken back: {reason}")
            keeper.take_back(unclaimed=unclaimed)
        txid = keeper.ledger.current
        commits.enroll(Writer(topology, epoch, keeper.ledger.history, f"rollback-{epoch}"))
        attempt = TransactionAttempt(txid, keeper.ledger.emitted[txid].attempt + 1)
        keeper.emit(attempt, {})
        commits.claim(commits.begin(attempt))
    finally:
        store.release()
    return txid


def _is_behind(state: HeadedState, txid: int) -> bool:
    """Whether a state was never claimed for this batch."""
    head = state.read_head()
    return head is None or head.stamp.txid < txid


def _is_rolled_back(ledger: Ledger) -> bool:
    """Whether the next batch is one that was taken back and not planned again since."""
    batch = ledger.emitted.get(ledger.current)
    return batch is not None and not batch.metadata


def refuse_states_without_past(
    kinds: Mapping[str, StateKind | None], states: Mapping[str, HeadedState]
) -> None:
    """Refuse a topology of which a state, by its kind or as it is opened, has no value before."""
    for name, kind in kinds.items():
        if kind is not StateKind.OPAQUE:
            what = "a state of your own" if kind is None else f"a {kind.value} state"
            raise ConfigError(
                f"{name} is {what}, which does not keep what was there before a batch. Only a "
                "topology whose states are all opaque can be rolled back."
            )
    for name, state in states.items():
        if not state.is_fenced:
            raise ConfigError(
                f"{name} is in a store that keeps no head, so nobody can tell which of its records "
                "the last batch wrote. Only states in a store with a fence can be rolled back."
            )
