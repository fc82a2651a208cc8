"""Keys and when they have passed, in a map state that forgets the old ones.

The keys are spread by their hashes over the slots of a partition: `(partition, slot)` of the map,
some sixteen keys in each. Slot -1 holds the contents: how many slots there are, and how many keys
are in them. Whenever a slot is read, the keys in it that are too old are dropped; so it is never
larger than what was recent when it last got a new key, and the whole not much larger than what was
recent at the busiest time. Where there are too many keys for the slots, some slots are added,
and the keys of as many slots are spread anew (linear hashing): a batch reads and writes the slots
of its own keys, and a few more.

Nothing is changed before `admit` puts it into the map, under the batch's attempt: a replay finds
every slot as the batch before it left it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from waterspout._schema import Schema
from waterspout.errors import DamagedStoreError, TopologyError
from waterspout.state._base import MapState

__all__ = ["KEYS", "VALUES", "RecentKeys"]

KEYS = Schema.parse("part int, slot int")
VALUES = Schema.parse("entries string")

_CONTENTS = -1
_FORMAT = 1
_PER_SLOT = 16


class RecentKeys:
    """The keys of one partition that passed less than `within` ago, as one batch finds them.

    Times are in milliseconds. Keys are texts.
    """

    def __init__(
        self, state: MapState[Any], partition: int, fields: Sequence[str], now: int, within: int
    ) -> None:
        self._state = state
        self._partition = partition
        self._fields = list(fields)
        self._oldest = now - within  # a key of this time passes again
        self._now = now
        self._loaded: dict[int, dict[str, int]] = {}
        self._changed: set[int] = set()
        self._slots, self._held = 0, 0
        (contents,) = state.multi_get([self._key(_CONTENTS)])
        if contents is not None:
            self._slots, self._held = self._opened(contents)

    def admit(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that may pass now, and note that they do."""
        if not self._slots:
            self._slots, self._loaded[0] = 1, {}
        self._load(self._slot(key) for key in keys)
        new = {key for key in keys if key not in self._loaded[self._slot(key)]}
        if not new:
            return new
        for key in new:
            self._loaded[self._slot(key)][key] = self._now
            self._changed.add(self._slot(key))
        self._held += len(new)
        self._add_slots()
        self._store()
        return new

    def _slot(self, key: str) -> int:
        """Return where a key is: its hash, by as many bits as there are slots for."""
        number = zlib.crc32(key.encode("utf-8", "surrogatepass"))
        bits = self._slots.bit_length()
        slot = number & ((1 << bits) - 1)
        return slot if slot < self._slots else slot & ((1 << (bits - 1)) - 1)

    def _load(self, slots: Iterable[int]) -> None:
        missing = sorted(set(slots) - self._loaded.keys())
        found = self._state.multi_get([self._key(slot) for slot in missing]) if missing else []
        for slot, text in zip(missing, found, strict=True):
            entries = self._read(slot, text)
            recent = {key: time for key, time in entries.items() if time > self._oldest}
            self._held -= len(entries) - len(recent)
            self._loaded[slot] = recent

    def _add_slots(self) -> None:
        """Make as many slots as the keys need, and spread those of the slots that are divided."""
        before, after = self._slots, -(-self._held // _PER_SLOT)
        if after <= before:
            return
        divided = {_ancestor(slot, before) for slot in range(before, after)}
        self._load(divided)
        moved = [entry for slot in divided for entry in self._loaded[slot].items()]
        self._slots = after
        self._loaded |= {slot: {} for slot in (*divided, *range(before, after))}
        self._changed |= {*divided, *range(before, after)}
        for key, time in moved:
            self._loaded[self._slot(key)][key] = time

    def _store(self) -> None:
        contents = {"format": _FORMAT, "fields": self._fields}
        texts = {_CONTENTS: {**contents, "slots": self._slots, "held": self._held}}
        records: dict[int, Any] = {**texts, **{s: self._loaded[s] for s in sorted(self._changed)}}
        self._state.multi_put(
            [self._key(slot) for slot in records],
            [json.dumps(record, separators=(",", ":")) for record in records.values()],
        )

    def _opened(self, text: str) -> tuple[int, int]:
        try:
            contents = json.loads(text)
            known, fields = contents["format"], contents["fields"]
            slots, held = int(contents["slots"]), int(contents["held"])
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedStoreError(f"the keys of deduplicate cannot be read: {error!r}") from error
        if known != _FORMAT:
            raise DamagedStoreError(f"the keys of deduplicate have format {known}, not {_FORMAT}")
        if fields != self._fields:
            raise TopologyError(
                f"the store of deduplicate holds keys of ({', '.join(fields)}), but the topology "
                f"now goes by ({', '.join(self._fields)}); give the changed one another store"
            )
        return slots, held

    def _read(self, slot: int, text: str | None) -> dict[str, int]:
        try:
            entries: dict[str, int] = json.loads(text or "")
        except ValueError as error:
            raise DamagedStoreError(
                f"keys of deduplicate are gone from the store: slot {slot} of partition "
                f"{self._partition} is {'empty' if not text else 'damaged'}. Restore the store "
                "from a copy; without it rows would pass twice."
            ) from error
        return entries

    def _key(self, slot: int) -> tuple[int, int]:
        return (self._partition, slot)


def _ancestor(slot: int, slots: int) -> int:
    """Return which of the first `slots` slots the keys of a later slot are in before it is made."""
    while slot >= slots:
        slot -= 1 << (slot.bit_length() - 1)
    return slot
