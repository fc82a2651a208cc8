"""Redis states: one key, or one field of a hash, per record, as JSON text.

    GET {word_counts:0}:k:["storm"]        ->  [7,0,42,40]

reads: batch 7, attempt 0, wrote 42 where 40 had been. A header, `{word_counts:0}:head`, holds
the head; every write is a script that compares it in the same step. A partition larger than a
chunk is several scripts, each of which checks the head: that is enough, because a record says
which attempt wrote it.

**Slots.** `slots=N` spreads the records over N hash tags, and so over the nodes of a cluster; a
script reaches one tag only, so each has its own header. All are read and compared first: one that
is not where the others say it must be (`SlotHeader.may_join`) has lost records, and nothing is
moved. A claim moves that of slot 0, the master, first and only from what is expected; then the
others, each from where it was found. Until a slot has moved it refuses the new attempt, which is
safe, and a claim that is repeated completes it. A paused driver that wakes up and goes on finds
newer headers and is refused. Settling goes the other way round: a slot that is closed early harms
nobody.

**Durability.** A server that was wiped has no head, and a run stops. One that came back without
its last second (`appendfsync everysec`) is found out if what it lost reaches back to the settling
of the last batch, or further: Redis loses its newest writes first, and the settling is the last of
a batch. If it loses writes of a batch before it is told of the mark, nothing shows it. Exactness
needs `appendonly yes`, `appendfsync always` and no eviction; `check` warns otherwise. A replica
that takes over without the last writes is a server that lost them.

**Expiry.** With `expire_secs` every write renews a key's life. A key that has expired starts
anew: what it held is gone, by request, so that key is not exact.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any
from zlib import crc32

from waterspout._addresses import check_url, shown
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    ForeignStoreError,
    StaleBatchError,
    StateMismatchError,
    TopologyError,
)
from waterspout.state._base import Combiner, FencedMap, Key, Keys, Records, Risk, StateKind
from waterspout.state._batched import CombinerValueUpdater
from waterspout.state._head import Head, Stamp, check_stamp
from waterspout.state._header import StoreHeader
from waterspout.state._kinds import make_map
from waterspout.state._records import RecordTexts
from waterspout.state._store import StoreState
from waterspout.state.redis import _scripts as scripts
from waterspout.state.redis._chunks import (
    CHUNK_KEYS,
    Chunk,
    are_exact,
    batched,
    is_exact,
    lines,
    names_of,
    number_list,
    picked,
    split,
)
from waterspout.state.redis._client import Call, RedisClient, require_library
from waterspout.state.redis._header import BEFORE, SUMMED, Headers, SlotHeader, fence_of

__all__ = ["RedisMap", "RedisState"]

log = logging.getLogger(__name__)

_SCAN = 2_000
_size = attrgetter("size")  # of a chunk
_INTEGERS = ("bigint", "int", "smallint", "tinyint")
_LAYOUTS = ("string", "hash")
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
# What a server must be set to if it is to keep what it has acknowledged.
_SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
_RISKS = {
    "appendonly": "a restart may lose the state, and the run then stops",
    "appendfsync": "a crash of its machine may lose the last writes of a marked batch",
    "maxmemory-policy": "a key that it evicts starts anew, as if it had never been counted",
}


class RedisMap(FencedMap[Any]):
    """The records of one state under a prefix; writes check the head in their script."""

    def __init__(self, recipe: RedisState) -> None:
        self._name = recipe.title
        self._client = RedisClient(recipe.url, self._name, recipe.timeout_secs, recipe.cluster)
        self._prefix = recipe.prefix
        self._kind = recipe.kind
        self._columns = recipe.columns
        self._texts = RecordTexts(self._kind, self._name)
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
        found: list[Any | None] = [None] * len(keys)
        chunks = self._chunks(names_of(keys))
        for some in batched(chunks, _size):
            calls = [self._read_call(chunk.slot, self._own(chunk)) for chunk in some]
            for chunk, texts in zip(some, self._client.run(calls, again=True), strict=True):
                for i, name, text in zip(chunk.numbers, chunk.names, texts, strict=True):
                    found[i] = None if text is None else self._texts.decode(name, text)
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
        self._put(None, keys, values)

    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Records, read: Records | None = None
    ) -> None:
        if not keys:
            check_stamp(self.read_head(), stamp, state=self._name)
        self._put(stamp, keys, values)

    def multi_compare_and_put(self, keys: Keys, read: Records, values: Records) -> list[bool]:
        """Store each record whose key has the text of the one that was read.

        Not repeated if the answer is lost: it would find its own record and take it for another.
        """
        script = scripts.compare_and_put(self._layout, expires=self._expires)
        before = [text or "" for text in self._texts.expected(read)]
        same = [False] * len(keys)
        rows = self._texts.encode(values)
        for chunk, reply in self._write(None, script, keys, [rows, before], again=False):
            for i, digit in zip(chunk.numbers, reply[1], strict=True):
                same[i] = digit == ord("1")
        return same

    def can_combine(self, combiner: Combiner) -> bool:
        """Sums, least and greatest of whole numbers: the server does them as we would."""
        kinds = self._columns.values.types
        (merge,) = combiner.merges if len(combiner.merges) == 1 else (None,)
        return merge in ("sum", "min", "max") and len(kinds) == 1 and kinds[0] in _INTEGERS

    def fenced_combine(self, stamp: Stamp, keys: Keys, values: Records, combiner: Combiner) -> None:
        """Apply the kind's rule and the combiner in the server, one script per chunk.

        What a double cannot hold exactly is left out there, and read, combined and put from here.
        """
        (merge,) = combiner.merges
        assert merge is not None
        script = scripts.combine(self._layout, self._kind, merge, expires=self._expires)
        left = [] if are_exact(values) else [i for i, v in enumerate(values) if not is_exact(v)]
        plain: Sequence[int] = range(len(keys))
        if left:
            apart = set(left)
            plain = [i for i in plain if i not in apart]
        chosen, amounts = picked(keys, plain), picked(values, plain)
        tail = (str(stamp.txid), str(stamp.attempt))
        # A non-transactional value has no batch beside it: sent again, it would count twice.
        again = self._kind is not StateKind.NON_TRANSACTIONAL
        for chunk, reply in self._write(
            stamp, script, chosen, [amounts], again=again, pack=number_list, tail=tail
        ):
            if reply[0] == b"newer":
                key = tuple(chosen[chunk.numbers[reply[1]]])
                raise StaleBatchError(stamp.txid, int(reply[2]), key)
            left += [plain[chunk.numbers[k]] for k in reply[1]]
        if left:
            self._combine_here(stamp, picked(keys, left), picked(values, left), combiner)

    def _combine_here(self, stamp: Stamp, keys: Keys, values: Records, combiner: Combiner) -> None:
        head = self.read_head()
        check_stamp(head, stamp, state=self._name)
        assert head is not None
        state = make_map(self._kind, self, name=self._name, types=self._columns)
        state.enroll(stamp.writer)
        state.begin_commit(stamp.txid, stamp.attempt, head.resolved)
        state.multi_update(keys, [CombinerValueUpdater(combiner, value) for value in values])
        state.commit(stamp.txid)

    def _put(self, stamp: Stamp | None, keys: Keys, values: Records) -> None:
        script = scripts.put(self._layout, expires=self._expires)
        # To store the same records twice changes nothing, so a call with a lost answer is repeated.
        for _ in self._write(stamp, script, keys, [self._texts.encode(values)], again=True):
            pass

    def _write(
        self,
        stamp: Stamp | None,
        script: scripts.Script,
        keys: Keys,
        columns: Sequence[Sequence[Any]],
        *,
        again: bool,
        pack: Callable[[Iterable[Any]], str] = lines,
        tail: Sequence[str] = (),
    ) -> Iterator[tuple[Chunk, list[Any]]]:
        """Run a script over all keys and some columns; yield the answer to each chunk."""
        # All are encoded before any is sent, so that one bad key keeps all of them out.
        names = names_of(keys)
        guard = [self._headers.state, "" if stamp is None else fence_of(stamp), self._live_ms]

        def call(chunk: Chunk) -> Call:
            def args() -> list[Any]:
                packed = [pack(picked(column, chunk.numbers)) for column in columns]
                return [*guard, self._joined(chunk), *packed, *tail]

            header = self._headers.key(chunk.slot)
            own = () if self._layout == "string" else (self._hash(chunk.slot),)
            return Call(header, args, script, (header, *own))

        texts = columns[0] if pack is lines else None
        for some in batched(self._chunks(names, texts), _size):
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

    def _own(self, chunk: Chunk) -> list[str]:
        lead = self._lead(chunk.slot)
        return [lead + name for name in chunk.names] if lead else list(chunk.names)

    def _joined(self, chunk: Chunk) -> str:
        lead = self._lead(chunk.slot)
        between = "\n" + lead
        return f"{lead}{between.join(chunk.names)}\n"

    def _read_call(self, slot: int, keys: Sequence[str]) -> Call:
        if self._layout == "string":
            return Call(self._headers.key(slot), ["MGET", *keys])
        return Call(self._headers.key(slot), ["HMGET", self._hash(slot), *keys])

    def _chunks(self, names: Sequence[str], texts: Sequence[str] | None = None) -> Iterator[Chunk]:
        """Share out the keys to slots, and those of a slot to chunks of bounded size."""
        numbers: Mapping[int, Sequence[int]] = {0: range(len(names))}
        if self._slots > 1:
            by_slot: dict[int, list[int]] = {}
            for i, name in enumerate(names):
                by_slot.setdefault(crc32(name.encode()) % self._slots, []).append(i)
            numbers = by_slot
        for slot, mine in numbers.items():
            for start in range(0, len(mine), CHUNK_KEYS):
                yield from split(slot, mine[start : start + CHUNK_KEYS], names, texts)

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
            calls = [
                self._read_call(leads[lead], [lead.decode() + n for n in mine])
                for lead, mine in names.items()
            ]
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


@dataclass(frozen=True)
class RedisState(StoreState):
    """Recipe of a state under a prefix of a Redis server or cluster.

    Args:
        url: `redis://`, `rediss://` (TLS) or `unix://`, with user, password and database;
            `${NAME}` is taken from the environment where the state is used.
        prefix: What the keys begin with; one state each.
        layout: `"string"`, a key per record, or `"hash"`, a field per record in one hash per slot.
        expire_secs: How long a key lives after it was written last; for ever if None. Only for
            the string layout: Redis gives a life to keys.
        slots: How many hash tags the records are spread over; more than one only helps in a
            cluster, a few times the number of nodes. It cannot be changed later.
        timeout_secs: How long to wait for a connection, and for an answer.
        cluster: Whether the URL is that of any node of a Redis Cluster.
    """

    url: str = field(repr=False)
    prefix: str
    layout: str = "string"
    expire_secs: float | None = None
    slots: int = 1
    timeout_secs: float = 10.0
    cluster: bool = False

    backend = "redis"
    fenced = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_library()
        if not isinstance(self.prefix, str) or not _PREFIX.fullmatch(self.prefix):
            raise TopologyError(
                f"{self.prefix!r} cannot be a prefix; use letters, digits and _ . : / - (at most "
                "128, the first a letter, a digit or _)"
            )
        if not isinstance(self.url, str) or not re.match(r"(rediss?|unix)://|\$\{", self.url):
            raise ConfigError(
                f"the URL of Redis state {self.prefix!r} must begin with redis://, rediss://, "
                "unix:// or an environment variable ${NAME}"
            )
        check_url(self.url, f"URL of Redis state {self.prefix!r}")
        if self.layout not in _LAYOUTS:
            raise ConfigError(f"layout is 'string' or 'hash', not {self.layout!r}")
        if type(self.slots) is not int or not 1 <= self.slots <= 16_384:
            raise ConfigError(f"slots is a number from 1 to 16384, not {self.slots!r}")
        self._require_seconds("timeout_secs")
        if self.expire_secs is not None:
            self._require_seconds("expire_secs")
        if self.expire_secs is not None and self.layout == "hash":
            raise ConfigError("expire_secs needs layout='string': fields of a hash do not expire")

    @property
    def title(self) -> str:
        return f"Redis state {self.prefix!r} at {shown(self.url)}"

    @property
    def weakness(self) -> str | None:  # type: ignore[override]
        if self.expire_secs is None:
            return None
        return f"a key that nobody wrote for {self.expire_secs} s expires and starts anew"

    def backing(self) -> RedisMap:
        return RedisMap(self)

    def within(self) -> Mapping[str, Any]:
        return {"prefix": self.prefix, "records": self.layout, "slots": self.slots}

    def location(self) -> str:
        return f"{shown(self.url)}#{self.prefix}"
