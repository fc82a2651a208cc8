"""The headers of a Redis state: one hash in each slot, with the fence that scripts compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waterspout._serde import encode_value
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._header import StoreHeader

__all__ = ["AMENDED", "BEFORE", "SUMMED", "Headers", "SlotHeader", "fence_of"]

SUMMED = ("format", "state", "head", "fence")
_FIELDS = (*SUMMED, "checksum")
BEFORE = "before"
"""What the master's header has beside these: the head's text before the batch at the head."""

AMENDED = "amended"
"""Counts, in each header that has it, the writes outside of any batch (`redis/_watched.py`)."""


def fence_of(stamp: Stamp) -> str:
    """Return what a write carries: the header has the same text while it may be let through."""
    writer = stamp.writer
    return encode_value(
        [
            *(writer.owner, writer.history, writer.lease, writer.epoch),
            *(stamp.txid, stamp.attempt),
        ]
    )


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """What was found in a slot: its head, if any, as text too, and the master's `before`."""

    exists: bool
    head: Head | None
    text: str = ""
    before: str | None = None
    older: str | None = None
    """Kind and layout, if columns were added since it was written."""

    def may_join(self, master: SlotHeader, new: Head) -> bool:
        """Whether this slot is where the head may move from the master's to `new`.

        A claim moves the master first, and settling moves it last. So while the master says
        *committed*, every slot does, at the same attempt. While it says *begun*, a slot may have
        missed the claim, and is where the state was before the batch. If the batch is done again,
        it does not matter what an earlier attempt has left.
        """
        if master.head is None:
            return self.head is None
        at = master.head.stamp
        if self.head is not None and not self._is_of(at.writer, new.stamp.writer):
            return False
        if new.stamp.txid == at.txid and not new.committed:
            if self.head is not None and self.head.stamp.txid == at.txid:
                return self.head.stamp.attempt <= at.attempt
            return self._is_before(master)
        return self.head is not None and self._is_at(master.head)

    def _is_of(self, *writers: Writer) -> bool:
        assert self.head is not None
        mine = self.head.stamp.writer
        return (mine.owner, mine.history) in [(its.owner, its.history) for its in writers]

    def _is_before(self, master: SlotHeader) -> bool:
        assert master.head is not None
        txid = master.head.stamp.txid
        if master.before is None:  # the header is of an older version, which did not note it
            return txid == 1 if self.head is None else self.head.stamp.txid == txid - 1
        if not master.before or self.head is None:
            return not master.before and self.head is None
        return self._is_at(Head.from_text(master.before))

    def _is_at(self, other: Head) -> bool:
        assert self.head is not None
        mine, its = self.head.stamp, other.stamp
        same = (mine.txid, mine.attempt) == (its.txid, its.attempt)
        return same and (self.head.committed or not other.committed)

    def __str__(self) -> str:
        if self.head is None:
            return "has no head"
        return f"is at {self.head.stamp}{', committed' * self.head.committed}"


@dataclass(frozen=True)
class Headers:
    """Where the headers of a state are, and how they are written and read."""

    header: StoreHeader
    prefix: str

    @property
    def state(self) -> str:
        """Kind and layout, as scripts compare them."""
        return self.header.state

    def tag(self, slot: int) -> str:
        """The part of a key that decides which node has it."""
        return f"{{{self.prefix}:{slot}}}"

    def key(self, slot: int) -> str:
        """Where the header of a slot is."""
        return f"{self.tag(slot)}:head"

    def fields(self, head: Head | None) -> list[str]:
        """Return the names and texts of a header's fields."""
        fence = "" if head is None or head.committed else fence_of(head.stamp)
        fields = {"state": self.state, **self.header.fields(head, fence=fence)}
        return [word for name in _FIELDS for word in (name, str(fields[name]))]

    def older(self, found: Mapping[bytes, bytes] | Sequence[bytes]) -> str | None:
        """Return kind and layout of a header from before columns were added; None: it has all."""
        state = _by_name(found).get(b"state", b"").decode("utf-8", "replace")
        kind, _, layout = state.partition(", ")
        return state if kind == self.header.kind and self.header.added_to(layout) else None

    def slot(self, found: Mapping[bytes, bytes] | Sequence[bytes], slot: int) -> SlotHeader:
        """Return what is in the header of a slot."""
        given = _by_name(found)
        text = given.get(b"head", b"").decode("utf-8", "replace")
        before = given.get(BEFORE.encode())
        return SlotHeader(
            bool(given),
            self.parsed(given, slot),
            text,
            None if before is None else before.decode("utf-8", "replace"),
            self.older(given),
        )

    def parsed(self, found: Mapping[bytes, bytes] | Sequence[bytes], slot: int) -> Head | None:
        """Return the head in a header; None where there is no header or no head yet."""
        if not found:
            return None
        given = _by_name(found)
        if not {b"format", b"checksum"} <= set(given):
            raise self.header.foreign(f"the key {self.key(slot)!r} of {self.header.title}")
        fields = {n: given.get(n.encode(), b"").decode("utf-8", "replace") for n in _FIELDS}
        fields["kind"], _, fields["layout"] = fields["state"].partition(", ")
        return self.header.opened(fields, where=f", in {self.key(slot)!r},")


def _by_name(found: Mapping[bytes, bytes] | Sequence[bytes]) -> Mapping[bytes, bytes]:
    if isinstance(found, Mapping):
        return found
    return dict(zip(found[::2], found[1::2], strict=True))
