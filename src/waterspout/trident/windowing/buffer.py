"""The tuples that later windows may still need, in a map state, chunk by chunk.

A partition's buffer is some keys `(partition, slot)` of the map. Slot -1 holds the contents: up to
where the windows are done, and which chunk of tuples is in which slot. The other slots hold one
chunk each and are used again once their tuples have left all windows, so that the store does not
grow. A batch rewrites the contents and the slots that it fills, nothing else.

Small chunks are joined as they come, each time into one at least twice as large: a tuple is
rewritten some ten times at most, and there are few more chunks than tuples / 512.

Nothing is changed before `store`, and the map puts it under the batch's attempt: a replay finds
every slot as the batch before it left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waterspout._schema import Schema
from waterspout._serde import decode_value, encode_value
from waterspout.errors import DamagedStoreError, SerdeError, TopologyError
from waterspout.state._base import MapState
from waterspout.trident.windowing.chunks import (
    CHUNK_CHARS,
    CHUNK_TUPLES,
    Held,
    WindowChunk,
    join_chunks,
    make_chunks,
)

__all__ = ["KEYS", "VALUES", "StoredTuples"]

KEYS = Schema.parse("part int, slot int")
VALUES = Schema.parse("tuples string")

_CONTENTS = -1
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the contents say of a chunk; its text is read when it is needed."""

    slot: int
    count: int
    size: int
    first: int
    last: int


class StoredTuples:
    """The stored tuples of one partition: read before a batch, changed and written with it."""

    def __init__(
        self, state: MapState[Any], partition: int, fields: Sequence[str], *, by_time: bool
    ) -> None:
        self._state = state
        self._partition = partition
        self._by_time = by_time
        self._shape = {"fields": list(fields), "by": "time" if by_time else "count"}
        self._chunks: list[_Stored] = []
        self._writes: dict[int, str] = {}
        self.done: int | None = None
        """Windows that end up to this mark have been made; None before the first batch."""
        (contents,) = state.multi_get([self._key(_CONTENTS)])
        if contents is not None:
            self._open(contents)

    @property
    def last_mark(self) -> int | None:
        """The mark of the last tuple; None if there is none."""
        return self._chunks[-1].last if self._chunks else None

    @property
    def slots(self) -> list[int]:
        """The slots that hold tuples, oldest first."""
        return [chunk.slot for chunk in self._chunks]

    def read(self, start: int) -> Held:
        """Return the tuples that stand at `start` or later."""
        wanted = [chunk for chunk in self._chunks if chunk.last >= start]
        held = Held()
        for chunk in self._load(wanted):
            held.extend(chunk.read())
        return held.since(start)

    def drop_before(self, start: int) -> None:
        """Forget the chunks all of whose tuples have marks below `start`."""
        self._chunks = [chunk for chunk in self._chunks if chunk.last >= start]

    def append(self, held: Held, start: int) -> None:
        """Add later tuples. Chunks that reach back before `start` are not joined with them."""
        for chunk in make_chunks(held, by_time=self._by_time):
            while self._chunks and self._chunks[-1].first >= start and self._fits(chunk):
                (tail,) = self._load([self._chunks.pop()])
                chunk = join_chunks(tail, chunk)
            slot = self._free_slot()
            self._writes[slot] = chunk.text
            self._chunks.append(
                _Stored(slot, chunk.count, len(chunk.text), chunk.first, chunk.last)
            )

    def store(self, done: int) -> None:
        """Put what has changed into the map; the windows up to `done` have been made."""
        self.done = done
        chunks = [[c.slot, c.count, c.size, c.first, c.last] for c in self._chunks]
        contents = {"format": _FORMAT, **self._shape, "done": done, "chunks": chunks}
        used = set(self.slots)
        texts = {slot: text for slot, text in self._writes.items() if slot in used}
        texts[_CONTENTS] = encode_value(contents)
        self._state.multi_put([self._key(slot) for slot in texts], list(texts.values()))

    def _fits(self, chunk: WindowChunk) -> bool:
        tail = self._chunks[-1]
        return (
            tail.count <= chunk.count
            and tail.count + chunk.count <= CHUNK_TUPLES
            and tail.size + len(chunk.text) <= CHUNK_CHARS
        )

    def _free_slot(self) -> int:
        used = set(self.slots)
        return next(slot for slot in range(len(used) + 1) if slot not in used)

    def _load(self, chunks: Sequence[_Stored]) -> list[WindowChunk]:
        # What this batch puts into a slot reaches the map only with `store`.
        missing = [chunk.slot for chunk in chunks if chunk.slot not in self._writes]
        found = self._state.multi_get([self._key(slot) for slot in missing]) if missing else []
        texts = dict(self._writes)
        for slot, text in zip(missing, found, strict=True):
            if text is None:
                raise DamagedStoreError(
                    f"the tuples of a window are gone from the store: slot {slot} of partition "
                    f"{self._partition} is empty"
                )
            texts[slot] = text
        return [WindowChunk(c.count, c.first, c.last, texts[c.slot]) for c in chunks]

    def _open(self, text: str) -> None:
        try:
            contents = decode_value(text)
            known = contents["format"]
            shape = {name: contents[name] for name in self._shape}
            self.done = int(contents["done"])
            self._chunks = [_Stored(*chunk) for chunk in contents["chunks"]]
        except (SerdeError, KeyError, TypeError, ValueError) as error:
            raise DamagedStoreError(f"the contents of a window cannot be read: {error}") from error
        if known != _FORMAT:
            raise DamagedStoreError(f"the window's store has format {known}; {_FORMAT} is known")
        if shape != self._shape:
            raise TopologyError(
                f"the store of a window holds tuples of {_told(shape)}, but the topology now has a "
                f"window of {_told(self._shape)}; give the changed window another store"
            )

    def _key(self, slot: int) -> tuple[int, int]:
        return (self._partition, slot)


def _told(shape: dict[str, Any]) -> str:
    return f"({', '.join(shape['fields'])}) by {shape['by']}"
