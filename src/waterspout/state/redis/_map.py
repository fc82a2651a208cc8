"""The records of a Redis state: how they are read, and written under a header.

What is stored, and what slots, expiry and the server's settings mean, is said in `_state.py`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa

from waterspout._serde import encode_keys
from waterspout.errors import (
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    StateMismatchError,
    WaterspoutError,
)
from waterspout.state._base import (
    Combiner,
    FencedMap,
    Key,
    Keys,
    RecordColumns,
    Records,
    Risk,
    StateKind,
    Unclear,
)
from waterspout.state._batched import CombinerValueUpdater
from waterspout.state._head import Head, Stamp, check_stamp
from waterspout.state._header import StoreHeader
from waterspout.state._kinds import make_map
from waterspout.state.redis import _scripts as scripts
from waterspout.state.redis._chunks import (
    CHUNK_KEYS,
    WATCHED_KEYS,
    Chunk,
    batched,
    lines,
    picked,
    split,
)
from waterspout.state.redis._client import Call, RedisClient
from waterspout.state.redis._columns import ColumnTexts
from waterspout.state.redis._combining import combined
from waterspout.state.redis._header import BEFORE, SUMMED, Headers, SlotHeader, fence_of
from waterspout.state.redis._watched import Make, SlotRecords, Watched
from waterspout.state.redis._wire import as_column

if TYPE_CHECKING:
    from waterspout.state.redis._state import RedisState

__all__ = ["RedisMap"]

log = logging.getLogger(__name__)

_SCAN = 2_000
_FEW = 1_000  # keys that are sooner written by one script than watched, which takes two round trips
_size = attrgetter("size")  # of a chunk
_INTEGERS = ("bigint", "int", "smallint", "tinyint")
# What a server must be set to if it is to keep what it has acknowledged.
_SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
_RISKS = {
    "appendonly": "a restart may lose the state, and the run then stops",
    "appendfsync": "a crash of its machine may lose the last writes of a marked batch",
    "maxmemory-policy": "a key that it evicts starts anew, as if it had never been counted",
}


class RedisMap(FencedMap[Any]):
    """The records of one state under a prefix; no write of a batch but under the head it saw."""

    by_column = True

    def __init__(self, recipe: RedisState) -> None:
        self._name = recipe.title
        self._client = RedisClient(recipe.url, self._name, recipe.timeout_secs, recipe.cluster)
        self._prefix = recipe.prefix
        self._kind = recipe.kind
        self._columns = recipe.columns
        self._texts = ColumnTexts(self._kind, self._name)
        self._layout = recipe.layout
        self._slots = recipe.slots
        self._expires = recipe.expire_secs is not None
        self._live_ms = round((recipe.expire_secs or 0) * 1000)
        what = f"{self._layout} layout, slots {self._slots}, {self._columns.describe()}"
        header = StoreHeader(self._name, "prefix", self._kind.value, what, SUMMED)
        self._headers = Headers(header, self._prefix)

    @property
    def forgets(self) -> bool:
        return self._expires

    def multi_get(self, keys: Keys) -> list[Any | None]:
        names = encode_keys(keys)
        return self._texts.decode_all(names, self._read(names))

    def get_columns(self, keys: Keys, names: Sequence[str], unclear: Unclear) -> RecordColumns:
        return self._texts.columns(names, self._read(names), unclear)

    def _read(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """Return the texts under these names."""
        found: list[bytes | None] = [None] * len(names)
        for some in batched(self._chunks(names), _size):
            calls = [self._read_call(chunk.slot, chunk.names) for chunk in some]
            for chunk, texts in zip(some, self._client.run(calls, again=True), strict=True):
                if isinstance(chunk.numbers, range):
                    found[chunk.numbers.start : chunk.numbers.stop] = texts
                else:
                    for i, text in zip(chunk.numbers, texts, strict=True):
                        found[i] = text
        return found

    def read_head(self) -> Head | None:
        master = self._headers.key(0)
        (found,) = self._client.run([Call(master, ["HGETALL", master])], again=True)
        return self._headers.parsed(found, 0)

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, Any]]]:
        """Yield all keys and records, some thousand at a time.

        Shards are made of whole slots where there are several, else by the hash of a key: then
        every shard reads all keys and keeps its own. A hash is read slot by slot; plain keys are
        found by walking over all keys of the database. Names that were seen are remembered,
        because Redis may show a key twice.
        """
        if self.read_head() is None and not self._is_begun():
            return
        pairs = self._hash_pairs if self._layout == "hash" else self._string_pairs
        mine = {n for n in range(self._slots) if self._slots == 1 or n % shards == shard}
        seen: set[str] = set()
        for chunk in pairs(mine):
            fresh = []
            for name, text in chunk:
                if self._slots == 1 and crc32(name.encode()) % shards != shard:
                    continue
                if name not in seen:
                    seen.add(name)
                    fresh.append((self._texts.key(name), self._texts.decode(name, text)))
            if fresh:
                yield fresh

    def check(self) -> None:
        """Raise if what is under the prefix is not this state's; warn if it may be lost."""
        found = self._read_slots()
        if not found[0].exists:
            self._refuse_foreign()
        elif found[0].head is not None:
            # As if its batch were to be done again: only what no replay would mend is refused.
            self._refuse_unfit(found, replace(found[0].head, committed=False))
        for name, value in self._client.settings(*_SAFE).items():
            if name in _SAFE and value != _SAFE[name]:
                log.warning(
                    "%s: the server has %s %s; %s", self._name, name, value or '""', _RISKS[name]
                )

    def risk(self) -> Risk | None:
        for policy in self._client.eviction_policies():
            # The others take only keys that expire.
            if policy.startswith("allkeys-") or (self._expires and policy != "noeviction"):
                return Risk(
                    f"the server has maxmemory-policy {policy}: {_RISKS['maxmemory-policy']}",
                    "Set its maxmemory-policy to noeviction",
                )
        return None

    def multi_put(self, keys: Keys, values: Records) -> None:
        self._put(None, encode_keys(keys), self._texts.encode(values))

    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Records, read: Records | None = None
    ) -> None:
        if not keys:
            check_stamp(self.read_head(), stamp, state=self._name)
        self._put(stamp, encode_keys(keys), self._texts.encode(values))

    def fenced_put_columns(
        self,
        stamp: Stamp,
        keys: Keys,
        names: Sequence[str],
        values: Sequence[Any],
        prevs: Sequence[Any],
        *,
        as_stored: bool,
    ) -> None:
        self._put(stamp, names, self._texts.of_columns(stamp.txid, stamp.attempt, values, prevs))

    def multi_compare_and_put(self, keys: Keys, read: Records, values: Records) -> list[bool]:
        """Store each record whose key has the text of the one that was read.

        Not repeated if the answer is lost: it would find its own record and take it for another.
        """
        script = scripts.compare_and_put(self._layout, expires=self._expires)
        before = [text or "" for text in self._texts.expected(read)]
        same = [False] * len(keys)
        rows = self._texts.encode(values)
        for chunk, reply in self._write(
            None, script, encode_keys(keys), [rows, before], again=False
        ):
            for i, digit in zip(chunk.numbers, reply[1], strict=True):
                same[i] = digit == ord("1")
        return same

    def can_combine(self, combiner: Combiner) -> bool:
        """Sums, least and greatest of whole numbers: a column of them at once."""
        kinds = self._columns.values.types
        (merge,) = combiner.merges if len(combiner.merges) == 1 else (None,)
        # Only 64 bits: the limits of a narrower sum are not looked at there.
        summed = merge == "sum" and kinds == ("bigint",)
        return summed or (merge in ("min", "max") and len(kinds) == 1 and kinds[0] in _INTEGERS)

    def fenced_combine(self, stamp: Stamp, keys: Keys, values: Records, combiner: Combiner) -> None:
        """Apply the kind's rule and the combiner chunk by chunk; what is odd, key by key."""
        (merge,) = combiner.merges
        assert merge is not None

        def make(chunk: Chunk, found: Sequence[bytes | None], head: Head) -> pa.Array | None:
            some, amounts = picked(keys, chunk.numbers), picked(values, chunk.numbers)
            return combined(
                self._kind, found, amounts, merge, stamp=stamp, resolved=head.resolved, keys=some
            )

        # A non-transactional value has no batch beside it: written again, it would count twice.
        again = self._kind is not StateKind.NON_TRANSACTIONAL
        names = encode_keys(keys)
        for chunk in self._write_watched(stamp, names, None, make, reads=True, again=again):
            some, amounts = picked(keys, chunk.numbers), picked(values, chunk.numbers)
            self._combine_here(stamp, some, amounts, combiner)

    def _combine_here(self, stamp: Stamp, keys: Keys, values: Records, combiner: Combiner) -> None:
        head = self.read_head()
        check_stamp(head, stamp, state=self._name)
        assert head is not None
        state = make_map(self._kind, self, name=self._name, types=self._columns)
        state.enroll(stamp.writer)
        state.begin_commit(stamp.txid, stamp.attempt, head.resolved)
        state.multi_update(keys, [CombinerValueUpdater(combiner, value) for value in values])
        state.commit(stamp.txid)

    def _put(self, stamp: Stamp | None, names: Sequence[str], texts: Sequence[str]) -> None:
        # To store the same records twice changes nothing, so a call with a lost answer is repeated.
        if stamp is None or len(names) <= _FEW:
            script = scripts.put(self._layout, expires=self._expires)
            for _ in self._write(stamp, script, names, [texts], again=True):
                pass
            return

        def make(chunk: Chunk, found: Sequence[bytes | None], head: Head) -> pa.Array:
            return as_column(picked(texts, chunk.numbers))

        self._write_watched(stamp, names, texts, make, reads=False, again=True)

    def _write_watched(
        self,
        stamp: Stamp,
        names: Sequence[str],
        texts: Sequence[str] | None,
        make: Make,
        *,
        reads: bool,
        again: bool,
    ) -> list[Chunk]:
        """Write all keys of a batch slot by slot; return the chunks of which nothing was made."""
        left: list[Chunk] = []
        chunks = self._chunks(names, texts, most=WATCHED_KEYS)
        for slot, some in groupby(chunks, key=attrgetter("slot")):
            watched = Watched(
                *(self._client, self._headers, slot, stamp, self._place(slot), make),
                partial(self._refusal, slot, stamp),
                reads=reads,
            )
            left += watched.write(list(some), again=again)
        return left

    def _refusal(self, slot: int, stamp: Stamp) -> Exception:
        """Return why a slot has refused a write of a batch."""
        header = self._headers.key(slot)
        (found,) = self._client.run([Call(header, ["HGETALL", header])], again=True)
        try:
            self._explain_refusal(found, slot, stamp)
        except WaterspoutError as error:
            return error
        return FencedError(f"{self._name}: the header of slot {slot} has changed meanwhile")

    def _write(
        self,
        stamp: Stamp | None,
        script: scripts.Script,
        names: Sequence[str],
        columns: Sequence[Sequence[Any]],
        *,
        again: bool,
    ) -> Iterator[tuple[Chunk, list[Any]]]:
        """Run a script over all keys and some columns; yield the answer to each chunk."""
        guard = [self._headers.state, "" if stamp is None else fence_of(stamp), self._live_ms]

        def call(chunk: Chunk) -> Call:
            def args() -> list[Any]:
                packed = [lines(picked(column, chunk.numbers)) for column in columns]
                return [*guard, self._joined(chunk), *packed]

            header = self._headers.key(chunk.slot)
            own = () if self._layout == "string" else (self._hash(chunk.slot),)
            return Call(header, args, script, (header, *own))

        for some in batched(self._chunks(names, columns[0]), _size):
            calls = [call(chunk) for chunk in some]
            replies = self._client.run(calls, again=again)
            refused = [i for i, reply in enumerate(replies) if reply[0] == b"refused"]
            for i in refused:
                self._explain_refusal(replies[i][1], some[i].slot, stamp)
            if refused:
                # No header, and none is needed outside of a batch: make it, and try again.
                if not self._is_begun():
                    self._create()
                found = self._client.run([calls[i] for i in refused], again=again)
                for i, reply in zip(refused, found, strict=True):
                    if reply[0] == b"refused":
                        slot, (master, *_) = some[i].slot, self._read_slots()
                        raise StateMismatchError(
                            self._gone(slot, self._headers.slot(reply[1], slot), master)
                        )
                    replies[i] = reply
            yield from zip(some, replies, strict=True)

    def _explain_refusal(self, found: Sequence[bytes], slot: int, stamp: Stamp | None) -> None:
        """Raise, unless there is no header yet and the write is of no batch."""
        head = self._headers.parsed(found, slot)
        if stamp is not None:
            check_stamp(head, stamp, state=self._name)
        if found:
            raise DamagedStoreError(f"the header of slot {slot} of {self._name} has changed")

    def move_head(self, expected: Head | None, new: Head) -> None:
        if self._slots == 1:
            self._move_master(expected, new)
            return
        found = self._read_slots()
        if not found[0].exists and expected is None:
            self._create()
            found = self._read_slots()
        if found[0].head not in (expected, new):
            raise self._headers.header.moved(new, found[0].head)
        # Before any is moved: else the next attempt would find the master where it is claimed.
        if found[0].head == expected:
            self._refuse_unfit(found, new)
        if new.committed:
            # The other slots first: whoever then finds the master committed knows that they are.
            self._move_others(found, new)
            self._move_master(expected, new)
        else:
            self._move_master(expected, new)
            self._move_others(found, new)

    def _move_master(self, expected: Head | None, new: Head) -> None:
        text = "" if expected is None else expected.to_text()
        fields = self._headers.fields(new)
        if not new.committed and (expected is None or expected.stamp.txid != new.stamp.txid):
            fields += [BEFORE, text]
        args = [self._headers.state, text, *fields]
        call = Call(self._headers.key(0), args, scripts.MOVE, (self._headers.key(0),))
        # Sent again if the answer was lost; then the head may be the new one already.
        (reply,) = self._client.run([call], again=True)
        if reply[0] == b"refused" and expected is None and not reply[1]:
            self._create()
            (reply,) = self._client.run([call], again=True)
        if reply[0] == b"refused" and (older := self._headers.older(reply[1])) is not None:
            call = replace(call, args=[older, *args[1:]])
            (reply,) = self._client.run([call], again=True)
        if reply[0] == b"refused":
            found = self._headers.parsed(reply[1], 0)
            if found != new:
                raise self._headers.header.moved(new, found)

    def _move_others(self, found: Sequence[SlotHeader], new: Head) -> None:
        """Move the heads of all other slots from where they were found."""
        fields, calls = self._headers.fields(new), []
        for slot in range(1, self._slots):
            header = self._headers.key(slot)
            args = [found[slot].older or self._headers.state, found[slot].text, *fields]
            calls.append(Call(header, args, scripts.MOVE, (header,)))
        for slot, reply in enumerate(self._client.run(calls, again=True), start=1):
            if reply[0] == b"refused":
                now = self._headers.slot(reply[1], slot)
                if not now.exists:
                    raise StateMismatchError(self._gone(slot, now, found[0]))
                if now.head != new:
                    raise self._headers.header.moved(new, now.head)

    def _read_slots(self) -> list[SlotHeader]:
        headers = [self._headers.key(slot) for slot in range(self._slots)]
        replies = self._client.run([Call(key, ["HGETALL", key]) for key in headers], again=True)
        return [self._headers.slot(reply, slot) for slot, reply in enumerate(replies)]

    def _refuse_unfit(self, found: Sequence[SlotHeader], new: Head) -> None:
        """Refuse a slot that is not where it must be if all slots hold the same batches."""
        master = found[0]
        for slot, header in enumerate(found):
            if not header.exists or not header.may_join(master, new):
                raise StateMismatchError(self._gone(slot, header, master))

    def _gone(self, slot: int, found: SlotHeader, master: SlotHeader) -> str:
        return (
            f"slot {slot} of {self._name} is behind the others, or slot 0 is: it {found}, and slot "
            f"0 {master}. A node was wiped, or came back without its last writes. Restore it "
            "together with the others and the waterspout home, or start over with another prefix."
        )

    def _create(self) -> None:
        """Make the headers of a new state, the master's last: it stands for all of them."""
        self._refuse_foreign()
        fields = self._headers.fields(None)
        for slots in (range(1, self._slots), range(1)):
            headers = [self._headers.key(slot) for slot in slots]
            calls = [Call(header, fields, scripts.CREATE, (header,)) for header in headers]
            for slot, (_, flat) in zip(slots, self._client.run(calls, again=True), strict=True):
                found = self._headers.slot(flat, slot)
                if slot and found.head is not None:
                    raise StateMismatchError(self._gone(slot, found, SlotHeader(False, None)))

    def _refuse_foreign(self) -> None:
        """Refuse keys under the prefix where there is no header of the master."""
        own = re.compile(rf"\{{{re.escape(self._prefix)}:\d+\}}:")
        for key in self._client.scan(f"{{{self._prefix}:*}}:*", _SCAN):
            text = key.decode("utf-8", "replace")
            if own.match(text) and not text.endswith("}:head"):
                raise ForeignStoreError(
                    f"{self._name} has keys, such as {text[:100]!r}, but no header: waterspout "
                    "did not make them, or the header was lost. Use another prefix."
                )

    def _is_begun(self) -> bool:
        """Whether there is a header, with or without a head."""
        call = Call(self._headers.key(0), ["EXISTS", self._headers.key(0)])
        (found,) = self._client.run([call], again=True)
        return bool(found)

    def _hash(self, slot: int) -> str:
        return f"{self._headers.tag(slot)}:h"

    def _lead(self, slot: int) -> str:
        """What stands before the name of a key."""
        return f"{self._headers.tag(slot)}:k:" if self._layout == "string" else ""

    def _joined(self, chunk: Chunk) -> str:
        lead = self._lead(chunk.slot)
        between = "\n" + lead
        return f"{lead}{between.join(chunk.names)}\n"

    def _place(self, slot: int) -> SlotRecords:
        return SlotRecords(self._layout, self._lead(slot), self._hash(slot), self._live_ms or None)

    def _read_call(self, slot: int, names: Sequence[str]) -> Call:
        place = self._place(slot)
        return Call(self._headers.key(slot), (), packed=lambda: place.reading(place.framed(names)))

    def _chunks(
        self, names: Sequence[str], texts: Sequence[str] | None = None, *, most: int = CHUNK_KEYS
    ) -> Iterator[Chunk]:
        """Share out the keys to slots, and those of a slot to chunks of bounded size."""
        numbers: Mapping[int, Sequence[int]] = {0: range(len(names))}
        if self._slots > 1:
            by_slot: dict[int, list[int]] = {}
            for i, name in enumerate(names):
                by_slot.setdefault(crc32(name.encode()) % self._slots, []).append(i)
            numbers = by_slot
        for slot, mine in numbers.items():
            for start in range(0, len(mine), most):
                yield from split(slot, mine[start : start + most], names, texts)

    def _string_pairs(self, slots: set[int]) -> Iterator[list[tuple[str, bytes]]]:
        leads = {self._lead(slot).encode(): slot for slot in slots}
        width = {lead: len(lead) for lead in leads}
        own = re.compile(rb"\{%s:\d+\}:k:" % re.escape(self._prefix).encode())

        def lead_of(key: bytes) -> bytes | None:
            match = own.match(key)
            return match[0] if match and match[0] in leads else None

        found = self._client.scan(f"{{{self._prefix}:*}}:k:*", _SCAN)
        keys = ((lead, key) for key in found if (lead := lead_of(key)) is not None)
        for some in batched(keys, lambda pair: len(pair[1]), most=_SCAN):
            by_slot = {
                lead: [key[width[lead] :] for _, key in group]
                for lead, group in groupby(sorted(some), key=lambda pair: pair[0])
            }
            names = {lead: [self._name_of(n) for n in mine] for lead, mine in by_slot.items()}
            calls = [self._read_call(leads[lead], mine) for lead, mine in names.items()]
            texts = self._client.run(calls, again=True)
            yield [
                (name, text)
                for mine, group in zip(names.values(), texts, strict=True)
                for name, text in zip(mine, group, strict=True)
                if text is not None  # expired since
            ]

    def _hash_pairs(self, slots: set[int]) -> Iterator[list[tuple[str, bytes]]]:
        for slot in sorted(slots):
            pairs = self._client.scan_hash(self._hash(slot), _SCAN)
            for some in batched(pairs, lambda pair: len(pair[1]), most=_SCAN):
                yield [(self._name_of(name), text) for name, text in some]

    def _name_of(self, name: bytes) -> str:
        try:
            return name.decode("ascii")
        except UnicodeDecodeError:
            raise DamagedStoreError(
                f"{self._name} holds a key that cannot be read, {name[:200]!r}"
            ) from None
