"""Redis states: one key, or one field of a hash, per record, as JSON text.

    GET {word_counts:0}:k:["storm"]        ->  [7,0,42,40]

reads: batch 7, attempt 0, wrote 42 where 40 had been. A header, `{word_counts:0}:head`, holds
the head; every write is a transaction that the server carries out only while the header is what it
was when the writer looked at it (`_watched.py`), or a script that compares it in the same step. A
partition larger than a chunk is several of them, each of which checks the head: that is enough,
because a record says which attempt wrote it.

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

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from waterspout._addresses import check_url, shown
from waterspout.errors import ConfigError, TopologyError
from waterspout.state._store import StoreState
from waterspout.state.redis._client import require_library
from waterspout.state.redis._map import RedisMap

__all__ = ["RedisState"]

_LAYOUTS = ("string", "hash")
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")


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
