"""What the three maps share: a batch's updates folded in memory, put once, under a fence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, ClassVar, Generic, TypeVar

from waterspout._serde import decode_key, encode_key, encode_keys
from waterspout.errors import ResultError, SerdeError, StateMismatchError, StoreError
from waterspout.state._base import (
    BackingMap,
    Combiner,
    FencedMap,
    Key,
    Keys,
    MapState,
    RecordColumns,
    StateKind,
    Unclear,
    ValueUpdater,
)
from waterspout.state._columns import Layout
from waterspout.state._head import NOTHING, Claim, Head
from waterspout.state._headed import HeadedState
from waterspout.state._witnesses import find_lost
from waterspout.waves.garbage import no_collection

__all__ = ["BatchedMap", "CombinerValueUpdater"]

T = TypeVar("T")
V = TypeVar("V")
R = TypeVar("R")

_AMEND_TRIES = 100
_UNCHANGEABLE = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, datetime}
)  # of what is common; any other value is copied for its updater


@dataclass(frozen=True, slots=True)
class CombinerValueUpdater(ValueUpdater[Any]):
    """Combine a batch's partial result into the stored one."""

    combiner: Combiner
    partial: Any

    def update(self, stored: Any | None) -> Any:
        return self.partial if stored is None else self.combiner.combine(stored, self.partial)


class _Constant(ValueUpdater[Any]):
    def __init__(self, value: Any) -> None:
        self._value = value

    def update(self, stored: Any | None) -> Any:
        return self._value


def _own(value: Any) -> Any:
    """Return a value that an updater may change in place, though it should return a new one.

    Else the change would show in the record that was read, and so in `prev`.
    """
    return value if type(value) in _UNCHANGEABLE else deepcopy(value)


def _with_value(keys: Keys, values: Sequence[Any]) -> list[Key]:
    return [key for key, value in zip(keys, values, strict=True) if value is not None]


class _Careful(ValueUpdater[Any]):
    def __init__(self, updater: ValueUpdater[Any], whole: Callable[[Any], Any]) -> None:
        self._updater = updater
        self._whole = whole

    def update(self, stored: Any | None) -> Any:
        return self._updater.update(_own(self._whole(stored)))


class _Entries(Generic[R]):
    """The keys of a batch by column: what each starts from, and what has become of it.

    `records` are those that were read, where they are needed to write.
    """

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}
        self.keys: list[Key] = []
        self.names: list[str] = []
        self.records: list[R | None] = []
        self.starts: list[Any] = []
        self.values: list[Any] = []
        self.as_stored = True
        """Whether each start is the value of the record that was read."""
        self.fixed: set[int] = set()
        self.changed: set[int] = set()

    @property
    def positions(self) -> dict[str, int]:
        """Where each key is. Made when it is asked for: most batches touch each key once."""
        start, end = len(self._positions), len(self.names)
        if start < end:
            self._positions.update(zip(self.names[start:], range(start, end), strict=True))
        return self._positions

    def of_each_once(self, positions: Sequence[int]) -> list[Any] | None:
        """Return the values at these positions, if each is there once and all may be changed."""
        if self.fixed or not isinstance(positions, range):
            return None
        return self.values[positions.start : positions.stop]

    def change(self, positions: Sequence[int], values: list[Any]) -> list[Any]:
        """Set values, and return them."""
        if isinstance(positions, range):
            self.values[positions.start : positions.stop] = values
        else:
            for i, value in zip(positions, values, strict=True):
                self.values[i] = value
        self.changed.update(positions)
        return values

    def chosen(self, column: list[T]) -> list[T]:
        """Return what a column has of the keys that have changed."""
        if len(self.changed) == len(column):
            return column
        return [column[i] for i in sorted(self.changed)]


@dataclass(frozen=True, slots=True)
class _Owned:
    """The keys that an updater may touch: those of its tuples, and longer ones that begin so.

    Longer ones only in an opaque map: which of them are touched may depend on what was read,
    and in a replay no other map still has that.
    """

    keys: frozenset[str]
    width: int
    may_be_longer: bool
    who: str

    def check(self, keys: Keys) -> None:
        for key in keys:
            beginning = tuple(key)[: self.width] if self.may_be_longer else tuple(key)
            if encode_key(beginning) not in self.keys:
                raise ResultError(
                    f"{self.who} and touches key {tuple(key)!r}, which none of its tuples has: "
                    "that may be another task's. Make the key a field of the stream first, or "
                    "declare no keys: then one partition has all tuples."
                )


class BatchedMap(HeadedState, MapState[V], Generic[V, R]):
    """A map over a backing map of records `R`; subclasses say what a record means.

    Within a batch, each key is read once, all its updates are folded in memory, and it is put
    once, at `commit`. Outside of one (no `begin_commit`, or txid None) an update is applied
    to the record as it stands. `types` are those of keys and values, where a topology has fixed
    them: what does not fit them is refused here, and so in the same way over every store.
    """

    kind: ClassVar[StateKind]

    def __init__(
        self,
        backing: BackingMap[Any],
        *,
        name: str = "the state",
        partition: int = 0,
        types: Layout | None = None,
    ) -> None:
        super().__init__(name, partition)
        self._backing = backing
        self._pause: Callable[[str], None] | None = None
        self._types = types
        self._width = 1 if types is None else len(types.values)
        self._entries: _Entries[R] = _Entries()
        self._combined = False
        self._owned: _Owned | None = None

    @property
    def _heads(self) -> FencedMap[Any] | None:
        return self._backing.fence

    @abstractmethod
    def _open(self, record: R | None, batch: Claim, key: Key) -> tuple[Any, bool]:
        """Return the value that the batch starts from, and whether it may change it."""

    @abstractmethod
    def _close(self, start: Any, value: Any, batch: Claim) -> R:
        """Return the record to store for a value that was `start` before the batch."""

    @abstractmethod
    def _from_columns(self, found: RecordColumns) -> Iterable[R]:
        """Return the records that stand in columns."""

    @abstractmethod
    def _amend(self, record: R | None, updater: ValueUpdater[V]) -> R:
        """Return the record after an update outside of any batch."""

    @abstractmethod
    def _read(self, record: R | None, head: Head | None) -> Any:
        """Return what a reader outside of any batch sees."""

    def begin_commit(
        self, txid: int | None, attempt: int = 0, resolved: Mapping[int, int] = NOTHING
    ) -> None:
        """Start a batch: forget what an earlier one left, read everything anew."""
        super().begin_commit(txid, attempt, resolved)
        self._entries = _Entries()
        self._combined = False
        self._owned = None

    def confine(self, keys: Keys, width: int, who: str) -> None:
        """Refuse, in this batch, keys that are not among these or (if opaque) begin with one.

        `who` begins the error.
        """
        longer = self.kind is StateKind.OPAQUE
        self._owned = _Owned(frozenset(map(encode_key, keys)), width, longer, who)

    @no_collection()
    def commit(self, txid: int | None) -> None:
        entries, self._entries = self._entries, _Entries()
        batch, self._batch = self._batch, None
        if batch is None or not entries.changed:
            return
        keys, values = entries.chosen(entries.keys), entries.chosen(entries.values)
        starts = entries.chosen(entries.starts)
        self._refuse_misfits(keys, values)
        self._pass_point("write.before", batch.attempt)
        self._put(batch, keys, values, starts, entries)
        full = keys if None not in values else _with_value(keys, values)
        self.written.note(full, batch.attempt.txid, removes=len(full) < len(keys))
        self._pass_point("write.after", batch.attempt)

    def _put(
        self,
        batch: Claim,
        keys: Keys,
        values: Sequence[Any],
        starts: Sequence[Any],
        entries: _Entries[R],
    ) -> None:
        stamp, fence = self._stamp(batch), self._backing.fence
        if fence is not None and stamp is not None and fence.by_column:
            names = entries.chosen(entries.names)
            fence.fenced_put_columns(
                stamp, keys, names, values, starts, as_stored=entries.as_stored
            )
            return
        records = [self._close(s, v, batch) for s, v in zip(starts, values, strict=True)]
        if fence is not None and stamp is not None:
            fence.fenced_put(stamp, keys, records, entries.chosen(entries.records))
        else:
            self._backing.multi_put(keys, records)

    @no_collection()
    def multi_get(self, keys: Keys) -> list[V | None]:
        """Return the values as this batch finds them; outside of one, the committed ones."""
        if self._batch is None:
            self._check_keys(keys)
            head, records = self._judged(lambda: self._backing.uncached.multi_get(keys))
            self._await_commit(head, records)
            return [self._whole(self._read(record, head)) for record in records]
        values = self._entries.values
        return [values[i] for i in self._load(keys)]

    @no_collection()
    def multi_update(self, keys: Keys, updaters: Sequence[ValueUpdater[V]]) -> list[V | None]:
        if self._batch is None:
            return self._update_at_once(keys, updaters)
        positions, entries = self._load(keys), self._entries
        old = entries.of_each_once(positions)
        if old is not None:
            return entries.change(
                positions, [u.update(value) for u, value in zip(updaters, old, strict=True)]
            )
        found: list[V | None] = []
        for i, updater in zip(positions, updaters, strict=True):
            if i not in entries.fixed:
                entries.change([i], [updater.update(entries.values[i])])
            found.append(entries.values[i])
        return found

    def multi_put(self, keys: Keys, values: Sequence[V | None]) -> None:
        self.multi_update(keys, [_Constant(value) for value in values])

    def multi_remove(self, keys: Keys) -> None:
        """Leave these keys without a value.

        A record without one stays until no replay can want the value back; see `move_head`.
        """
        self.multi_put(keys, [None] * len(keys))

    @no_collection()
    def multi_combine(
        self, keys: Keys, values: Sequence[Any], combiner: Combiner, *, want_new: bool
    ) -> list[V | None] | None:
        """Combine one partial result into each of these distinct keys.

        Goes to the store in one set-based statement where the store can do that, and is the
        same as `multi_update` otherwise. Returns the new values if they are wanted. Written at
        once, so it must be the last thing that a batch does to the map.
        """
        batch, fence = self._batch, self._backing.fence
        if (
            batch is None
            or fence is None
            or (stamp := self._stamp(batch)) is None
            or self._entries.keys
            or not fence.can_combine(combiner)
            or None in values  # what None means, only `combine` knows
        ):
            new = self._combine_here(keys, values, combiner)
            return new if want_new else None
        self._refuse_after_combine()
        if self._owned is not None:
            self._owned.check(keys)
        self._check_keys(keys)
        self._refuse_misfits(keys, values)
        self._combined = True
        self._pass_point("write.before", batch.attempt)
        fence.fenced_combine(stamp, keys, values, combiner)
        self.written.note(keys, batch.attempt.txid)
        self._pass_point("write.after", batch.attempt)
        if not want_new:
            return None
        return [getattr(record, "value", record) for record in self._backing.multi_get(keys)]

    def _combine_here(
        self, keys: Keys, values: Sequence[Any], combiner: Combiner
    ) -> list[V | None]:
        """Do by column what `multi_update` does with an updater for each value."""
        if self._batch is None:
            return self.multi_update(keys, [CombinerValueUpdater(combiner, v) for v in values])
        positions, entries, combine = self._load(keys), self._entries, combiner.combine
        old = entries.of_each_once(positions)
        if old is None:
            return self.multi_update(keys, [CombinerValueUpdater(combiner, v) for v in values])
        pairs = zip(old, values, strict=True)
        return entries.change(
            positions, [new if stored is None else combine(stored, new) for stored, new in pairs]
        )

    def _load(self, keys: Keys) -> Sequence[int]:
        """Return where these keys are among the entries of the batch; read those that are new."""
        self._refuse_after_combine()
        if self._owned is not None:
            self._owned.check(keys)
        names, entries = encode_keys(keys), self._entries
        if names and not entries.names and len(set(names)) == len(names):
            self._read_in(list(keys), names)
            return range(len(names))
        known = entries.positions
        missing = dict(zip(names, keys, strict=True))
        if known:
            missing = {n: k for n, k in missing.items() if n not in known}
        if missing:
            start = len(entries.keys)
            self._read_in(list(missing.values()), list(missing))
            if len(missing) == len(names):
                return range(start, start + len(missing))
        known = entries.positions
        return [known[name] for name in names]

    def _read_in(self, keys: list[Key], names: list[str]) -> None:
        """Read these keys, and open their records for the batch."""
        self._check_keys(keys)
        batch, entries, fence = self._batch, self._entries, self._backing.fence
        assert batch is not None
        opened: list[tuple[Any, bool]] | None = None
        if fence is not None and fence.by_column and self._writer is not None:
            unclear = Unclear(batch.attempt.txid, batch.resolved.keys())
            columns = fence.get_columns(keys, names, unclear)
            starts = list(columns.values)
            if columns.txids and unclear.has(columns.txids):
                records = self._from_columns(columns)
                opened = [self._open(r, batch, k) for r, k in zip(records, keys, strict=True)]
        else:
            read = self._backing.multi_get(keys)
            entries.records += read
            opened = [self._open(r, batch, k) for r, k in zip(read, keys, strict=True)]
        if opened is not None:
            entries.as_stored = False
            starts = [start for start, _ in opened]
            first = len(entries.keys)
            entries.fixed.update(first + i for i, (_, open_) in enumerate(opened) if not open_)
        if self._width > 1:
            starts = [self._whole(value) for value in starts]
        entries.keys += keys
        entries.names += names
        entries.starts += starts
        plain = _UNCHANGEABLE.issuperset(map(type, starts))
        entries.values += starts if plain else [_own(value) for value in starts]

    def _whole(self, value: Any) -> Any:
        """Return a value with all columns; one that was written when there were fewer gets nulls.

        Here and not in the store: a record is compared with what the store holds as it was read.
        """
        if self._width == 1 or value is None:
            return value
        parts = tuple(value) if isinstance(value, tuple | list) else (value,)
        missing = self._width - len(parts)
        return value if not missing else (*parts, *[None] * missing)

    def _check_keys(self, keys: Keys) -> None:
        if self._types is not None:
            self._types.check_keys(keys)

    def _refuse_misfits(self, keys: Keys, values: Sequence[Any]) -> None:
        """Refuse values that are not of the state's types, naming the first key that has one."""
        if self._types is None:
            return
        try:
            # All at once: only where one is off are they looked at one by one.
            self._types.check_values([value for value in values if value is not None])
        except SerdeError:
            for key, value in zip(keys, values, strict=True):
                if value is not None:
                    self._refuse_misfit(key, value)
            raise

    def _refuse_misfit(self, key: Key, value: Any) -> None:
        assert self._types is not None
        try:
            self._types.check_values([value])
        except SerdeError as error:
            raise type(error)(f"{self._name}, key {tuple(key)!r}: {error}") from None

    def _refuse_after_combine(self) -> None:
        # The records bear this attempt already: it would take them for a lost one's, or skip.
        assert not self._combined, f"{self._name}: a batch combines once, after all else"

    def _update_at_once(self, keys: Keys, updaters: Sequence[ValueUpdater[V]]) -> list[V | None]:
        self._check_keys(keys)
        names = [encode_key(key) for key in keys]
        todo = dict(zip(names, keys, strict=True))
        values: list[V | None] = [None] * len(names)
        for _ in range(_AMEND_TRIES):
            distinct, fence = list(todo.values()), self._backing.fence
            head, read = self._judged(lambda: self._backing.uncached.multi_get(distinct))  # noqa: B023
            records: dict[str, Any] = dict(zip(todo, read, strict=True))
            for i, (name, updater) in enumerate(zip(names, updaters, strict=True)):
                if name in todo:
                    careful = _Careful(updater, self._whole)
                    records[name] = self._amend(records[name], careful)
                    values[i] = self._whole(self._read(records[name], head))
            self._refuse_misfits(keys, values)
            if fence is None:
                self._backing.multi_put(distinct, list(records.values()))
                return values
            # A batch may have written since: without a comparison its record would be lost.
            stored = fence.multi_compare_and_put(distinct, read, list(records.values()))
            todo = {n: k for (n, k), ok in zip(todo.items(), stored, strict=True) if not ok}
            if not todo:
                return values
        raise StoreError(f"{self._name}: these keys change faster than they can be updated")

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, Any]]]:
        """Yield the committed values of all keys in chunks, or of one of `shards` equal shards.

        A key without a value (one that only a lost attempt has written) is left out.
        """
        below = self._backing.uncached
        # A state that nobody has claimed yet is small: it can be listed before its head is judged.
        head, chunks = self._judged(
            lambda: list(below.scan(shard, shards)) if self.read_head() is None else None
        )
        for chunk in below.scan(shard, shards) if chunks is None else chunks:
            self._await_commit(head, [record for _, record in chunk])
            values = [(key, self._whole(self._read(record, head))) for key, record in chunk]
            yield [(key, value) for key, value in values if value is not None]

    def wait_for_commits(self, pause: Callable[[str], None]) -> None:
        """Let readers outside of a batch see committed values only, if they have to wait for it.

        `pause` is told what is waited for; it returns after a while, or raises.
        """
        self._pause = pause

    def _await_commit(self, head: Head | None, records: Sequence[R | None]) -> None:
        """Wait until what was read has committed, where no older value could be shown instead."""

    def records(self, keys: Keys) -> list[R | None]:
        """Return what the store holds under these keys: value, batch, attempt, value before."""
        return self._backing.uncached.multi_get(keys)

    def _judged(self, read: Callable[[], T]) -> tuple[Head | None, T]:
        """Return what was read, and the head by which it is to be judged.

        The head is read first: what the records hold of a later batch then counts as not
        committed. If there is none, nobody has claimed yet, and every record counts; unless
        somebody has claimed meanwhile.
        """
        while True:
            head = self.read_head()
            found = read()
            if head is not None or self.read_head() is None:
                return head, found

    def close(self) -> None:
        self._backing.close()

    @property
    def undoes_lost_attempts(self) -> bool:
        """Whether no record of a lost attempt need be told apart once the next has claimed."""
        if self.kind is not StateKind.OPAQUE:
            return True  # its records do not depend on which attempt wrote them
        return super().undoes_lost_attempts

    def refuse_lost_records(self) -> None:
        """Refuse a state that has not all the records which its head says it must have."""
        head = self.read_head()
        if head is None or not head.witnesses or self._backing.forgets:
            return
        if self.kind is StateKind.NON_TRANSACTIONAL and not head.committed:
            return  # the attempt at the head may have removed them, and left no record that says so
        keys = [decode_key(key) for _, key in head.witnesses]
        lost = find_lost(head.witnesses, self._backing.uncached.multi_get(keys))
        if lost is not None:
            raise StateMismatchError(
                f"{self._name} holds {lost}. Its records were emptied, evicted, deleted, or "
                "restored from another copy than its head; counting would go on from what is left. "
                "Restore records and head of one moment (and the waterspout home with them), or "
                "start over: empty both, and remove the topology's folder under that home."
            )
