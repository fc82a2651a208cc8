"""Which entries of a Redis stream come next, and whether some are lost. No I/O.

Entries have ids that only grow, and a stream counts all that were ever added to it. So a position
is the id of the last entry that was read, and how many had been added up to it: a stream that has
lost more entries than were read has lost some that were not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from waterspout.errors import DataLossError, SourceError

__all__ = ["NOTHING", "Range", "StreamSight", "lost_entries", "next_range", "order_of"]

NOTHING = "0-0"
"""The id before all others."""


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of a stream: those behind an id, up to another. Stored as JSON."""

    stream: str
    after: str
    until: str
    entries: int
    added: int
    """How many entries had ever been added up to the end of the range."""

    def to_json(self) -> dict[str, Any]:
        """Return it as metadata."""
        return asdict(self)

    @classmethod
    def of(cls, metadata: Mapping[str, Any], stream: str) -> Range:
        """Return the range of metadata; refuse that of another stream."""
        found = cls(**metadata)
        if found.stream != stream:
            raise SourceError(
                f"the stream {found.stream!r} was read here before, and now it is {stream!r}: "
                "keep the streams of a spout in their order, and add new ones at the end"
            )
        return found


@dataclass(frozen=True, slots=True)
class StreamSight:
    """What a server says of a stream, all at one moment."""

    length: int
    added: int
    last: str
    """The newest id that was ever given."""
    found: int
    """How many entries are behind the position, as far as was looked."""
    until: str
    """The id of the last of them."""

    @property
    def removed(self) -> int:
        """How many entries were there once and are not any more."""
        return self.added - self.length


def order_of(id: str) -> tuple[int, int]:
    """Return what orders ids.

    >>> order_of("5-10") > order_of("5-9")
    True
    """
    time, _, number = id.partition("-")
    return int(time), int(number or 0)


def next_range(
    last: Range | None, sight: StreamSight | None, begin: Range, *, stores: bool, skips: bool
) -> Range | None:
    """Return what comes behind a range; None if that is nothing.

    `sight` is None if there is no such stream, `begin` where one begins that was never read;
    `stores`: whether that is to be stored at once, by a batch without entries. With `skips`,
    entries that are lost are passed over; else DataLossError is raised.
    """
    if last is None and stores:
        return begin
    if sight is None:
        if last is None or last.until == NOTHING:
            return None  # its first entry will make it
        raise DataLossError(
            f"the Redis stream {last.stream!r} was read up to {last.until}, and now it is gone: "
            "deleted, or its server has lost its data. Put it back as it was; nothing was skipped."
        )
    before = begin if last is None else last
    if order_of(sight.last) < order_of(before.until) or sight.added < before.added:
        raise DataLossError(
            f"the Redis stream {before.stream!r} was read up to {before.until}, and its newest "
            f"entry is {sight.last}: it was made anew, or its server was restored from an older "
            "copy. Entries that were read would come again under other ids. Put it back as it was."
        )
    lost = lost_entries(last, sight)
    if lost and not skips:
        raise DataLossError(
            f"{lost} entries of the Redis stream {before.stream!r} behind {before.until} were "
            "trimmed or deleted before they were read. Keep more of them (MAXLEN, MINID); "
            "on_loss='skip' goes on with what is there."
        )
    if not sight.found:
        return None
    added = max(before.added, sight.removed) + sight.found
    return Range(before.stream, before.until, sight.until, sight.found, added)


def lost_entries(last: Range | None, sight: StreamSight) -> int:
    """Return how many entries behind a range are gone; of a stream that was never read, none."""
    return 0 if last is None else max(0, sight.removed - last.added)
