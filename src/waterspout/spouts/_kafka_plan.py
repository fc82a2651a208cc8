"""Which offsets of a Kafka go into a batch, and what is lost. Pure functions: no I/O, no clock.

Metadata of a batch: for each topic its id and, by the number of the partition, the range that the
batch has of it, `[start, end]`, the end exclusive. A partition that has nothing in this batch keeps
its position: both are the same. One that was never reached has null. Beside that, where each was
begun with, and how many offsets were lost up to here where a user has chosen to go on without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ClusterLook",
    "Extent",
    "Loss",
    "OffsetsStanding",
    "Place",
    "TopicLook",
    "ends_of",
    "firsts_of",
    "ids_of",
    "metadata_of",
    "offsets_in",
    "ranges_of",
    "shared_out",
    "stand",
    "starts_of",
    "with_ranges",
]

Place = tuple[str, int]
"""A topic and the number of a partition of it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """From which offset on a partition has messages, and the offset after the last."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicLook:
    """A topic as it is now; its id is that of no other topic, also of none with the same name."""

    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """What could be learned of the topics of a spout at one moment."""

    topics: Mapping[str, TopicLook] = field(default_factory=dict)
    extents: Mapping[Place, Extent] = field(default_factory=dict)
    away: Mapping[Place, str] = field(default_factory=dict)
    """Why, for each partition that cannot be reached."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that were to be read and are not there."""

    topic: str
    partition: int | None
    why: str
    offsets: int = 0
    certain: bool = True
    """Whether one look is enough; what a broker that has just started tells may be old."""


@dataclass(frozen=True, slots=True)
class OffsetsStanding:
    """Where each partition goes on, what is there, and what is not."""

    positions: Mapping[Place, int]
    extents: Mapping[Place, Extent]
    losses: tuple[Loss, ...] = ()

    @property
    def waiting(self) -> dict[Place, int]:
        """How many offsets wait in each partition that has some."""
        found = {p: extent.end - self.positions[p] for p, extent in self.extents.items()}
        return {place: count for place, count in found.items() if count > 0}


def ranges_of(metadata: Mapping[str, Any] | None) -> dict[Place, tuple[int, int]]:
    """Return the range of each partition, those that have nothing in the batch too."""
    topics = {} if metadata is None else metadata["topics"]
    return {
        (topic, number): (int(entry[0]), int(entry[1]))
        for topic, kept in topics.items()
        for number, entry in enumerate(kept["ranges"])
        if entry is not None
    }


def ends_of(metadata: Mapping[str, Any] | None) -> dict[Place, int]:
    """Return where the batch after this one goes on."""
    return {place: end for place, (_, end) in ranges_of(metadata).items()}


def starts_of(metadata: Mapping[str, Any] | None) -> dict[Place, int]:
    """Return where this batch has begun."""
    return {place: start for place, (start, _) in ranges_of(metadata).items()}


def ids_of(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the id of each topic that was read."""
    topics = {} if metadata is None else metadata["topics"]
    return {topic: kept["id"] for topic, kept in topics.items()}


def offsets_in(metadata: Mapping[str, Any] | None) -> int:
    """Return how many offsets a batch has."""
    return sum(end - start for start, end in ranges_of(metadata).values())


def stand(
    positions: Mapping[Place, int],
    ids: Mapping[str, str],
    look: ClusterLook,
    *,
    wanted: Collection[str],
) -> OffsetsStanding:
    """Compare where the last batch ended with what is there now.

    A partition that was not read before begins with its first message. Messages that are gone are
    losses; where they were is passed over. `wanted` are the topics to read; a topic that was read
    and is not among them keeps its positions.
    """
    losses: list[Loss] = []
    at: dict[Place, int] = {}
    for topic in sorted({*wanted, *(topic for topic, _ in positions)}):
        here = look.topics.get(topic)
        old = {place: offset for place, offset in positions.items() if place[0] == topic}
        if here is None:
            at |= old
            if old and topic in wanted:
                losses.append(Loss(topic, None, "it was read, and is gone", certain=False))
            continue
        if old and _is_another(ids.get(topic), here.id):
            why = "it was deleted and made anew: it has another id now"
            # How many messages it had that nobody has read, nobody knows.
            losses.append(Loss(topic, None, why, 1, certain=False))
            old = {}
        for number in range(here.partitions):
            place = (topic, number)
            offset, loss = _position(place, old.get(place), look.extents.get(place))
            if offset is not None:
                at[place] = offset
            if loss is not None:
                losses.append(loss)
    there = {p: look.extents[p] for p in at if p in look.extents and p[0] in wanted}
    return OffsetsStanding(at, there, tuple(losses))


def _is_another(known: str | None, now: str) -> bool:
    return bool(known) and bool(now) and known != now


def _position(
    place: Place, offset: int | None, extent: Extent | None
) -> tuple[int | None, Loss | None]:
    """Return where a partition goes on; nowhere yet, if it is new and cannot be reached."""
    if extent is None:
        return offset, None
    if offset is None:
        return extent.begin, None
    if offset < extent.begin:
        lost = extent.begin - offset
        why = f"offsets {offset} to {extent.begin - 1} are no longer kept"
        return extent.begin, Loss(*place, why, lost)
    if offset > extent.end:
        why = f"it was read up to offset {offset}, and now it ends at {extent.end}"
        return extent.end, Loss(*place, why, certain=False)
    return offset, None


def shared_out(waiting: Mapping[Place, int], limit: int, turn: int = 0) -> dict[Place, int]:
    """Return how many offsets of each partition go into a batch, `limit` in all at most.

    Each gets the same, as far as it has that many; what one leaves the others share. Where there is
    too little for all, another one is first at each turn.

    >>> shared_out({("a", 0): 100, ("a", 1): 3, ("b", 0): 100}, 23)
    {('a', 1): 3, ('a', 0): 10, ('b', 0): 10}
    """
    order = sorted(waiting)
    start = turn % len(order) if order else 0
    order = sorted(order[start:] + order[:start], key=lambda place: waiting[place])
    shares: dict[Place, int] = {}
    left = limit
    for done, place in enumerate(order):
        share = min(waiting[place], -(-left // (len(order) - done)))
        if share > 0:
            shares[place] = share
            left -= share
    return shares


def metadata_of(
    positions: Mapping[Place, int],
    shares: Mapping[Place, int],
    *,
    ids: Mapping[str, str],
    firsts: Mapping[Place, int],
    spout_id: str,
    lost: int,
) -> dict[str, Any]:
    """Return the metadata of a batch that takes these shares; every position is in it."""
    topics: dict[str, Any] = {}
    for topic in sorted({topic for topic, _ in positions}):
        numbers = [number for name, number in positions if name == topic]
        ranges: list[list[int] | None] = [None] * (max(numbers) + 1)
        first: list[int | None] = [None] * len(ranges)
        for number in numbers:
            start = positions[topic, number]
            ranges[number] = [start, start + shares.get((topic, number), 0)]
            first[number] = firsts.get((topic, number), start)
        topics[topic] = {"id": ids.get(topic, ""), "ranges": ranges, "first": first}
    return {"spout": spout_id, "topics": topics, "lost": lost}


def firsts_of(metadata: Mapping[str, Any] | None) -> dict[Place, int]:
    """Return the offset at which each partition was begun with, in the first of all batches."""
    topics = {} if metadata is None else metadata["topics"]
    return {
        (topic, number): int(offset)
        for topic, kept in topics.items()
        for number, offset in enumerate(kept["first"])
        if offset is not None
    }


def with_ranges(
    metadata: Mapping[str, Any], changed: Callable[[Place, int, int], tuple[int, int]]
) -> dict[str, Any]:
    """Return the metadata of a batch whose ranges are others."""
    topics = {
        topic: {
            **kept,
            "ranges": [
                entry and [*changed((topic, number), *entry)]
                for number, entry in enumerate(kept["ranges"])
            ],
        }
        for topic, kept in metadata["topics"].items()
    }
    return {**metadata, "topics": topics}
