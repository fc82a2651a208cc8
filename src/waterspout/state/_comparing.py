"""Maps whose stores compare and set one key at a time, but look at no head with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from waterspout.errors import DamagedStoreError, FencedError
from waterspout.state._base import FencedMap, Key, Keys, StateKind
from waterspout.state._head import Head, Stamp, check_stamp
from waterspout.state._kinds import OpaqueValue, TransactionalValue

__all__ = ["ComparingMap"]

V = TypeVar("V")


class ComparingMap(FencedMap[V]):
    """A fenced map whose store can compare and set one key, but not look at the head with it.

    A zombie's write fails where anybody has written since it read. Where nobody has, it lands
    as the record of a lost attempt, and the resolved map in the head says so to every reader.
    """

    title: str
    """What errors call this map."""

    kind: StateKind
    """The kind of its records; asked for where the head is kept among them."""

    head_key: ClassVar[Key] = ("\0waterspout head",)
    """The key of the head, where it is kept among the records; `scan` must leave it out."""

    def read_head(self) -> Head | None:
        """Return the head, under a key of its own unless the store keeps it elsewhere."""
        return self._head_in(*self.multi_get([self.head_key]))

    def move_head(self, expected: Head | None, new: Head) -> None:
        """Compare the head and set it, as any other record."""
        (record,) = self.multi_get([self.head_key])
        found = self._head_in(record)
        if found == expected != new:
            moved = self._record_of(new)
            if self.multi_compare_and_put([self.head_key], [record], [moved]) == [True]:
                return
            found = self.read_head()
        if found != new:  # else the answer to the same move was lost
            raise FencedError(f"{self.title}: the head has moved to {found}, not to {new}")

    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Sequence[V], read: Sequence[V | None] | None = None
    ) -> None:
        """Store each pair if its key still has the record that was read.

        A key that has the new record already is done: the answer to the same write was lost,
        or another task of this attempt came first.
        """
        # Read first, then look at the head, then compare: what another attempt wrote after its
        # claim is then either seen in the head or differs from what was read.
        found = self.multi_get(keys) if read is None else read
        check_stamp(self.read_head(), stamp, state=self.title)
        stored = self.multi_compare_and_put(keys, found, values)
        lost = [(k, v) for k, v, ok in zip(keys, values, stored, strict=True) if not ok]
        if not lost:
            return
        now = self.multi_get([key for key, _ in lost])
        for (key, value), record in zip(lost, now, strict=True):
            # By its text, in which even a NaN is equal to itself.
            if repr(record) != repr(value):
                raise FencedError(
                    f"{self.title}: a write of {stamp} was refused; key {tuple(key)!r} was written "
                    f"by someone else since it was read, and holds {record!r}"
                )

    def _head_in(self, record: Any) -> Head | None:
        if record is None:
            return None
        text = getattr(record, "value", record)
        try:
            return Head.from_text(text)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedStoreError(f"{self.title}: its head cannot be read: {text!r}") from error

    def _record_of(self, head: Head) -> Any:
        text = head.to_text()
        match self.kind:
            case StateKind.OPAQUE:
                return OpaqueValue(0, 0, text)
            case StateKind.TRANSACTIONAL:
                return TransactionalValue(0, 0, text)
        return text
