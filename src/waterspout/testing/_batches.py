"""Drive batches through one state without a topology: for tests of states and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from waterspout._arrow import table_of_rows
from waterspout._config import Config
from waterspout.coordination.commit_protocol import CommitProtocol, LedgerKeeper
from waterspout.errors import OutsideError
from waterspout.state._base import Combiner, Key, StateFactory, ValueUpdater
from waterspout.state._batched import BatchedMap
from waterspout.state._head import NOTHING, Claim, Writer
from waterspout.state._rows import RowsState
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger

__all__ = [
    "OWNER",
    "Add",
    "Batches",
    "RowBatches",
    "committed",
    "keys_of",
]

OWNER = "word-count"
"""The topology that `Batches` writes for."""

T = TypeVar("T")

_TRIES = 50


@dataclass(frozen=True, slots=True)
class Add(ValueUpdater[int]):
    """Add to what is stored, or to 0."""

    amount: int

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.amount


def keys_of(keys: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return the keys of some updates; a key that is no tuple becomes a tuple of one field."""
    return [key if isinstance(key, tuple) else (key,) for key in keys]


def committed(
    state: BatchedMap[Any, Any],
    txid: int,
    updates: Mapping[Any, int],
    attempt: int = 0,
    resolved: Mapping[int, int] = NOTHING,
) -> list[Any]:
    """Add numbers to keys in a batch, without head and ledger; return the new values."""
    state.begin_commit(txid, attempt, resolved)
    new = state.multi_update(keys_of(updates), [Add(n) for n in updates.values()])
    state.commit(txid)
    return new


@dataclass
class Batches:
    """Drive batches through one state with a real ledger, by the real commit protocol.

    >>> from waterspout.state._memory import MemoryMapState
    >>> batches = Batches(MemoryMapState().make_state(None, 0, 1))
    >>> batches.lose({"x": 100})
    >>> batches.commit({"x": 1, "y": 1})
    >>> batches.values("x", "y")
    [1, 1]

    `save` is called with each new ledger before anyone acts on it. `home` and `lease` make this
    driver differ from one of another waterspout home, or from one that took the lease anew. `name`
    is the driver's for the state.
    """

    state: BatchedMap[Any, Any]
    epoch: int = 1
    combine: Combiner | None = None
    ledger: Ledger = field(default_factory=lambda: Ledger(OWNER))
    attempt: int = -1
    save: Callable[[Ledger], None] = lambda ledger: None
    owner: str = OWNER
    home: str = ""
    lease: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        self._keeper = LedgerKeeper(self.ledger, self.save)
        self._commits = CommitProtocol({self.name: self.state}, self._keeper)
        self._commits.enroll(self.writer)
        self._claim: Claim | None = None

    @property
    def writer(self) -> Writer:
        """The driver that this object plays."""
        return Writer(self.owner, self.epoch, self.home, self.lease)

    @property
    def txid(self) -> int:
        """The batch to commit next."""
        return self.ledger.current

    def claim(self) -> int:
        """Begin the next attempt at the current batch, and claim the state for it."""
        self.attempt += 1
        attempt = TransactionAttempt(self.txid, self.attempt)
        committed_by = self.ledger.committed_metadata or {}
        try:
            self._keeper.emit(attempt, {**committed_by, str(self.txid): self.attempt})
            self._claim = self._commits.begin(attempt)
            self._commits.claim(self._claim)
        finally:
            self.ledger = self._keeper.ledger
        return self.attempt

    def verify(self) -> None:
        """Look whether the state fits, as a driver does before it begins."""
        self._commits.verify()

    def recover(self) -> None:
        """Settle what an earlier driver has marked, as a driver does that begins."""
        self._commits.recover()

    def take_back(self) -> None:
        """Take the mark of the last batch back."""
        self._keeper.take_back()
        self.ledger = self._keeper.ledger
        self.attempt = self.ledger.begun[-1]

    def write(self, updates: Mapping[Any, Any], removes: Iterable[str] = ()) -> None:
        """Write the updates of the current attempt, as a commit task does."""
        keys, amounts = keys_of(updates), list(updates.values())
        self.state.begin_commit(self.txid, self.attempt, self.ledger.resolved)
        if self.combine is not None:
            self.state.multi_combine(keys, amounts, self.combine, want_new=False)
        else:
            self.state.multi_update(keys, [Add(n) for n in amounts])
            self.state.multi_remove(keys_of(removes))
        self.state.commit(self.txid)
        if self._claim is not None:
            self._claim.writing(self.name).add(self.state.written)

    def mark(self) -> None:
        """Record in the ledger that the current attempt has committed the batch."""
        try:
            self._commits.mark(TransactionAttempt(self.txid, self.attempt))
        finally:
            self.ledger = self._keeper.ledger
        self.attempt = -1

    def settle(self) -> None:
        """Tell the state that the batch was marked."""
        self._commits.settle()

    def finish(self) -> None:
        """Mark and settle what the current attempt has written."""
        self.mark()
        self.settle()

    def lose(self, updates: Mapping[Any, Any]) -> None:
        """Let an attempt claim and write, and stop before the mark."""
        self.claim()
        self.write(updates)

    def commit(self, updates: Mapping[Any, Any]) -> None:
        """Let an attempt claim, write, mark and settle."""
        self.lose(updates)
        self.finish()

    def persist(self, updates: Mapping[Any, Any]) -> None:
        """Commit although the store fails now and then: each failure leads to a new attempt.

        Like the loop, it retries errors of the outside world, never a refusal.
        """
        self.patiently(lambda: self.lose(updates))
        self.mark()
        self.patiently(self.settle)

    def patiently(self, act: Callable[[], T]) -> T:
        """Retry until the outside world lets it succeed; give up after 50 tries."""
        for _ in range(_TRIES - 1):
            with suppress(OutsideError):
                return act()
        return act()

    def restarted(self, state: BatchedMap[Any, Any]) -> Batches:
        """Return the next driver of the topology, which continues from this one's ledger."""
        return replace(self, state=state, epoch=self.epoch + 1)

    def values(self, *keys: Key | str | int) -> list[Any]:
        """Read as a reader outside of any batch does."""
        return self.state.multi_get(keys_of(keys))

    def found(self, *keys: Key | str | int) -> list[Any]:
        """Read as the next batch does; without a fence, only a batch knows what has committed."""
        self.state.begin_commit(self.txid, self.attempt + 1, self.ledger.resolved)
        values = self.values(*keys)
        self.state.begin_commit(None)
        return values


@dataclass
class RowBatches(Batches):
    """The same over a state of rows, of which each partition is written by a task of its own.

    Rows are given by partition: `batches.commit({0: [(1, "a")], 1: [(2, "b")]})`. `recipe` is bound
    to the fields; `state` is what its driver moves the head of.
    """

    recipe: StateFactory | None = None

    @classmethod
    def over(cls, recipe: StateFactory, **options: Any) -> RowBatches:
        """Return a driver of batches over a new client of the store."""
        state: Any = recipe.make_state(Config(), 0, 1)
        return cls(state, recipe=recipe, **options)

    def task(self, partition: int, rows: Sequence[Sequence[Any]]) -> RowsState:
        """Return the state of a task that has its rows, and has still to commit them."""
        assert self.recipe is not None
        state = self.recipe.make_state(Config(), partition, 8)
        assert isinstance(state, RowsState)
        state.enroll(self.writer)
        state.begin_commit(self.txid, self.attempt, self.ledger.resolved)
        table = table_of_rows(state.schema, rows, where="the rows of a test")
        (state.upsert if getattr(self.recipe, "keys", ()) else state.append)(table)
        return state

    def put(self, updates: Mapping[int, Sequence[Sequence[Any]]]) -> None:
        """Write the rows of some partitions, as the tasks of a commit do."""
        for partition, rows in updates.items():
            with closing(self.task(partition, rows)) as state:
                state.commit(self.txid)
                if self._claim is not None:
                    self._claim.writing(self.name).add(state.written)

    def publish(self) -> None:
        """Show what all partitions have put down, as the driver does then."""
        assert self._claim is not None
        state: Any = self.state
        receipts = self._claim.writing(self.name).receipts
        if receipts:
            state.publish(self._claim, receipts)

    def write(self, updates: Mapping[Any, Any], removes: Iterable[str] = ()) -> None:
        """Write the rows of the current attempt, by partition, and publish them."""
        self.put(updates)
        self.publish()

    def restarted(self, state: Any = None) -> RowBatches:
        """Return the next driver of the topology, which continues from this one's ledger."""
        assert self.recipe is not None
        again: Any = self.recipe.make_state(Config(), 0, 1) if state is None else state
        return replace(self, state=again, epoch=self.epoch + 1)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of all committed batches, as `to_dataframe` gives them."""
        state: Any = self.state
        return [tuple(row.values()) for table in state.scan() for row in table.to_pylist()]
