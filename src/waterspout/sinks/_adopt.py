"""`adopt`: a topology goes on where a streaming query with `exactly_once` has stopped.

The steps are those of every commit (`coordination/commit_protocol.py`) without claim and write,
because no value changes: verify the states, mark in the topology's ledger what the query has
committed, settle the heads in the name of the topology.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from waterspout._config import Config
from waterspout.coordination.commit_protocol import CommitProtocol, LedgerKeeper
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.store import acquire_when_free
from waterspout.errors import ConfigError, StateMismatchError, TopologyError
from waterspout.sinks._checkpoint import Checkpoint, read_checkpoint
from waterspout.spouts.files import FileSpout
from waterspout.state._base import State
from waterspout.state._foreach_batch import check_adoptable, handed_over
from waterspout.state._head import Head, Writer, refuse_other_name
from waterspout.state._headed import HeadedState, HeadStore
from waterspout.state._kinds import OpaqueMap
from waterspout.state._rows import RowsStoreState
from waterspout.state._store import StoreState
from waterspout.state._witnesses import Written
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.plan import Plan

__all__ = ["adopt"]


def adopt(
    checkpoint: str | Path,
    topology: TridentTopology,
    *,
    name: str = "foreachBatch",
    config: Config | None = None,
) -> int:
    """Make a topology continue a stopped query; return the txid it will begin with.

    The query must have read one directory of files and written, through `exactly_once`, exactly
    the states that the topology updates; `name` is the name of that sink. The topology's
    `FileSpout` then begins with the files that the query has not read, and the topology becomes
    the owner of the states. Nothing is written before everything is checked. If it is
    interrupted, call it again: it goes on from there.
    """
    conf = config or Config()
    if conf.zookeeper_servers:
        raise ConfigError(
            "adopt writes to the embedded coordination store; leave zookeeper_servers out, and "
            "run the topology without it too"
        )
    plan = topology.plan(conf)
    spout_id, spout = _one_file_spout(plan)
    stopped = read_checkpoint(checkpoint)
    store = EmbeddedStore(conf.home_path(), plan.name, lease_s=conf.lease_secs)
    states = _states(plan)
    keeper = _AdoptingKeeper(plan.name, f"sink {name}", stopped, store)
    commits = CommitProtocol(states, keeper)
    try:
        commits.verify()
        last = _agreed(keeper.heads)
        txid = last.stamp.txid
        files = stopped.files()
        newest = max(files.values(), default=0)
        # The spout only needs to tell the files of the last batch from those before it.
        by_txid = {file: txid - (batch < newest) for file, batch in files.items()}
        _refuse_other_past(store, stopped, last)
        epoch = acquire_when_free(store, plan.fingerprint())
        try:
            metadata = spout.adopt(store.folder, spout_id, by_txid)
            keeper.adopted = replace(
                store.load(),
                history=stopped.query,
                current=txid + 1,
                committed_attempt=last.stamp.attempt,
                committed_metadata={spout_id: metadata},
                resolved=last.resolved,
            )
            commits.enroll(Writer(plan.name, epoch, stopped.query, uuid.uuid4().hex))
            commits.mark(TransactionAttempt(txid, last.stamp.attempt))
            commits.settle()
        finally:
            store.release()
    finally:
        for state in states.values():
            state.close()
    return txid + 1


class _AdoptingKeeper(LedgerKeeper):
    """Verifies states of a sink, and marks in the ledger of a topology what they hold."""

    def __init__(self, topology: str, sink: str, stopped: Checkpoint, store: EmbeddedStore) -> None:
        super().__init__(Ledger(topology), store.save, store.note)
        self._sink = sink
        self._stopped = stopped
        self.heads: dict[str, Head] = {}
        self.adopted: Ledger | None = None

    def verify(self, name: str, head: Head | None, *, state: str, joins_late: bool) -> None:
        stopped = self._stopped
        self.heads[state] = check_adoptable(
            head,
            state=state,
            name=name,
            sink=self._sink,
            topology=self.ledger.topology,
            query=stopped.query,
            checkpoint=str(stopped.path),
        )

    def mark(
        self, attempt: TransactionAttempt, *, keep_resolved: bool, passed: Container[int] = ()
    ) -> None:
        assert self.adopted is not None
        self._save(self.adopted)


class _AdoptedState(HeadedState):
    """A state, of whatever kind, that changes its owner when it is settled.

    Only its head is used, and that is the same for all kinds.
    """

    def __init__(self, state: HeadedState) -> None:
        super().__init__(state.title, 0)
        self._state = state

    @property
    def _heads(self) -> HeadStore | None:
        return self._state._heads

    def refuse_lost_records(self) -> None:
        self._state.refuse_lost_records()

    def close(self) -> None:
        self._state.close()

    def settle(self, txid: int, attempt: int, written: Written | None = None) -> None:
        heads, stamp = self._heads, self._require_stamp(txid, attempt)
        assert heads is not None
        head = heads.read_head()
        assert head is not None
        if head.stamp.writer.owner != stamp.writer.owner:
            heads.move_head(head, handed_over(head, stamp, self._known_as))
        else:
            refuse_other_name(head, self._known_as, self.title)


def _one_file_spout(plan: Plan) -> tuple[str, FileSpout]:
    found = [(spout_id, node.spout) for spout_id, node in plan.sources.items()]
    if len(found) != 1 or not isinstance(found[0][1], FileSpout):
        raise TopologyError("adopt needs a topology with one spout, and that a FileSpout")
    return found[0][0], found[0][1]


def _states(plan: Plan) -> dict[str, _AdoptedState]:
    states: dict[str, _AdoptedState] = {}
    for spec in plan.states.values():
        if spec.static:
            continue
        factory = spec.factory
        state: State | None = None
        if isinstance(factory, RowsStoreState):
            state = factory.make_state(Config(), 0, 1)
        elif isinstance(factory, StoreState):
            state = OpaqueMap[object](factory.backing(), name=factory.title)
        if not isinstance(state, HeadedState) or not state.is_fenced:
            raise TopologyError(f"{spec.name} is not a state in a store; it cannot be adopted")
        states[spec.name] = _AdoptedState(state)
    return states


def _agreed(heads: Mapping[str, Head]) -> Head:
    """Return the head that all states agree on, apart from who wrote it."""
    named: dict[tuple[str, str], str] = {}
    for title, head in heads.items():
        # A sink gives each of its states a name of its own.
        same = named.setdefault((head.stamp.writer.lease, head.name), title)
        if head.name and same != title:
            raise StateMismatchError(
                f"{same} and {title} are one table, or one is a copy of the other: the sink has "
                f"written both as {head.name!r}. Give the topology the states of the sink, once "
                "each."
            )
    facts = {
        (h.stamp.txid, h.stamp.attempt, tuple(sorted(h.resolved.items()))) for h in heads.values()
    }
    if len(facts) != 1:
        raise StateMismatchError(
            "the states are not at the same attempt of the same batch: "
            + "; ".join(f"{title} at {head.stamp}" for title, head in heads.items())
            + ". Let the query run for one more batch, and stop it."
        )
    head = next(iter(heads.values()))
    return handed_over(head, head.stamp)


def _refuse_other_past(store: EmbeddedStore, stopped: Checkpoint, last: Head) -> None:
    ledger = store.peek()
    if ledger is None or ledger.current == 1:
        return
    if (ledger.history, ledger.current) != (stopped.query, last.stamp.txid + 1):
        raise StateMismatchError(
            f"topology {ledger.topology!r} has already run: {store.folder} holds its positions. "
            "Give the topology that is to adopt the query another name."
        )
