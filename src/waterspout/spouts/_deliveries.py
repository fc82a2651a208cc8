"""Which message id belongs to which delivery of a broker; bookkeeping without I/O.

A broker names a delivery by a tag, which changes with every redelivery and connection. The topology
names a message by an id that must stay the same, because replays are counted by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Acknowledgements", "Deliveries"]

# The search for a free copy number begins at the last one given. Only a hint: it may be forgotten.
_HINTS_MAX = 10_000


@dataclass(slots=True)
class Acknowledgements:
    """What is to be told to the broker, in this order."""

    requeue: list[int] = field(default_factory=list)
    ack_up_to: int = 0
    """Ack all up to this tag; 0: none."""
    ack: list[int] = field(default_factory=list)


class Deliveries:
    """The messages that are being processed, by id, and their deliveries.

    A message is *named* by its content. Its id is the name; a copy that comes while another one
    of that name is open, or on its way back, gets a number behind it. So an id is never open twice.
    """

    def __init__(self, remembered_max: int) -> None:
        self._remembered_max = remembered_max
        self._open: dict[str, tuple[int, str]] = {}
        """Tag and name of each open id; tag 0: its delivery was lost with a connection."""
        self._unanswered: dict[int, None] = {}  # the tags of the open ids, ascending
        self._acked: list[int] = []
        self._failed: list[int] = []
        self._orphans: dict[str, dict[str, None]] = {}
        """By name, the open ids whose delivery was lost."""
        self._returning: dict[str, dict[str, None]] = {}
        """By name, the failed ids that the broker will deliver again, to us or to others."""
        self._returning_count = 0
        self._hints: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def returning(self) -> int:
        """How many messages failed and have not come back."""
        return self._returning_count

    @property
    def unsent(self) -> int:
        """How many acks and fails the broker was not told yet."""
        return len(self._acked) + len(self._failed)

    def deliver(self, name: str, tag: int, redelivered: bool) -> str | None:
        """Return the id to emit a delivery under; None if its message is being processed."""
        if redelivered:
            orphan = _taken(self._orphans, name)
            if orphan is not None:
                self._register(orphan, tag, name)
                return None
        msg_id = self._known(name) if redelivered else None
        if msg_id is None:
            msg_id = name
            if name in self._open or name in self._returning:
                msg_id = self._numbered(name)
        self._register(msg_id, tag, name)
        return msg_id

    def ack(self, msg_id: str) -> None:
        """Note that a message is done; one whose delivery was lost, or is unknown, is ignored."""
        tag = self._settled(msg_id)
        if tag:
            self._acked.append(tag)

    def fail(self, msg_id: str) -> None:
        """Note that a message is to come back; it will have the same id again."""
        found = self._open.get(msg_id)
        if found is None:
            return
        tag = self._settled(msg_id)
        if tag:
            self._failed.append(tag)
        self._returning.setdefault(found[1], {})[msg_id] = None
        self._returning_count += 1
        while self._returning_count > self._remembered_max:
            # Other consumers may have got them; without a bound they would be kept for ever.
            oldest = next(iter(self._returning))
            self._returning_count -= len(self._returning.pop(oldest))

    def take_acknowledgements(self) -> Acknowledgements:
        """Return what was acked and failed since the last time; it counts as sent."""
        # No tag below the oldest open one is open, so one cumulative ack covers them all.
        floor = next(iter(self._unanswered), None)
        done = Acknowledgements(requeue=self._failed)
        if floor is None:
            done.ack_up_to = max(self._acked, default=0)
        else:
            done.ack_up_to = max((tag for tag in self._acked if tag < floor), default=0)
            done.ack = sorted(tag for tag in self._acked if tag > floor)
        self._acked, self._failed = [], []
        return done

    def lost(self) -> None:
        """Forget the tags of a connection that is gone: the broker delivers all of it again."""
        for msg_id, (tag, name) in self._open.items():
            if tag:
                self._open[msg_id] = (0, name)
                self._orphans.setdefault(name, {})[msg_id] = None
        self._unanswered = {}
        self._acked, self._failed = [], []

    def _register(self, msg_id: str, tag: int, name: str) -> None:
        self._open[msg_id] = (tag, name)
        self._unanswered[tag] = None

    def _settled(self, msg_id: str) -> int:
        tag, name = self._open.pop(msg_id, (0, None))
        if tag:
            del self._unanswered[tag]
        elif name is not None:
            _discard(self._orphans, name, msg_id)
        return tag

    def _known(self, name: str) -> str | None:
        msg_id = _taken(self._returning, name)
        if msg_id is not None:
            self._returning_count -= 1
        return msg_id

    def _numbered(self, name: str) -> str:
        number = self._hints.get(name, 1) + 1
        returning = self._returning.get(name, ())
        while (msg_id := f"{name}.{number}") in self._open or msg_id in returning:
            number += 1
        if len(self._hints) >= _HINTS_MAX:
            self._hints.clear()
        self._hints[name] = number
        return msg_id


def _taken(ids_by_name: dict[str, dict[str, None]], name: str) -> str | None:
    """Remove and return the oldest id of a name."""
    ids = ids_by_name.get(name)
    if ids is None:
        return None
    msg_id = next(iter(ids))
    _discard(ids_by_name, name, msg_id)
    return msg_id


def _discard(ids_by_name: dict[str, dict[str, None]], name: str, msg_id: str) -> None:
    ids = ids_by_name[name]
    del ids[msg_id]
    if not ids:
        del ids_by_name[name]
