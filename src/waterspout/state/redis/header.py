"""The header of a Redis state: what it is, and its head. One hash in each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waterspout.errors import DamagedStoreError, ForeignStoreError, NewerFormatError
from waterspout.serde import checksum, encode_value
from waterspout.state.head import Head, Stamp

__all__ = ["Headers", "fence_of"]

_FORMAT = 1
_FIELDS = (b"format", b"state", b"head", b"fence", b"checksum")


def fence_of(stamp: Stamp) -> str:
    """Return what a write carries: the header has the same text while it may be let through."""
    writer = stamp.writer
    return encode_value(
        [
            *(writer.owner, writer.history, writer.lease, writer.epoch),
            *(stamp.txid, stamp.attempt),
        ]
    )


@dataclass(frozen=True)
class Headers:
    """Where the headers of a state are, and how they are written and read.

    `state` says in words of what kind, layout and columns the state is.
    """

    title: str
    prefix: str
    state: str

    def tag(self, slot: int) -> str:
        """The part of a key that decides which node has it."""
        return f"{{{self.prefix}:{slot}}}"

    def key(self, slot: int) -> str:
        """Where the header of a slot is."""
        return f"{self.tag(slot)}:head"

    def fields(self, head: Head | None) -> list[str]:
        """Return the names and texts of a header's fields."""
        text = "" if head is None else head.to_text()
        fence = "" if head is None or head.committed else fence_of(head.stamp)
        fields = {"format": str(_FORMAT), "state": self.state, "head": text, "fence": fence}
        fields["checksum"] = checksum("|".join(fields.values()))
        return [word for pair in fields.items() for word in pair]

    def parsed(self, found: Mapping[bytes, bytes] | Sequence[bytes], slot: int) -> Head | None:
        """Return the head in a header; None where there is no header or no head yet."""
        if not found:
            return None
        fields = (
            found if isinstance(found, Mapping) else dict(zip(found[::2], found[1::2], strict=True))
        )
        if not {b"format", b"checksum"} <= set(fields):
            raise ForeignStoreError(
                f"{self.title}: the key {self.key(slot)!r} is there, but waterspout did not make "
                "it. Use another prefix."
            )
        form, state, text, fence, check = (
            fields.get(name, b"").decode("utf-8", "replace") for name in _FIELDS
        )
        if form.isdecimal() and int(form) > _FORMAT:
            raise NewerFormatError(
                f"{self.title} was written by a newer waterspout (format {form}, this one knows "
                f"{_FORMAT}). Upgrade waterspout, or use another prefix."
            )
        if check != checksum("|".join((form, state, text, fence))):
            raise DamagedStoreError(
                f"the head of {self.title}, in {self.key(slot)!r}, does not match its checksum"
            )
        if state != self.state:
            raise ForeignStoreError(
                f"{self.title} is another state: {state}; this topology wants: {self.state}. "
                "Use another prefix."
            )
        return Head.from_text(text) if text else None
