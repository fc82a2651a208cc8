"""States of rows: a table that batches append to, or upsert by key, not values under keys.

A store author writes a `RowsStore` and a recipe (`RowsStoreState`); what a batch, an attempt and a
fence are is the same as for maps. There are two ways in which rows come to be seen:

- the store writes them at once, in the task, each partition in a transaction that checks the head.
  When a later attempt claims the batch, the rows of the lost one go in the same transaction;
- or tasks only put them down (files), and return a receipt; when all partitions are there, the
  driver publishes all receipts in one atomic step. What was never published nobody sees.

In both a reader who knows nothing of waterspout sees each row once. A store that cannot take a
lost attempt back (a log, a merge into a table) has `undoes_lost_attempts = False`, is
transactional, and its recipe says `pins_batches`: every attempt at a batch that has begun to commit
is given the same rows, and the store skips what it has of the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import pyarrow as pa

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._serde import decode_key
from waterspout.errors import StateMismatchError, StateUseError, StoreError, TopologyError
from waterspout.state._base import Risk, State, StateFactory, StateKind
from waterspout.state._head import NOTHING, Claim, Head, Stamp
from waterspout.state._headed import HeadedState

__all__ = [
    "PRESENT",
    "RowsState",
    "RowsStore",
    "RowsStoreState",
    "key_and_value",
    "refuse_kind",
    "rows_layout",
]

PRESENT = "_present"
"""A column that is true in each row which a map has been given by `UpsertRows`.

All other columns of a row may be null, and a value of nulls alone is none to a map.
"""


_UNBOUND = Schema()


class RowsStore(ABC):
    """A table of rows with a head. What a store author writes; used by one thread at a time."""

    undoes_lost_attempts: bool = True
    """Whether `move_head` takes back the rows of an attempt that was lost."""

    @abstractmethod
    def read_head(self) -> Head | None:
        """Return the head, or None where there is none."""

    @abstractmethod
    def move_head(self, expected: Head | None, new: Head) -> None:
        """Replace the head if it still is `expected`, else raise FencedError.

        If `undoes_lost_attempts`: when `new` is a claim (`takes_over`), no row of its batch, or of
        a later one, is left in the same transaction.
        """

    @abstractmethod
    def write_rows(self, stamp: Stamp, partition: int, rows: pa.Table) -> str | None:
        """Write the rows of one partition in one attempt; FencedError unless the head has `stamp`.

        Called in a task, or in the driver, at most once by each; a task that is tried again calls
        it again, and its rows must then be there once. A store that shows nothing before `publish`
        returns a receipt: JSON text of what is to be published. It may leave the check of the head
        to `publish`, if what it leaves behind otherwise is never seen.
        """

    def publish(self, stamp: Stamp, receipts: Sequence[str]) -> None:
        """Show what all these receipts name, in one atomic step; FencedError as `write_rows`.

        Called in the driver, after all partitions and before the batch is marked; again with the
        same stamp and receipts where the answer was lost, and must then change nothing.
        """
        raise AssertionError(f"{type(self).__name__} gives receipts and does not publish them")

    def has_rows_of(self, txid: int, partition: int) -> bool:
        """Whether rows of a partition of a committed batch are there; True where nobody can tell.

        Asked when the state is opened, of a batch that has written some: so an emptied table is
        found out.
        """
        return True

    def read_rows(self, last: int, shard: int = 0, shards: int = 1) -> Iterator[pa.Table]:
        """Yield the rows of the batches up to `last`, or only one of `shards` equal shards."""
        raise StoreError(f"{type(self).__name__} cannot list what it holds")

    def check(self) -> None:
        """Raise if what is in the store cannot be this state's; writes nothing."""
        self.read_head()

    def risk(self) -> Risk | None:
        """Ask the store whether it may lose or replace what it has acknowledged; None: it does not.

        Called before a run.
        """
        return None

    def close(self) -> None:  # noqa: B027  (optional hook)
        """Give up connections; the next call opens them again."""


class RowsState(HeadedState):
    """Rows over a `RowsStore`: those of a batch are kept here, and written once, at `commit`."""

    def __init__(
        self,
        store: RowsStore,
        schema: Schema,
        *,
        kind: StateKind = StateKind.OPAQUE,
        keys: Sequence[str] = (),
        name: str = "the state",
        partition: int = 0,
    ) -> None:
        super().__init__(name, partition)
        self.kind = kind
        self.schema = schema
        self._store = store
        self._keys = tuple(keys)
        self._pending: list[pa.Table] = []

    @property
    def _heads(self) -> RowsStore:
        return self._store

    @property
    def undoes_lost_attempts(self) -> bool:
        # Rows that are the same in each attempt need not be told apart.
        return self.kind is not StateKind.OPAQUE or self._store.undoes_lost_attempts

    def begin_commit(
        self, txid: int | None, attempt: int = 0, resolved: Mapping[int, int] = NOTHING
    ) -> None:
        super().begin_commit(txid, attempt, resolved)
        self._pending = []

    def append(self, rows: pa.Table) -> None:
        """Add rows at the end."""
        if self._keys:
            raise StateUseError(f"{self._name} is upserted by {', '.join(self._keys)}")
        self._add(rows)

    def upsert(self, rows: pa.Table) -> None:
        """Put each row in place of the one with its key, if there is one; one row for each key."""
        if not self._keys:
            raise StateUseError(f"{self._name} has no keys; its rows are appended")
        self._add(rows)

    def _add(self, rows: pa.Table) -> None:
        if self._batch is None:
            raise StateUseError(
                f"{self._name} takes rows in a batch only: outside of one nothing says whether "
                "they are there already"
            )
        self._pending.append(rows.select(list(self.schema.names)))

    def commit(self, txid: int | None) -> None:
        batch, pending = self._batch, self._pending
        self._batch, self._pending = None, []
        rows = pa.concat_tables(pending) if pending else None
        if batch is None or rows is None or not rows.num_rows:
            return
        attempt = batch.attempt
        stamp = self._require_stamp(attempt.txid, attempt.attempt_id)
        self._pass_point("write.before", attempt)
        receipt = self._store.write_rows(stamp, self._partition, rows)
        self.written.note([(self._partition,)], attempt.txid)
        if receipt is not None:
            self.written.receipts.append(receipt)
        self._pass_point("write.after", attempt)

    def publish(self, claim: Claim, receipts: Sequence[str]) -> None:
        """Show what all partitions of a batch have put down. Called by the driver, before the mark.

        Their order does not matter, and is always the same.
        """
        attempt = claim.attempt
        stamp = self._require_stamp(attempt.txid, attempt.attempt_id)
        self._pass_point("publish.before", attempt)
        self._store.publish(stamp, sorted(receipts))
        self._pass_point("publish.after", attempt)

    def refuse_lost_records(self) -> None:
        head = self.read_head()
        if head is None or not head.witnesses:
            return
        # The newest alone: who removes rows that have grown old removes the others first.
        txid, key = head.witnesses[0]
        partition: Any = decode_key(key)[0]
        if not self._store.has_rows_of(txid, partition):
            raise StateMismatchError(
                f"{self._name} holds no row of batch {txid}, which has written some. Its rows were "
                "emptied, or restored from another copy than its head. Restore rows and head of "
                "one moment (and the waterspout home with them), or start over: empty both, and "
                "remove the topology's folder under that home."
            )

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[pa.Table]:
        """Yield the rows of all committed batches, or one of `shards` equal shards of them."""
        head = self.read_head()
        if head is not None:
            last = head.stamp.txid - (not head.committed)
            yield from self._store.read_rows(last, shard, shards)

    def close(self) -> None:
        self._store.close()


@dataclass(frozen=True, kw_only=True)
class RowsStoreState(StateFactory):
    """Recipe of a state of rows. A topology binds it to the fields of its stream."""

    rows: Schema = _UNBOUND
    keys: tuple[str, ...] = ()
    order_by: str | None = None

    kind: StateKind = StateKind.OPAQUE
    backend: ClassVar[str] = "rows"
    fenced = True
    keeps_rows = True

    @abstractmethod
    def store(self) -> RowsStore:
        """Return the store behind the state."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What errors call the state: where it is, without secrets."""

    def bind_rows(
        self, rows: Schema, keys: tuple[str, ...] = (), order_by: str | None = None
    ) -> Self:
        return replace(self, rows=rows, keys=keys, order_by=order_by)

    def bind(self, keys: Schema, values: Schema) -> StateFactory:
        raise TopologyError(
            f"{type(self).__name__} keeps rows, not values under keys: use it with "
            "partition_persist(state, AppendRows()), or UpsertRows where it can"
        )

    def make_state(self, conf: Config, partition_index: int, num_partitions: int) -> State:
        return RowsState(
            self.store(),
            self.rows,
            kind=self.kind,
            keys=self.keys,
            name=self.title,
            partition=partition_index,
        )

    def within(self) -> Mapping[str, Any]:
        """Return what names the state within its store (a table, a topic), no secrets."""
        return {}

    def identity(self) -> Mapping[str, Any]:
        """Name backend, kind, table, and columns; the server may be moved."""
        return {
            "backend": self.backend,
            "kind": self.kind.value,
            **self.within(),
            "layout": rows_layout(self.rows, self.keys),
            **({"pinned": True} if self.pins_batches else {}),
        }

    def check(self) -> None:
        with closing(self.store()) as store:
            store.check()

    def ask_risk(self) -> Risk | None:
        if self.risk is not None:
            return self.risk
        with closing(self.store()) as store:
            return store.risk()


def rows_layout(rows: Schema, keys: Sequence[str] = ()) -> str:
    """Return the columns of a state of rows as text, to be compared with the one stored."""
    if not keys:
        return f"(rows) -> {rows}"
    chosen = Schema(tuple((name, rows.type_of(name)) for name in keys))
    return f"{chosen} -> {rows.without(keys)}"


def key_and_value(rows: Schema, keys: Sequence[str], store: str) -> tuple[Schema, Schema]:
    """Return the columns of rows as those of a map: the key, and what is kept under it."""
    if PRESENT in (name.lower() for name in rows.names):
        raise TopologyError(
            f"field {PRESENT!r} cannot be a column of {store}: UpsertRows keeps there that a key "
            "has a row. Call the field something else."
        )
    key = Schema(tuple((name, rows.type_of(name)) for name in keys))
    return key, Schema(((PRESENT, "boolean"), *rows.without(keys).fields))


def refuse_kind(kind: StateKind, store: str) -> None:
    """Refuse to append to a state that is not opaque: rows have their batch beside them anyway."""
    if kind is not StateKind.OPAQUE:
        raise TopologyError(
            f"{store} appends rows of which it can take a lost attempt back, whatever the spout: "
            f"make it .opaque(...), not {kind.value}"
        )
