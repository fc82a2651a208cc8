"""A state with a head: all that the commit protocol knows of a state, whatever it holds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Protocol

from waterspout import faults
from waterspout.errors import ConfigError, FencedError
from waterspout.state._base import State
from waterspout.state._head import NOTHING, Claim, Head, Stamp, Writer, claimed, settled
from waterspout.state._witnesses import Written
from waterspout.transactional._attempt import TransactionAttempt

__all__ = ["HeadStore", "HeadedState"]


class HeadStore(Protocol):
    """Where a head is kept, and moved by compare-and-set."""

    @property
    def undoes_lost_attempts(self) -> bool:
        """Whether `move_head` takes back what an attempt has written that was lost."""

    def read_head(self) -> Head | None:
        """Return the head, or None where there is none."""

    def move_head(self, expected: Head | None, new: Head) -> None:
        """Replace the head if it still is `expected`, else raise FencedError."""


class HeadedState(State):
    """A state whose store keeps a head: who may write to it, and which batches it holds.

    A driver claims and settles it (`coordination/commit_protocol.py`); whoever writes takes part
    in a batch by `begin_commit` and `commit`. What is written is the affair of a subclass.
    """

    joins_late: ClassVar[bool] = False
    """Whether the state may be new to a topology that has committed batches without it."""

    def __init__(self, name: str, partition: int) -> None:
        self._name = name
        self._partition = partition
        self._writer: Writer | None = None
        self._known_as = ""
        self._first = 1
        self._batch: Claim | None = None
        self.written = Written()
        """What the last batch has written here."""

    @property
    @abstractmethod
    def _heads(self) -> HeadStore | None:
        """Where the head is; None if the store has none."""

    @abstractmethod
    def refuse_lost_records(self) -> None:
        """Refuse a state that has not all the records which its head says it must have."""

    def begin_commit(
        self, txid: int | None, attempt: int = 0, resolved: Mapping[int, int] = NOTHING
    ) -> None:
        """Start a batch: forget what an earlier one left."""
        if txid is not None and txid < 1:
            # 0 marks what no batch has written.
            raise ConfigError(f"{self._name}: txids start at 1, so there is no batch {txid}")
        self._batch = None
        if txid is not None:
            self._batch = Claim(TransactionAttempt(txid, attempt), resolved=resolved)
        self.written = Written()

    def enroll(self, writer: Writer, known_as: str = "", first: int = 1) -> None:
        """Say who writes from now on. Called once, where the state was made.

        `known_as` is the writer's name for the state, and `first` the batch with which the state
        begins, for whoever moves the head.
        """
        self._writer = writer
        self._known_as = known_as
        self._first = first

    @property
    def title(self) -> str:
        """What errors call the state: where it is, without secrets."""
        return self._name

    @property
    def is_fenced(self) -> bool:
        """Whether the store really checks the head with each write."""
        return self._heads is not None

    @property
    def undoes_lost_attempts(self) -> bool:
        """Whether nothing of a lost attempt need be told apart once the next has claimed."""
        heads = self._heads
        return heads is not None and heads.undoes_lost_attempts

    def read_head(self) -> Head | None:
        """Return the head, or None where nothing was ever written."""
        heads = self._heads
        return None if heads is None else heads.read_head()

    def claim(self, claim: Claim) -> None:
        """Move the head to an attempt. Called by the driver before any task writes."""
        self.prepare_claim(claim)()

    def prepare_claim(self, claim: Claim) -> Callable[[], None]:
        """Look whether an attempt may claim the state; return what then moves the head to it."""
        heads = self._heads
        if heads is None:
            return lambda: None
        mine = replace(claim, resolved=NOTHING) if heads.undoes_lost_attempts else claim
        head, new = self._as_claimed(heads, mine)

        def move() -> None:
            try:
                heads.move_head(head, new)
            except FencedError:
                # Whoever was faster may be another state of this very driver, on the same table.
                self._as_claimed(heads, mine)
                raise

        return move

    def _as_claimed(self, heads: HeadStore, claim: Claim) -> tuple[Head | None, Head]:
        """Return the head, and what it is when this attempt has claimed; or refuse."""
        head = heads.read_head()
        new = claimed(
            head,
            self._require_stamp(claim.attempt.txid, claim.attempt.attempt_id),
            claim,
            state=self._name,
            name=self._known_as,
            first=self._first,
            joins_late=self.joins_late,
        )
        return head, new

    def put_back_lost(self, resolved: Mapping[int, int]) -> bool:
        """Take all records of lost attempts at these batches back to the value before.

        `resolved` says which attempt counts of each. A reader sees the same before and after; only
        that nobody need be told any more which attempts these batches had. False if a record may
        be left: the store cannot list what it holds, or somebody has changed one meanwhile.
        """
        return self.is_fenced and self.undoes_lost_attempts

    def settle(self, txid: int, attempt: int, written: Written | None = None) -> None:
        """Note in the head that the batch was marked. Called by the driver, after the mark.

        `written` is what the batch has written; None if that is not known.
        """
        heads = self._heads
        if heads is None:
            return
        head = heads.read_head()
        stamp = self._require_stamp(txid, attempt)
        new = settled(head, stamp, state=self._name, written=written)
        if new != head:
            heads.move_head(head, new)

    def _pass_point(self, name: str, batch: TransactionAttempt) -> None:
        which = {"state": self._known_as, "partition": self._partition}
        faults.point(name, txid=batch.txid, attempt=batch.attempt_id, **which)

    def _stamp(self, batch: Claim) -> Stamp | None:
        if self._writer is None:
            return None
        return Stamp(self._writer, batch.attempt.txid, batch.attempt.attempt_id)

    def _require_stamp(self, txid: int, attempt: int) -> Stamp:
        if self._writer is None:
            raise FencedError(f"{self._name}: nobody has enrolled as its writer")
        return Stamp(self._writer, txid, attempt)
