"""Redis streams, read by ranges of ids: the same entries in every attempt, or those that are there.

A stream is a partition. The driver asks the server where a batch ends, which moves no entry; the
entries are read by tasks.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from waterspout._addresses import check_url, shown
from waterspout._schema import WHOLE, FieldNames, Schema
from waterspout.errors import (
    DataLossError,
    FailedException,
    ForeignStoreError,
    MalformedRowError,
    SourceError,
    TopologyError,
)
from waterspout.spouts._redis_ranges import (
    NOTHING,
    Range,
    StreamSight,
    lost_entries,
    next_range,
)
from waterspout.state.redis._client import Call, RedisClient, require_library
from waterspout.state.redis._scripts import Script
from waterspout.topology._component import Component
from waterspout.topology._context import TopologyContext
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._bolts import BatchCollector
from waterspout.transactional._spouts import (
    OpaqueEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedTransactionalSpout,
    PartitionEmitter,
)

__all__ = ["OpaqueRedisStreamSpout", "TransactionalRedisStreamSpout"]

log = logging.getLogger(__name__)

_CHUNK = 1000
_ID = re.compile(r"\d+(-\d+)?")
_PLAIN = Schema((("stream", "string"), ("id", "string"), ("fields", "string")))
_BEGINS = ("earliest", "latest")

# All of it at one moment. ARGV: the id to begin behind, and how many entries at most.
_LOOK = Script("""
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local told = redis.call('XINFO', 'STREAM', KEYS[1])
local info = {}
for i = 1, #told, 2 do info[told[i]] = told[i + 1] end
if not info['entries-added'] then return {'old'} end
local found, until_id = 0, ''
if tonumber(ARGV[2]) > 0 then
  local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
  found = #entries
  if found > 0 then until_id = entries[found][1] end
end
return {info['length'], info['entries-added'], info['last-generated-id'], found, until_id}
""")

# How many entries are there up to an id; a part at a time, so that nobody waits for long.
_COUNT = Script("""
local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[2], 'COUNT', ARGV[3])
if #entries == 0 then return {0, ''} end
return {#entries, entries[#entries][1]}
""")


class _RedisStreams(Component):
    """What both kinds have in common: a recipe, which travels."""

    read_on_executors = True
    stream_keys: tuple[str, ...]

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        schema: FieldNames | Schema | None = None,
        *,
        start: str = "earliest",
        max_entries: int = 10_000,
        on_loss: str = "stop",
        cluster: bool = False,
        timeout_secs: float = 5.0,
    ) -> None:
        require_library()
        check_url(url, f"URL of a {type(self).__name__}")
        self._url = url
        self.stream_keys = (streams,) if isinstance(streams, str) else tuple(streams)
        self._refuse_bad(start, max_entries, on_loss, timeout_secs)
        self._own = None if schema is None else Schema.parse(schema).require_types(where=repr(self))
        for name, kind in () if self._own is None else self._own.fields:
            _parser(str(kind), f"{type(self).__name__}: field {name!r}")
        rest = _PLAIN.fields[2:] if self._own is None else self._own.fields
        self.schema = Schema((*_PLAIN.fields[:2], *rest))
        self.output_fields = ("tx", *self.schema.names)
        self.start = start
        self.max_entries = max_entries
        self.skips = on_loss == "skip"
        self._client = RedisClient(url, repr(self), timeout_secs, cluster)

    def _refuse_bad(self, start: str, max_entries: int, on_loss: str, timeout_secs: float) -> None:
        name = type(self).__name__
        if not self.stream_keys or not all(isinstance(s, str) and s for s in self.stream_keys):
            raise TopologyError(f"{name}: streams are the names of keys, not {self.stream_keys!r}")
        if len({*self.stream_keys}) < len(self.stream_keys):
            raise TopologyError(f"{name}: a stream is named twice in {self.stream_keys!r}")
        if start not in _BEGINS and not (isinstance(start, str) and _ID.fullmatch(start)):
            raise TopologyError(
                f"{name}: start is 'earliest', 'latest' or the id of an entry to begin behind, "
                f"such as '1700000000000-0', not {start!r}"
            )
        if type(max_entries) is not int or max_entries < 1:
            raise TopologyError(f"{name}: max_entries is a number from 1 on, not {max_entries!r}")
        if on_loss not in ("stop", "skip"):
            raise TopologyError(f"{name}: on_loss is 'stop' or 'skip', not {on_loss!r}")
        if not isinstance(timeout_secs, int | float) or not timeout_secs > 0:
            raise TopologyError(f"{name}: timeout_secs is a number of seconds above 0")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self._url)!r}, {', '.join(self.stream_keys)})"

    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> _RedisRanges:
        return self.get_emitter(conf, context)

    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> _RedisRanges:
        opaque = isinstance(self, OpaqueRedisStreamSpout)
        return _RedisRanges(self._client, self, self._own, opaque=opaque)


class TransactionalRedisStreamSpout(_RedisStreams, PartitionedTransactionalSpout):
    """Emit the entries of Redis streams; a batch has the same entries in every attempt.

    Its range of ids is stored before it is read. While the server is away the run waits, and goes
    on by itself. Entries of a range that were trimmed or deleted meanwhile are an error, never
    other data: DataLossError.

    The fields are `stream`, `id`, and those of `schema`, taken from the entry's fields by name
    (null where it has none); without a schema `fields`, all of them as a JSON object of texts.

    Args:
        url: `redis://user:password@host:port/0`; `${NAME}` stands for a variable of the
            environment, of driver and executors.
        streams: The keys. Keep their order; new ones come last.
        schema: DDL of fields: strings, binary, numbers, decimals and booleans.
        start: Where a stream begins that was never read: "earliest", "latest", or an id.
        max_entries: How many entries of a stream a batch takes at most.
        on_loss: What to do where entries were trimmed before they were put into a batch: "stop",
            or "skip" and say how many.
        cluster: Whether the URL is that of a node of a Redis Cluster.
        timeout_secs: How long a server may take to answer.
    """


class OpaqueRedisStreamSpout(_RedisStreams, OpaquePartitionedTransactionalSpout):
    """Emit the entries of Redis streams; an attempt at a batch has what can be reached then.

    Streams whose node is away are left out, and catch up later. For the arguments see
    `TransactionalRedisStreamSpout`. With `on_loss="skip"`, what is trimmed while it is read is
    passed over by the next attempt.
    """


class _RedisRanges(PartitionCoordinator, PartitionEmitter, OpaqueEmitter):
    """Coordinator and emitter of both spouts."""

    def __init__(
        self, client: RedisClient, spout: _RedisStreams, own: Schema | None, *, opaque: bool
    ) -> None:
        self._client = client
        self._spout = spout
        self._opaque = opaque
        fields = () if own is None else own.fields
        self._parsers = [(name.encode(), name, _parser(str(kind), "")) for name, kind in fields]
        self._is_plain = own is None

    def num_partitions(self) -> int:
        return len(self._spout.stream_keys)

    def next_metadata(self, txid: int, partition: int, last: Any, target: int | None = None) -> Any:
        """Return the range behind `last`; `target`: how many entries it should have, about."""
        stream, spout = self._spout.stream_keys[partition], self._spout
        wanted = spout.max_entries if target is None else max(1, min(target, spout.max_entries))
        before = None if last is None else Range.of(last, stream)
        begin = self._begin(stream) if before is None else before
        sight = self._look(stream, begin.until, wanted)
        stores = spout.start != "earliest"
        found = next_range(before, sight, begin, stores=stores, skips=spout.skips)
        lost = 0 if found is None or sight is None else lost_entries(before, sight)
        if lost:
            log.warning("%r: %d entries of %r were lost, and are skipped", spout, lost, stream)
        return None if found is None else found.to_json()

    def lag(self, partition: int, last: Any) -> int:
        """Return how many entries are behind a range."""
        stream = self._spout.stream_keys[partition]
        sight = self._look(stream, NOTHING, 0)
        if sight is None:
            return 0
        if last is None:
            return 0 if self._spout.start == "latest" else sight.length
        return max(0, sight.added - max(Range.of(last, stream).added, sight.removed))

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: BatchCollector, partition: int, metadata: Any
    ) -> Any:
        """Emit the entries of a range: all of them, or raise."""
        stream = self._spout.stream_keys[partition]
        pinned = Range.of(metadata, stream)
        found = 0
        for id, fields in self._entries(pinned):
            found += 1
            collector.emit([attempt, stream, id, *self._values(stream, id, fields)])
        if found != pinned.entries:
            text = (
                f"{pinned.entries - found} of the {pinned.entries} entries of the Redis stream "
                f"{stream!r} behind {pinned.after} up to {pinned.until} are gone: they were "
                "trimmed or deleted after they were put into a batch."
            )
            if self._opaque and self._spout.skips:
                raise FailedException(f"{text} The next attempt goes on with what is there.")
            raise DataLossError(f"{text} `waterspout batch skip` goes on without the batch.")
        return metadata

    def _begin(self, stream: str) -> Range:
        """Return the position of a stream that was never read."""
        begin = Range(stream, NOTHING, NOTHING, 0, 0)
        start = self._spout.start
        sight = self._look(stream, NOTHING, 0)
        if sight is None:
            return begin
        match start:
            case "earliest":
                return replace(begin, added=sight.removed)
            case "latest":
                return replace(begin, after=sight.last, until=sight.last, added=sight.added)
        id = start if "-" in start else f"{start}-0"
        passed, at = 0, NOTHING
        while True:
            count, last = self._called(_COUNT, stream, at, id, _CHUNK)
            if not count:
                return replace(begin, after=id, until=id, added=sight.removed + passed)
            passed, at = passed + count, last.decode()

    def _look(self, stream: str, after: str, count: int) -> StreamSight | None:
        told = self._called(_LOOK, stream, after, count)
        if not told:
            return None
        if told == [b"old"]:
            raise SourceError(
                f"{self._spout!r} needs Redis 7 or newer: an older one does not tell how many "
                "entries a stream has ever had, so nobody could see that some are lost"
            )
        length, added, last, found, until = told
        return StreamSight(length, added, last.decode(), found, until.decode())

    def _entries(self, pinned: Range) -> Iterator[tuple[str, Mapping[bytes, bytes]]]:
        after = pinned.after
        while pinned.entries:
            words = ("XRANGE", pinned.stream, f"({after}", pinned.until, "COUNT", _CHUNK)
            entries = self._run(Call(pinned.stream, words))
            for id, fields in entries:
                after = id.decode()
                yield after, fields
            if len(entries) < _CHUNK:
                return

    def _called(self, script: Script, stream: str, *arguments: Any) -> Any:
        return self._run(Call(stream, arguments, script, (stream,)))

    def _run(self, call: Call) -> Any:
        try:
            return self._client.run([call], again=True)[0]
        except ForeignStoreError:
            raise SourceError(f"{self._spout!r}: the key {call.key!r} is no stream") from None

    def _values(self, stream: str, id: str, fields: Mapping[bytes, bytes]) -> list[Any]:
        name = "fields"
        try:
            if self._is_plain:
                plain = {key.decode(): value.decode() for key, value in fields.items()}
                return [json.dumps(plain, ensure_ascii=False)]
            values = []
            for key, name, parse in self._parsers:  # noqa: B007  (told in the error)
                given = fields.get(key)
                values.append(None if given is None else parse(given))
            return values
        except (ValueError, InvalidOperation) as error:
            raise MalformedRowError(
                f"entry {id} of the Redis stream {stream!r}: {name!r} cannot be read, "
                f"{type(error).__name__}: {str(error)[:200]}. Nothing of the batch was committed. "
                "Declare the field as string or binary, and take it apart behind the spout."
            ) from None


def _parser(kind: str, where: str) -> Any:
    """Return what makes a value of a type of bytes."""
    if kind in WHOLE:
        return lambda given: int(given)
    if kind.startswith("decimal"):
        return lambda given: Decimal(given.decode())
    parsers = {
        "string": bytes.decode,
        "binary": bytes,
        "double": float,
        "float": float,
        "boolean": _truth,
    }
    if kind not in parsers:
        raise TopologyError(
            f"{where} is {kind}: the values of a stream are texts, and become string, binary, "
            "numbers, decimals or booleans. Take it as a string, and make more of it behind the "
            "spout."
        )
    return parsers[kind]


def _truth(given: bytes) -> bool:
    known = {b"true": True, b"1": True, b"false": False, b"0": False}
    if given.lower() not in known:
        raise ValueError(f"{given!r} is neither true nor false")
    return known[given.lower()]
