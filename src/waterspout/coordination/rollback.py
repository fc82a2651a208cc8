"""Taking the last committed batch back, in all states of a stopped topology together.

The mark of the batch is taken out of the ledger first, in one durable step: from then on its
attempt is one that was lost, like that of a driver that died before it could mark. Then the
next attempt claims every state, which shows the values from before the batch. Whatever is
interrupted in between is finished by the same call, or by the next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waterspout import faults
from waterspout.coordination.loop import check_states, claim_all
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import ConfigError
from waterspout.state.base import HeadedState, StateKind
from waterspout.state.head import Writer
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.ledger import Ledger

__all__ = ["roll_back"]


def roll_back(
    topology: str,
    fingerprint: Mapping[str, Any],
    store: CoordinationStore,
    states: Mapping[str, HeadedState],
    kinds: Mapping[str, StateKind | None],
) -> int:
    """Take the last committed batch back and return its txid; positions go back with it.

    `kinds` are the kinds of all states that the topology updates, by name. Refused unless all
    are opaque: no other keeps the value from before a batch.
    """
    _refuse_forgetful(kinds, states)
    ledger = store.peek()
    if ledger is None:
        raise ConfigError(f"topology {topology!r} has never run here: there is nothing to undo")
    check_states(states, ledger, topology, fingerprint)
    epoch = store.acquire(fingerprint)
    try:
        ledger = store.load()
        if not _is_rolled_back(ledger):
            ledger = _take_back(ledger, store)
        lease = f"rollback-{epoch}"
        for state in states.values():
            state.enroll(Writer(topology, epoch, ledger.history, lease))
        attempt = TransactionAttempt(ledger.current, ledger.emitted[ledger.current].attempt + 1)
        ledger = ledger.emit(attempt, {}).begin(attempt)
        store.save(ledger)
        claim_all(states, attempt, ledger)
    finally:
        store.release()
    return ledger.current


def _take_back(ledger: Ledger, store: CoordinationStore) -> Ledger:
    reason = ledger.why_not_roll_back()
    if reason is not None:
        raise ConfigError(f"batch {ledger.current - 1} cannot be taken back: {reason}")
    faults.point("mark.before", txid=ledger.current - 1)
    ledger = ledger.roll_back()
    store.save(ledger)
    faults.point("mark.after", txid=ledger.current)
    return ledger


def _is_rolled_back(ledger: Ledger) -> bool:
    """Whether the next batch is one that was taken back and has not been emitted since."""
    batch = ledger.emitted.get(ledger.current)
    return batch is not None and not batch.metadata


def _refuse_forgetful(
    kinds: Mapping[str, StateKind | None], states: Mapping[str, HeadedState]
) -> None:
    for name, kind in kinds.items():
        if kind is not StateKind.OPAQUE:
            what = "a state of your own" if kind is None else f"a {kind.value} state"
            raise ConfigError(
                f"{name} is {what}, which does not keep what was there before a batch. Only a "
                "topology whose states are all opaque can be rolled back."
            )
    for name, state in states.items():
        if not state.is_fenced:
            raise ConfigError(f"{name} keeps no head; its last batch cannot be told apart")
