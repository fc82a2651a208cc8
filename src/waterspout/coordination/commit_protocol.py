"""How a batch gets into its states: the one order that is safe, stated once.

A name in `[brackets]` is a kill point (`waterspout.faults`): tests stop the process at each.

    verify   read the head of every state; refuse, before anything is written, a state that does
             not fit: wiped, restored from an old copy, somebody else's, or one that has lost
             records which its head names (`state/_witnesses.py`)
    begin    record the attempt durably; from now on it may have written
             [commit.before_record] [commit.after_record]
    claim    move the head of every state to the attempt; no write of another attempt now counts
             [head.before] [head.after]
    write    apply the updates; each write checks the head, most stores in the same transaction
             (the others: docs/decisions/0006) [write.before] [write.after], in `state/_batched.py`;
             rows that tasks have only put down are then shown, all at once, by the driver
             [publish.before] [publish.after], in `state/_rows.py`
    mark     record durably that this attempt has committed the batch; no crash undoes it
             [mark.before] [mark.after]
    settle   note it in the head of every state; readers outside of a batch see its values
             [settle.before] [settle.after]; when all have answered, remember that they did

Why each step comes where it does:

- *begin before claim*: a head then never names an attempt that was not recorded. One that does
  was written by somebody else, and `verify` says so.
- *claim before write*: an earlier attempt that still runs somewhere is shut out before this one
  reads the values that it adds to.
- *mark after the last write*: a crash before the mark means that the batch is done again, by an
  attempt with a higher number, which takes back or overrides what this one has written.
- *settle after the mark*: readers never see a batch that may still be done again. If the driver
  dies in between, the next one settles (`recover`).
- *remember that all have settled*: a head that says *begun* after that is not what a crash left,
  but a copy from the middle of the batch, or a replica without the last writes. What is remembered
  need not be durable at once, only survive the driver: it costs no write of its own.

Who begins and marks is the one thing that differs, so it is passed in, as a `MarkKeeper`. A
topology has a ledger in its coordination store (`LedgerKeeper`). Under `foreachBatch` Spark has a
log of its own, and the head of the state is the only mark (`HeadKeeper`, docs/decisions/0008).

Whether a head may be claimed, settled or followed is decided without I/O, in `state/_head.py` and
`state/_foreach_batch.py`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from typing import Any

from waterspout import faults
from waterspout.coordination.batch_clock import BatchClock
from waterspout.coordination.graph_changes import Comparison
from waterspout.coordination.store import refuse_changed_graph
from waterspout.errors import ConfigError, FencedError, OutsideError
from waterspout.state._foreach_batch import QueryIdentity, decide
from waterspout.state._head import Claim, Head, Writer, verify
from waterspout.state._headed import HeadedState
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger, Metadata, first_batch

__all__ = ["CommitProtocol", "HeadKeeper", "LedgerKeeper", "MarkKeeper", "verify_topology"]

log = logging.getLogger(__name__)

NO_NAMES: Mapping[str, str] = {}

Tell = Callable[[str, TransactionAttempt, str | None], object]
"""Is told of each step that was taken: begun, claimed, marked, settled; and of which state."""

RESOLVED_MAX = 1_000
RESOLVED_KEPT = 500
"""How many batches with lost attempts are remembered at most, and how many of them after a look
through all records."""


class MarkKeeper(ABC):
    """Remembers which attempts have begun, and which one has committed each batch."""

    @abstractmethod
    def verify(self, name: str, head: Head | None, *, state: str, joins_late: bool) -> None:
        """Raise if the state of this name, with this head, cannot be written to.

        Writes nothing. `state` is what errors call it.
        """

    @abstractmethod
    def begin(self, attempt: TransactionAttempt) -> Claim:
        """Record that an attempt is about to write; return what the states must know of it."""

    @abstractmethod
    def mark(
        self, attempt: TransactionAttempt, *, keep_resolved: bool, passed: Container[int] = ()
    ) -> None:
        """Record that an attempt has committed its batch.

        `keep_resolved` if records of lost attempts may be left in a state, so that it must be
        remembered which attempt of the batch counts. Of the batches that were `passed` no such
        record is left.
        """

    @abstractmethod
    def last_marked(self) -> TransactionAttempt | None:
        """Return the attempt that was marked last: the one that heads are to be told of."""

    def first_of(self, name: str) -> int:
        """Return the first batch that the state of this name has part in."""
        return 1

    def all_settled(self) -> None:  # noqa: B027  (optional hook)
        """Remember that every state has answered that it knows of the last mark."""


class CommitProtocol:
    """The steps of a commit over the states that one mark is for, in their order.

    States are given by the names that their topology, or sink, has for them: a head keeps its
    state's. `commit` takes all steps of one attempt. Where other things happen in between (the loop
    hears of the writes by an event, a test stops half-way), the steps are called one by one.
    `tell` hears of each step when it is done, in the thread that has done it.
    `others_write`: user code writes as well, without a state of ours. `names` are those that ledger
    and heads have for states which the topology calls otherwise by now.
    """

    def __init__(
        self,
        states: Mapping[str, HeadedState],
        keeper: MarkKeeper,
        *,
        others_write: bool = False,
        names: Mapping[str, str] = NO_NAMES,
        tell: Tell = lambda step, attempt, state: None,
    ) -> None:
        self._names = names
        self._tell = tell
        self._states = states
        self._keeper = keeper
        self._others_write = others_write
        self._writer: Writer | None = None
        self._begun: Claim | None = None
        self._passed: frozenset[int] = frozenset()
        self._claimed: dict[str, int] = {}  # the batch that a state was last claimed for

    def commit(self, attempt: TransactionAttempt, write: Callable[[Claim], object]) -> None:
        """Commit a batch of verified states; `write` applies the updates."""
        self.finish(self.start(attempt), write)

    def start(self, attempt: TransactionAttempt) -> Claim:
        """Take the steps before the first write."""
        claim = self.begin(attempt)
        self.claim(claim)
        return claim

    def finish(self, claim: Claim, write: Callable[[Claim], object]) -> None:
        """Take the steps from the first write on."""
        write(claim)
        self.mark(claim.attempt)
        self.settle()

    def verify(self, *, records: bool = True) -> None:
        """Compare every state with what the keeper of the mark knows. Writes nothing.

        `records=False` leaves out what takes reading some: for who has looked before.
        """
        for name, state in self._states.items():
            if state.is_fenced:
                self._keeper.verify(
                    self._names.get(name, name),
                    state.read_head(),
                    state=state.title,
                    joins_late=state.joins_late,
                )
                if records:
                    state.refuse_lost_records()

    def enroll(self, writer: Writer) -> None:
        """Say who writes, before the first attempt."""
        self._writer = writer
        for name, state in self._states.items():
            known_as = self._names.get(name, name)
            state.enroll(writer, known_as, self._keeper.first_of(known_as))

    def recover(self) -> None:
        """Settle what a driver left that died between the mark and the settling."""
        last = self._keeper.last_marked()
        if last is None:
            return
        for state in self._states.values():
            head = state.read_head()
            if head is not None and head.stamp.txid == last.txid:
                state.settle(last.txid, last.attempt_id)
        self._keeper.all_settled()

    def begin(self, attempt: TransactionAttempt) -> Claim:
        """Record durably that the attempt is about to write."""
        faults.point("commit.before_record", txid=attempt.txid)
        claim = self._begun = replace(self._keeper.begin(attempt), writer=self._writer)
        faults.point("commit.after_record", txid=attempt.txid)
        self._say("begun", attempt)
        return claim

    def claim(self, claim: Claim) -> None:
        """Move the heads of all states to an attempt that has begun; none if one refuses."""
        self._passed = self._put_back_lost(claim)
        known = {t: a for t, a in claim.resolved.items() if t not in self._passed}
        mine = replace(claim, resolved=known) if self._passed else claim
        moves = {name: state.prepare_claim(mine) for name, state in self._states.items()}
        for name, move in moves.items():
            faults.point("head.before", txid=claim.attempt.txid, state=name)
            try:
                move()
            except FencedError:
                raise  # the head is as it was
            except BaseException:
                self._claimed[name] = claim.attempt.txid  # it may have arrived
                raise
            self._claimed[name] = claim.attempt.txid
            faults.point("head.after", txid=claim.attempt.txid, state=name)
            self._say("claimed", claim.attempt, name)

    def _put_back_lost(self, claim: Claim) -> frozenset[int]:
        """Bound what is remembered of lost attempts; return the batches to be forgotten.

        Now and then, when there are many, all records are looked through for those that a lost
        attempt has left. An attempt at an earlier batch can add none: the heads have moved on.
        """
        if len(claim.resolved) <= RESOLVED_MAX or not self._states or self._others_write:
            return frozenset()
        # The youngest stay: where keys are compared one by one, a late write may still arrive.
        oldest = sorted(t for t in claim.resolved if t < claim.attempt.txid - 1)[:-RESOLVED_KEPT]
        passed = {txid: claim.resolved[txid] for txid in oldest}
        done = all(state.put_back_lost(passed) for state in self._states.values())
        return frozenset(passed) if done else frozenset()

    def mark(self, attempt: TransactionAttempt) -> None:
        """Record durably that the attempt has committed its batch."""
        # Whoever writes without a state of ours may tell attempts apart by what is kept here.
        undone = all(state.undoes_lost_attempts for state in self._states.values())
        undone = bool(self._states) and undone and not self._others_write
        faults.point("mark.before", txid=attempt.txid)
        self._keeper.mark(attempt, keep_resolved=not undone, passed=self._passed)
        faults.point("mark.after", txid=attempt.txid)
        self._say("marked", attempt)

    def settle(self) -> None:
        """Note in all heads that the batch was marked; may be repeated.

        A state that was claimed for the next batch knows: the claim told it. A store that cannot be
        reached keeps none of the others from being told; the first error is raised when all were
        tried.
        """
        last = self._keeper.last_marked()
        if last is None:
            return
        first: OutsideError | None = None
        claim = self._begun if self._begun is not None and self._begun.attempt == last else None
        ahead = {name for name, txid in self._claimed.items() if txid > last.txid}
        for name, state in self._states.items():
            if name in ahead:
                continue
            faults.point("settle.before", txid=last.txid, state=name)
            written = None if claim is None else claim.written.get(name)
            try:
                state.settle(last.txid, last.attempt_id, written)
            except OutsideError as error:
                log.warning("%s was not told that batch %s committed: %s", name, last.txid, error)
                first = first or error
            else:
                self._say("settled", last, name)
            faults.point("settle.after", txid=last.txid, state=name)
        if first is not None:
            raise first
        # Whether the claim arrived is not known, and then neither that the state has settled.
        if not ahead:
            self._keeper.all_settled()

    def _say(self, step: str, attempt: TransactionAttempt, state: str | None = None) -> None:
        """Tell of a step; a commit never fails because somebody looks on."""
        try:
            self._tell(step, attempt, state)
        except Exception:
            log.exception("telling that %s is %s", attempt, step)


class LedgerKeeper(MarkKeeper):
    """Keeps the mark of a topology in its ledger: one durable record for all its states.

    `save` stores a ledger, and returns only when it is durable. `note` keeps what became of
    `settled` until the next `save` stores it. What a batch holds is recorded too, by `emit`, before
    it is processed: [metadata.before] [metadata.after].
    """

    def __init__(
        self,
        ledger: Ledger,
        save: Callable[[Ledger], None],
        note: Callable[[Ledger], None] = lambda ledger: None,
    ) -> None:
        self.ledger = ledger
        self._save_durably = save
        self._note = note

    def verify(self, name: str, head: Head | None, *, state: str, joins_late: bool) -> None:
        ledger = self.ledger
        verify(
            head,
            state=state,
            name=name,
            owner=ledger.topology,
            history=ledger.history,
            current=ledger.current,
            committed_attempt=ledger.committed_attempt,
            begun=ledger.begun,
            settled=ledger.settled,
            first=self.first_of(name),
            joins_late=joins_late,
        )

    def first_of(self, name: str) -> int:
        return first_batch(self.ledger.fingerprint.get(f"state {name}"))

    def emit(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        """Record what is in a batch before anything of this attempt is emitted."""
        faults.point("metadata.before", txid=attempt.txid)
        self._save(self.ledger.emit(attempt, metadata))
        faults.point("metadata.after", txid=attempt.txid)

    def decide(self, txid: int, metadata: Metadata, decision: Mapping[str, Any]) -> None:
        """Record that an unfinished batch is to hold something else, and who has said so."""
        faults.point("metadata.before", txid=txid)
        self._save(self.ledger.decide(txid, metadata, decision))
        faults.point("metadata.after", txid=txid)

    def begin(self, attempt: TransactionAttempt) -> Claim:
        self._save(self.ledger.begin(attempt))
        ledger = self.ledger
        return Claim(
            attempt,
            ledger.committed_attempt,
            ledger.resolved,
            ledger.begun,
            batch_time=BatchClock.read(ledger.emitted[attempt.txid].metadata),
            settled=ledger.settled,
        )

    def mark(
        self, attempt: TransactionAttempt, *, keep_resolved: bool, passed: Container[int] = ()
    ) -> None:
        self._save(self.ledger.commit(attempt, keep_resolved=keep_resolved, passed=passed))

    def last_marked(self) -> TransactionAttempt | None:
        number = self.ledger.committed_attempt
        return None if number is None else TransactionAttempt(self.ledger.current - 1, number)

    def all_settled(self) -> None:
        if not self.ledger.settled:
            ledger = self.ledger.settle()
            self._note(ledger)
            self.ledger = ledger

    def take_back(self, *, unclaimed: bool = False) -> None:
        """Remove the last mark: its attempt is then a lost one, which the next claim overrides.

        `unclaimed` as in `Ledger.why_not_roll_back`.
        """
        faults.point("mark.before", txid=self.ledger.current - 1)
        self._save(self.ledger.roll_back(unclaimed=unclaimed))
        faults.point("mark.after", txid=self.ledger.current)

    def _save(self, ledger: Ledger) -> None:
        self._save_durably(ledger)
        self.ledger = ledger


class HeadKeeper(MarkKeeper):
    """Keeps the mark of one `foreachBatch` batch of one state: in its head, and nowhere else.

    Nothing is recorded to begin (the claim does it) or to mark (the settling does it). `claim`
    is what `verify` found: the attempt to make, or None if the state has the batch.
    """

    def __init__(self, query: QueryIdentity, batch_id: int) -> None:
        self._query = query
        self._batch_id = batch_id
        self.claim: Claim | None = None
        self.head: Head | None = None
        """The head that `verify` read."""

    def verify(self, name: str, head: Head | None, *, state: str, joins_late: bool) -> None:
        self.claim = decide(head, self._batch_id, self._query, state=state)
        self.head = head

    def begin(self, attempt: TransactionAttempt) -> Claim:
        assert self.claim is not None
        assert attempt == self.claim.attempt
        return self.claim

    def mark(
        self, attempt: TransactionAttempt, *, keep_resolved: bool, passed: Container[int] = ()
    ) -> None:
        """Do nothing: the batch has committed when its head is settled."""

    def last_marked(self) -> TransactionAttempt | None:
        return None if self.claim is None else self.claim.attempt


def verify_topology(
    states: Mapping[str, HeadedState],
    ledger: Ledger | None,
    topology: str,
    fingerprint: Mapping[str, Any],
    *,
    retire: Collection[str] = (),
    taking_back: bool = False,
) -> Comparison:
    """Compare graph and states with a ledger; raise before anything is written.

    `retire` names what may be gone from the graph. `taking_back` if the last batch is to be taken
    back: then a state may be from its middle. Returns what has changed since the last run.
    """
    known = ledger or Ledger(topology, fingerprint)
    # First: a changed graph may be the reason why a state looks empty.
    found = refuse_changed_graph(known, fingerprint, retire)
    if taking_back:
        _refuse_to_take_back_changed(found, topology)
        known = replace(known, settled=False)
    keeper = LedgerKeeper(known.grow(found.graph), lambda ledger: None)
    CommitProtocol(states, keeper, names=found.names).verify()
    return found


def _refuse_to_take_back_changed(found: Comparison, topology: str) -> None:
    if found.changes:
        raise ConfigError(
            f"topology {topology!r} has changed since its last run: {found.changes[0]} Take the "
            "batch back with the topology that committed it."
        )
