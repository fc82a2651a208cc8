"""The headers of a Redis state: one hash in each slot, with the fence that scripts compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waterspout._serde import encode_value
from waterspout.state._head import Head, Stamp
from waterspout.state._header import StoreHeader

__all__ = ["SUMMED", "Headers", "fence_of"]

SUMMED = ("format", "state", "head", "fence")
_FIELDS = (*SUMMED, "checksum")


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

    def parsed(self, found: Mapping[bytes, bytes] | Sequence[bytes], slot: int) -> Head | None:
        """Return the head in a header; None where there is no header or no head yet."""
        if not found:
            return None
        given = (
            found if isinstance(found, Mapping) else dict(zip(found[::2], found[1::2], strict=True))
        )
        if not {b"format", b"checksum"} <= set(given):
            raise self.header.foreign(f"the key {self.key(slot)!r} of {self.header.title}")
        fields = {n: given.get(n.encode(), b"").decode("utf-8", "replace") for n in _FIELDS}
        fields["kind"], _, fields["layout"] = fields["state"].partition(", ")
        return self.header.opened(fields, where=f", in {self.key(slot)!r},")
