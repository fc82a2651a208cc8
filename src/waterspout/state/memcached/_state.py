"""Memcached states: fast and shared, but a cache. Each key is compared and set on its own.

A record is JSON text under `prefix:` and the key, such as `counts:["the"]` -> `[3,0,7,5]`, to be
read with any client. A key that memcached cannot hold (long, or with a space in it) stands under
a hash, with the key itself in front of the record.

The head is at `prefix:head` on the first server. It is written twice a batch and so is the last
thing that an eviction would take. Where there are several servers, each has a sentinel at
`prefix:sentinel`, touched as often: when one is gone, so are records, and the state is refused.
"""

from __future__ import annotations

import re
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from waterspout._addresses import addresses
from waterspout._serde import decode_value, encode_key, encode_value
from waterspout._tls import TLS
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    ForeignStoreError,
    SerdeError,
    StateMismatchError,
    StoreError,
)
from waterspout.state._base import Key, Keys, Records, Risk, StateKind
from waterspout.state._comparing import ComparingMap
from waterspout.state._head import Head
from waterspout.state._header import StoreHeader
from waterspout.state._records import RecordTexts, encode_record, hashed_name
from waterspout.state._store import StoreState, require_package
from waterspout.state.memcached._wire import Command, Item, Server

__all__ = ["MemcachedMap", "MemcachedState"]

_SUMMED = ("format", "head", "id", "kind", "layout", "spread")
_NAME_MAX_BYTES = 250
_PORT = 11211
_PREFIX = re.compile(r"[A-Za-z0-9._/:-]{1,100}")
_SAFE = re.compile(r"[!-~]+")
_TOKENS_MAX = 200_000
_MONTH_SECS = 30 * 24 * 3600  # what is longer, memcached takes for a date


class _Slot(NamedTuple):
    """Where a key is kept: on which server, under which name, and what stands before its record."""

    server: int
    name: bytes
    before: bytes


@dataclass(frozen=True, slots=True)
class _Placed:
    """The item at `prefix:head`. `spread` is 0 until all sentinels are there."""

    head: Head
    id: str
    spread: int
    token: bytes = b""


class MemcachedMap(ComparingMap[Any]):
    """The records of one state on one or several servers, each key on one of them."""

    def __init__(
        self, servers: Sequence[Server], prefix: str, kind: StateKind, layout: str, expire_secs: int
    ) -> None:
        self.title = _title(prefix, [server.name for server in servers])
        self._servers = servers
        self._prefix = prefix
        self._kind = kind
        self._texts = RecordTexts(kind, self.title)
        self._header = StoreHeader(self.title, "prefix", kind.value, layout, _SUMMED)
        self._expire_secs = expire_secs
        self._head_name = f"{prefix}:head".encode()
        self._sentinel_name = f"{prefix}:sentinel".encode()
        # What `multi_get` saw: a write that follows need not ask again.
        self._seen: dict[bytes, Item] = {}

    @property
    def forgets(self) -> bool:
        return self._expire_secs > 0

    def multi_get(self, keys: Keys) -> list[Any | None]:
        slots = [self._slot(key) for key in keys]
        found = self._fetch(slots)
        return [
            None if (item := found.get(slot.name)) is None else self._decode(key, slot, item)
            for key, slot in zip(keys, slots, strict=True)
        ]

    def multi_put(self, keys: Keys, values: Records) -> None:
        expire = self._expire()
        todo = [
            (slot.server, Command("set", slot.name, slot.before + data, b"", expire))
            for slot, data in self._encoded(keys, values)
        ]
        if not all(self._store(todo)):
            raise StoreError(f"{self.title} did not store what it was told to")

    def multi_compare_and_put(self, keys: Keys, read: Records, values: Records) -> list[bool]:
        """Store each record if nobody has since the other was read.

        The server compares the token it gave with the record. Only where this map has not read
        the record itself (a cache has it), it is read again, and compared with `read`.
        """
        pairs = self._encoded(keys, values)
        slots = [slot for slot, _ in pairs]
        expected = [None if record is None else self._text(record) for record in read]
        known = self._known(slots, expected)
        expire = self._expire()
        todo: list[tuple[int, Command]] = []
        chosen: list[int] = []
        for i, ((slot, data), text) in enumerate(zip(pairs, expected, strict=True)):
            seen = known.get(slot.name)
            if text is None:
                command = Command("add", slot.name, slot.before + data, b"", expire)
            elif seen is not None and seen.data == slot.before + text:
                command = Command("cas", slot.name, slot.before + data, seen.token, expire)
            else:
                continue
            todo.append((slot.server, command))
            chosen.append(i)
        stored = [False] * len(keys)
        for i, done in zip(chosen, self._store(todo), strict=True):
            stored[i] = done
        return stored

    def read_head(self) -> Head | None:
        header = self._stored_header()
        return None if header is None else header.head

    def move_head(self, expected: Head | None, new: Head) -> None:
        """Replace the head if it is the expected one, and keep the sentinels from eviction."""
        header = self._stored_header()
        if (None if header is None else header.head) != expected:
            raise self._header.moved(new)
        self._seen.clear()
        several = len(self._servers) > 1
        if header is None:
            first = _Placed(new, uuid.uuid4().hex, 0 if several else 1)
            self._store_header(first, "add")
            if not several:
                return
            # Sentinels after the head: without one they would look like a server that was wiped.
            header = self._stored_header()
            if header is None or header.head != new:
                raise self._header.moved(new)
        if several:
            self._keep_sentinels(header)
        moved = _Placed(new, header.id, len(self._servers), header.token)
        self._store_header(moved, "cas")

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, Any]]]:
        raise StoreError("memcached cannot list its keys")

    def close(self) -> None:
        """Forget what was read; the connections stay for other states of this process."""
        self._seen.clear()

    def _slot(self, key: Key) -> _Slot:
        text = encode_key(key)
        name, before = f"{self._prefix}:{text}", b""
        if len(name) > _NAME_MAX_BYTES or not _SAFE.fullmatch(name):
            name = f"{self._prefix}:{hashed_name(text)}"
            before = text.encode() + b"\n"
        encoded = name.encode()
        spread = len(self._servers)
        return _Slot(zlib.crc32(encoded) % spread if spread > 1 else 0, encoded, before)

    def _fetch(self, slots: Sequence[_Slot]) -> dict[bytes, Item]:
        wanted: dict[int, dict[bytes, None]] = {}
        for slot in slots:
            wanted.setdefault(slot.server, {})[slot.name] = None
        found: dict[bytes, Item] = {}
        for server, names in wanted.items():
            found |= self._servers[server].gets(list(names))
        if len(self._seen) + len(found) > _TOKENS_MAX:
            self._seen.clear()
        for names in wanted.values():
            for name in names:
                self._seen.pop(name, None)
        self._seen |= found
        return found

    def _known(self, slots: Sequence[_Slot], expected: Sequence[bytes | None]) -> dict[bytes, Item]:
        """Return the items that were expected, as this map has read them or reads them now."""
        known: dict[bytes, Item] = {}
        unknown: list[_Slot] = []
        for slot, text in zip(slots, expected, strict=True):
            seen = None if text is None else self._seen.get(slot.name)
            if seen is not None and text is not None and seen.data == slot.before + text:
                known[slot.name] = seen
            elif text is not None:
                unknown.append(slot)
        return known | self._fetch(unknown)

    def _store(self, todo: Sequence[tuple[int, Command]]) -> list[bool]:
        by_server: dict[int, list[int]] = {}
        for i, (server, _) in enumerate(todo):
            by_server.setdefault(server, []).append(i)
        for server, chosen in by_server.items():
            # Checked before the first write to any server.
            large = self._servers[server].refuse_large([todo[i][1] for i in chosen])
            if large is not None:
                raise SerdeError(
                    f"{self.title} cannot hold {large.name.decode()!r}: {len(large.data)} bytes "
                    f"are more than memcached server {self._servers[server].name} takes as one "
                    f"item (its option -I; now {self._servers[server].item_limit()})"
                )
        stored = [False] * len(todo)
        for server, chosen in by_server.items():
            commands = [todo[i][1] for i in chosen]
            for command in commands:
                self._seen.pop(command.name, None)
            done = self._servers[server].store(commands)
            for i, ok in zip(chosen, done, strict=True):
                stored[i] = ok
        return stored

    def _encoded(self, keys: Keys, values: Records) -> list[tuple[_Slot, bytes]]:
        # All are encoded before any is written.
        return [
            (self._slot(key), self._text(record)) for key, record in zip(keys, values, strict=True)
        ]

    def _text(self, record: Any) -> bytes:
        return encode_record(self._kind, record).encode("ascii")

    def _decode(self, key: Key, slot: _Slot, item: Item) -> Any:
        if not item.data.startswith(slot.before):
            raise DamagedStoreError(
                f"{self.title}: under the hash of key {_short(key)} stands another key, or none. "
                "Two keys share a hash, or someone else writes there; use another prefix."
            )
        return self._texts.decode(key, item.data[len(slot.before) :])

    def risk(self) -> Risk | None:
        evicting = [server.name for server in self._servers if server.evicts()]
        if not evicting:
            return None
        return Risk(
            f"memcached at {', '.join(evicting)} evicts keys when its memory is full, and they "
            "start anew, as if they had never been counted",
            "Start it with -M, so that it refuses instead",
        )

    def _expire(self) -> int:
        if self._expire_secs <= _MONTH_SECS:
            return self._expire_secs
        return int(time.time()) + self._expire_secs

    def _stored_header(self) -> _Placed | None:
        names = [self._head_name]
        if len(self._servers) > 1:
            names.append(self._sentinel_name)
        found = [server.gets(names) for server in self._servers]
        item = found[0].get(self._head_name)
        if item is None:
            self._refuse_headless(found)
            return None
        header = self._parse_header(item)
        if header.spread not in (0, len(self._servers)):
            raise ForeignStoreError(
                f"{self.title} was written over {header.spread} servers; with "
                f"{len(self._servers)} its keys would be looked for on other servers. Give the "
                "same servers in the same order, or use another prefix."
            )
        if header.spread > 1:
            self._refuse_wiped(header, found)
        return header

    def _refuse_headless(self, found: Sequence[Mapping[bytes, Item]]) -> None:
        for server, items in zip(self._servers, found, strict=True):
            if items:
                raise StateMismatchError(
                    f"{self.title}: memcached server {self._servers[0].name} has no head, but "
                    f"{server.name} holds a part of the state. The first was wiped or has "
                    "evicted it, or the servers are not in the order they were. Give them in "
                    "that order, or flush all of them and start over."
                )

    def _refuse_wiped(self, header: _Placed, found: Sequence[Mapping[bytes, Item]]) -> None:
        for i, items in enumerate(found):
            item = items.get(self._sentinel_name)
            if item is None:
                raise self._wiped(i)
            if item.data != self._sentinel(header.id, i):
                raise StateMismatchError(
                    f"{self.title}: memcached server {self._servers[i].name} holds the part of "
                    "another state, or of another server of this one. Give the servers in the "
                    "order they were, or flush all of them and start over."
                )

    def _wiped(self, server: int) -> StateMismatchError:
        return StateMismatchError(
            f"{self.title}: memcached server {self._servers[server].name} was wiped or has begun "
            "to evict: its sentinel is gone, and so may be records. Flush all servers and start "
            "over by removing the topology's folder under the waterspout home."
        )

    def _keep_sentinels(self, header: _Placed) -> None:
        for i, server in enumerate(self._servers):
            if header.spread:
                if not server.touch(self._sentinel_name):
                    raise self._wiped(i)
            else:
                server.store([Command("set", self._sentinel_name, self._sentinel(header.id, i))])

    def _sentinel(self, id: str, server: int) -> bytes:
        return encode_value([id, server, len(self._servers)]).encode("ascii")

    def _store_header(self, placed: _Placed, verb: str) -> None:
        data = self._header_data(placed)
        command = Command(verb, self._head_name, data, placed.token)
        (stored,) = self._servers[0].store([command])
        if not stored:
            raise self._header.moved(placed.head)

    def _header_data(self, placed: _Placed) -> bytes:
        fields = self._header.fields(placed.head, id=placed.id, spread=placed.spread)
        return encode_value(fields).encode("ascii")

    def _parse_header(self, item: Item) -> _Placed:
        try:
            fields = decode_value(item.data.decode("ascii"))
            head = self._header.opened(fields)
        except (ValueError, TypeError, KeyError) as error:
            raise self._header.foreign(f"{self._head_name.decode()!r} of {self.title}") from error
        assert head is not None
        return _Placed(head, fields["id"], fields["spread"], item.token)


@dataclass(frozen=True)
class MemcachedState(StoreState):
    """Recipe of a state on memcached servers.

    Args:
        servers: `"host:port"`, a `(host, port)`, or a list of them. The keys are spread over all
            of them, for the life of the state: same servers, same order.
        prefix: What the names of all its items begin with.
        expire_secs: Forget a key that was not written for so long; 0 for never.
        timeout_secs: How long to wait for an answer before the server counts as down.
        connect_timeout_secs: How long to wait for a connection.
        username: Who logs in, if the servers have a file of users (`memcached -Y`); `${NAME}` is
            taken from the environment. SASL, which needs the binary protocol, is not supported.
        password: Likewise. It is never shown.
        tls: Encrypt, and check the servers' certificates; None: neither.
    """

    servers: str | tuple[str, int] | Sequence[str | tuple[str, int]]
    prefix: str
    expire_secs: int = 0
    timeout_secs: float = 10.0
    connect_timeout_secs: float = 5.0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TLS | None = None

    backend = "memcached"
    fenced = True
    weakness = (
        "memcached keeps nothing on disk: a restart loses the state, which is noticed at the next "
        "batch. When its memory is full it evicts keys, which is not noticed and loses their "
        "counts: give it memory enough, or start it with -M, so that it refuses instead. Its "
        "fence is per key: the write of a lost attempt can reach a key that nobody has written "
        "since, and is told apart by every reader of waterspout, but not by other clients"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_package("pymemcache", "pymemcache", "memcached")
        object.__setattr__(self, "servers", _addresses(self.servers))
        if not isinstance(self.prefix, str) or not _PREFIX.fullmatch(self.prefix):
            raise ConfigError(
                f"{self.prefix!r} cannot be a prefix; use letters, digits and . _ / : - (at most "
                "100)"
            )
        expire: Any = self.expire_secs
        if isinstance(expire, bool) or not isinstance(expire, int) or expire < 0:
            raise ConfigError(f"expire_secs is a number of seconds, 0 for never, not {expire!r}")
        self._require_seconds("timeout_secs", "connect_timeout_secs")

    @property
    def title(self) -> str:
        return _title(self.prefix, self._names)

    def backing(self) -> MemcachedMap:
        timeouts = self.connect_timeout_secs, self.timeout_secs
        servers = [
            Server(host, port, *timeouts, self.username, self.password, self.tls)
            for host, port in _addresses(self.servers)
        ]
        layout = self.columns.describe()
        return MemcachedMap(servers, self.prefix, self.kind, layout, self.expire_secs)

    def within(self) -> Mapping[str, Any]:
        # The number of servers decides which of them has a key, so it must not change.
        return {"prefix": self.prefix, "servers": len(self._names)}

    def location(self) -> str:
        return f"memcached:{','.join(self._names)}#{self.prefix}"

    @property
    def _names(self) -> list[str]:
        return [f"{host}:{port}" for host, port in _addresses(self.servers)]


def _addresses(servers: Any) -> tuple[tuple[str, int], ...]:
    found = addresses(servers, port=_PORT, what="memcached server")
    if len(set(found)) != len(found):
        raise ConfigError(f"a memcached server stands twice in {servers!r}")
    return found


def _title(prefix: str, servers: Sequence[str]) -> str:
    return f"memcached state {prefix!r} at {', '.join(servers)}"


def _short(key: Key) -> str:
    text = repr(tuple(key))
    return text if len(text) <= 200 else f"{text[:200]}..."
