"""Writes of a batch under a header that the server watches.

    WATCH head   HMGET head state fence ...   MGET ...        what is there, and may this attempt?
    MULTI   MSET ...   EXEC                                    refused if the header has changed

`EXEC` does nothing if anybody has touched the header since `WATCH`: so a write is carried out only
under the header that was looked at, as if a script had compared it. Whoever moves the head touches
the header; so does whoever amends records outside of any batch (`AMENDED`), so that what was read
here is also what is written over. Tasks of the same attempt do not touch it, and are not in each
other's way.

Chunks overlap: while the server writes one, the next is made here, and the one after it is read. A
later chunk goes by what was seen at first: the header must still be the same before each `EXEC`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from waterspout.errors import StoreError
from waterspout.state._head import Head, Stamp
from waterspout.state.redis._chunks import Chunk
from waterspout.state.redis._client import LentConnection, RedisClient, require_library
from waterspout.state.redis._header import AMENDED, Headers, fence_of
from waterspout.state.redis._wire import as_column, command, commands, framed

__all__ = ["Make", "SlotRecords", "Watched"]

_TRIES = 100
_MULTI, _EXEC, _UNWATCH = command(["MULTI"]), command(["EXEC"]), command(["UNWATCH"])

Make = Callable[[Chunk, Sequence[bytes | None], Head], pa.Array | None]
"""Makes the texts to be stored of a chunk and of what was found there; None: not in this way."""


class _HeaderChanged(Exception):
    """The header is not what it was: only the first `done` chunks are dealt with, less `left`."""

    def __init__(self, done: int, left: Sequence[Chunk]) -> None:
        self.done = done
        self.left = left


@dataclass(frozen=True)
class SlotRecords:
    """Where the records of a slot are, and how they are read and written."""

    layout: str
    lead: str
    hash: str
    live_ms: int | None = None

    def framed(self, names: Sequence[str]) -> pa.Array:
        """Return the names of keys as words of commands."""
        return framed(as_column(names), self.lead)

    def reading(self, names: pa.Array) -> list[bytes]:
        """Return the command that reads these keys."""
        return command(["HMGET", self.hash] if self.layout == "hash" else ["MGET"], names)

    def writing(self, names: pa.Array, texts: pa.Array) -> tuple[list[bytes], int]:
        """Return what stores these texts, and how many commands that is."""
        words = framed(texts)
        if self.layout == "hash":
            return command(["HSET", self.hash], names, words), 1
        if self.live_ms is None:
            return command(["MSET"], names, words), 1
        return commands(["SET"], [names, words], ["PX", str(self.live_ms)]), len(names)


class Watched:
    """The writes of one attempt to one slot.

    `explain` gives the error where the header refuses the attempt. `reads`: whether what is
    there is read first, for `make`.
    """

    def __init__(
        self,
        client: RedisClient,
        headers: Headers,
        slot: int,
        stamp: Stamp,
        place: SlotRecords,
        make: Make,
        explain: Callable[[], Exception],
        *,
        reads: bool,
    ) -> None:
        self._client = client
        self._key = headers.key(slot)
        self._wanted = [headers.state.encode(), fence_of(stamp).encode()]
        self._place = place
        self._make = make
        self._explain = explain
        self._reads = reads
        self._title = headers.header.title
        self._look = command(["WATCH", self._key]) + command(
            ["HMGET", self._key, "state", "fence", "head", AMENDED]
        )

    def write(self, chunks: Sequence[Chunk], *, again: bool) -> list[Chunk]:
        """Write all chunks; return those of which `make` gave nothing.

        `again`: whether a chunk may be written twice, because its answer was lost.
        """
        todo = list(chunks)
        left: list[Chunk] = []
        lost, redis = False, require_library()
        for _ in range(_TRIES):
            try:
                with self._client.errors():
                    try:
                        with self._client.session(self._key) as session:
                            return left + self._pass(session, todo)
                    except redis.exceptions.ConnectionError:
                        self._client.look_around()
                        if lost or not again:
                            raise
                        lost = True
                    except redis.exceptions.MovedError:
                        self._client.look_around()
            except _HeaderChanged as changed:
                todo = todo[changed.done :]
                left += changed.left
        raise StoreError(f"{self._title}: these keys change faster than they can be updated")

    def _pass(self, session: LentConnection, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Write chunk after chunk, until one finds that the header has changed."""
        # Names are framed two chunks ahead, while the server works.
        names = [self._place.framed(chunk.names) for chunk in chunks[:2]]
        session.send([*self._look, *self._reading(names)])
        seen = self._fields(session)
        if seen[:2] != self._wanted:
            raise self._explain()
        left: list[Chunk] = []
        head = Head.from_text((seen[2] or b"").decode())
        pending = 0  # how many commands there are in the transaction that is not answered yet
        for i, chunk in enumerate(chunks):
            names += [self._place.framed(chunk.names) for chunk in chunks[len(names) : i + 3]]
            found = session.read() if self._reads else ()
            texts = self._make(chunk, found, head)
            if pending:
                if not session.was_done(pending):
                    raise _HeaderChanged(i - 1, left)
                pending = 0
                if self._fields(session) != seen:
                    raise _HeaderChanged(i, left)
            following = self._reading(names[i + 2 : i + 3])
            if texts is None:
                left.append(chunk)
                session.send(following)
                continue
            sent, pending = self._place.writing(names[i], texts)
            look = self._look if i + 1 < len(chunks) else []
            session.send([*_MULTI, *sent, *_EXEC, *look, *following])
        if not pending:
            session.send(_UNWATCH)
            session.read()
        elif not session.was_done(pending):
            raise _HeaderChanged(len(chunks) - 1, left)
        return left

    def _reading(self, names: Sequence[pa.Array]) -> list[bytes]:
        return [part for some in names for part in self._place.reading(some)] if self._reads else []

    def _fields(self, session: LentConnection) -> list[bytes | None]:
        """Return what the header has, which is watched from now on."""
        session.read()  # of the WATCH
        return list(session.read())
