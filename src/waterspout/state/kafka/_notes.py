"""What the topic of heads says, and what follows from it: the decisions of a writer. No I/O.

A state has one head, which only a driver moves, and a note for each of its partitions: the last
batch of which the partition's rows are in the topic. Head and notes are records under these names,
in partitions of the topic of heads that do not hold each other up: an open transaction of one
partition of the state keeps no reader of another's waiting, or of the head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from waterspout._serde import checksum
from waterspout.errors import DamagedStoreError, StateMismatchError
from waterspout.state._head import Head, Stamp, check_stamp
from waterspout.state._header import StoreHeader

__all__ = [
    "HEAD_PARTITION",
    "NOTE_PARTITIONS",
    "Note",
    "ToDo",
    "head_key",
    "next_move",
    "next_write",
    "note_key",
    "note_partition",
    "record_of_head",
    "stored_head",
]

HEAD_PARTITION = 0
NOTE_PARTITIONS = 15
"""How many partitions the notes are in. Never changed: a note would be looked for elsewhere."""


def note_partition(partition: int) -> int:
    """Return the partition of the topic of heads that has the note of a state's partition."""
    return 1 + partition % NOTE_PARTITIONS


def head_key(topic: str) -> str:
    """Return the key of the head of the state that writes to a topic."""
    return json.dumps([topic, "head"])


def note_key(topic: str, partition: int) -> str:
    """Return the key of the note of one of its partitions."""
    return json.dumps([topic, partition])


@dataclass(frozen=True, slots=True)
class Note:
    """The last batch of a partition whose rows are in the topic.

    `place` is where the last row of them went, a partition and an offset of the topic; `by` names
    the producer, which need not begin anew if nobody has written after it.
    """

    txid: int
    attempt: int
    rows: int
    place: tuple[int, int]
    by: str = ""

    def to_text(self) -> str:
        """Return the note as JSON text."""
        fields = [self.txid, self.attempt, self.rows, *self.place, self.by]
        return json.dumps({"note": fields, "checksum": checksum(json.dumps(fields))})

    @classmethod
    def from_text(cls, text: str | None, state: str) -> Note | None:
        """Read a note back, if there is one."""
        if text is None:
            return None
        try:
            found = json.loads(text)
            if found["checksum"] != checksum(json.dumps(found["note"])):
                raise ValueError("checksum")
            txid, attempt, rows, partition, offset, by = found["note"]
        except (ValueError, KeyError, TypeError):
            raise DamagedStoreError(f"a note of {state} does not match its checksum") from None
        return cls(txid, attempt, rows, (partition, offset), by)


def record_of_head(header: StoreHeader, head: Head) -> str:
    """Return the record of a head."""
    return json.dumps(header.fields(head))


def stored_head(header: StoreHeader, text: str | None) -> Head | None:
    """Return the head of a record, if there is one; refuse one that is not this state's."""
    if text is None:
        return None
    try:
        fields: Mapping[str, object] = json.loads(text)
        return header.opened(fields)
    except (ValueError, KeyError, TypeError):
        raise header.foreign() from None


class ToDo(Enum):
    """What a writer does who has looked."""

    WRITE = "write"
    NOTHING = "it is there already"


def next_move(
    found: Head | None, expected: Head | None, new: Head, *, tried: bool, header: StoreHeader
) -> ToDo:
    """Say what a driver does that holds the name of the drivers, and has then read the head.

    `tried` if it has sent `new` before and does not know whether it arrived. Nobody else sends
    that: a head names the lease of its writer.
    """
    if tried and found == new:
        return ToDo.NOTHING
    if found != expected:
        raise header.moved(new, found)
    return ToDo.WRITE


def next_write(head: Head | None, note: Note | None, stamp: Stamp, *, state: str) -> ToDo:
    """Say what a task does that holds the name of its partition, and has then read head and note.

    Rows of the batch that are there, whichever attempt has written them, are the same rows: the
    batch is pinned.
    """
    check_stamp(head, stamp, state=state)
    if note is None or note.txid < stamp.txid:
        return ToDo.WRITE
    if note.txid == stamp.txid:
        return ToDo.NOTHING
    raise StateMismatchError(
        f"{state}: {stamp} is at the head, but a partition holds batch {note.txid} already. Head "
        "and notes were written by different histories; use another topic."
    )
