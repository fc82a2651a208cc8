"""Reading pinned ranges of a Kafka, as messages or by column. No Spark in here.

A range is read to its end, whatever stands in it: offsets may have gaps, of aborted transactions,
of their marks, and of messages that compaction has taken away. Who reads less than the range says
so with an error: that a broker is away, or that messages are lost.
"""

from __future__ import annotations

import json
import logging
import time
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from waterspout._arrow import arrow_type
from waterspout._kafka_servers import BorrowedConsumer, KafkaServers, require_confluent_kafka
from waterspout._schema import Schema
from waterspout.errors import DataLossError, OutageError
from waterspout.spouts._reads import POSITION, KafkaRange, KafkaRead
from waterspout.transactional._away import away_error

__all__ = [
    "COLUMNS",
    "RangeReader",
    "letter_position",
    "message_position",
    "place_name",
    "read_columns",
    "shares_of",
]

log = logging.getLogger(__name__)

COLUMNS = Schema.parse(
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
"""The fields of a message, as Spark's own reader of Kafka has them.

Headers are a list of pairs and not a map: a key may come twice, and their order counts.
"""

_CHUNK = 10_000
"""How many rows go into one batch of Arrow data."""

_WAIT_S = 0.1
_LOOK_S = 0.5
_SURE_S = 3.0
"""How long something must be so to count as lost: a broker that has just started may be behind."""


def place_name(topic: str, partition: int) -> str:
    """Return a partition as it is named in errors, without a space."""
    return f"{topic}/{partition}"


def message_position(topic: str, partition: int, offset: int) -> str:
    """Return where a message stands, for people."""
    return f"topic {topic}, partition {partition}, offset {offset}"


def shares_of(ranges: Sequence[KafkaRange], tasks: int) -> list[list[KafkaRange]]:
    """Deal ranges out to tasks, so that each has about as many offsets as the others.

    >>> shares_of([("a", 0, 0, 9), ("a", 1, 0, 4), ("a", 2, 0, 5)], 2)
    [[('a', 0, 0, 9)], [('a', 2, 0, 5), ('a', 1, 0, 4)]]
    """
    shares: list[list[KafkaRange]] = [[] for _ in range(tasks)]
    sizes = [0] * tasks
    for each in sorted(ranges, key=lambda r: r[2] - r[3]):
        least = sizes.index(min(sizes))
        shares[least].append(each)
        sizes[least] += each[3] - each[2]
    return shares


@dataclass(slots=True)
class _Stall:
    """A range that does not go on: since when, and what was found out about it."""

    since: float
    looked: float
    short_since: float | None = None
    """Since when its topic is unknown, or ends before the range does."""
    short: str = ""


class RangeReader:
    """Reads ranges, one after the other, with one consumer."""

    def __init__(
        self,
        servers: KafkaServers,
        lent: BorrowedConsumer,
        *,
        skips_lost: bool = False,
        timeout_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kafka = require_confluent_kafka()
        self._servers = servers
        self._consumer = lent.consumer
        self._errors = lent.errors
        self._skips_lost = skips_lost
        self._timeout_s = timeout_s
        self._clock = clock

    def messages(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[Any]]:
        """Yield the messages of a range, in order, some at a time."""
        at = start
        self._assign(topic, partition, at)
        stall = self._stalled()
        while at < end:
            found, marks = self._polled(end - at)
            if found:
                found = self._within(found, at, end)
                if found:
                    at = found[-1].offset() + 1
                    yield found
                else:
                    at = end
                stall = self._stalled()
            for mark in marks:
                at = self._passed(mark, topic, partition, at, end, stall)
            if not found and at < end:
                self._look(stall, topic, partition, at, end)

    def _stalled(self) -> _Stall:
        now = self._clock()
        return _Stall(now, now)

    def _assign(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.assign([self._kafka.TopicPartition(topic, partition, offset)])

    def _polled(self, room: int) -> tuple[list[Any], list[Any]]:
        """Return messages, and beside them what is no message; wait a moment where there is none.

        More than the first is taken only if it is there: who asks for many at once waits for all.
        """
        first = self._consumer.consume(1, _WAIT_S)
        if not first:
            return [], []
        more = self._consumer.consume(min(room, _CHUNK), 0) if room > 1 else []
        found = first + more
        if not any(map(self._kafka.Message.error, found)):
            return found, []
        marks = [message for message in found if message.error() is not None]
        return [message for message in found if message.error() is None], marks

    def _within(self, found: list[Any], at: int, end: int) -> list[Any]:
        """Return those of some messages, in order, that are in the range."""
        if found[0].offset() < at or found[-1].offset() >= end:
            offsets = list(map(self._kafka.Message.offset, found))
            return found[bisect_left(offsets, at) : bisect_left(offsets, end)]
        return found

    def _passed(
        self, mark: Any, topic: str, partition: int, at: int, end: int, stall: _Stall
    ) -> int:
        """Return where a range goes on behind something that is no message."""
        error, code = mark.error(), mark.error().code()
        kafka = self._kafka.KafkaError
        if code == kafka._PARTITION_EOF:
            if mark.offset() >= end:
                return end  # only marks of transactions, or nothing, from here to the end
            self._short(stall, f"it ends at offset {mark.offset()}")
            return at
        if code in (kafka._AUTO_OFFSET_RESET, kafka.OFFSET_OUT_OF_RANGE):
            return self._overtaken(topic, partition, at, end, stall)
        if code in (kafka.UNKNOWN_TOPIC_OR_PART, kafka._UNKNOWN_TOPIC, kafka._UNKNOWN_PARTITION):
            self._short(stall, "nobody knows it")
            return at
        if code == kafka.TOPIC_AUTHORIZATION_FAILED:
            said = self._servers.secrets.hidden(error.str())
            raise DataLossError(f"the topic {topic!r} may no longer be read: {said}")
        self._errors.note(error)
        return at

    def _overtaken(self, topic: str, partition: int, at: int, end: int, stall: _Stall) -> int:
        """Go on, or not, where the offset that is wanted is not there."""
        place = self._kafka.TopicPartition(topic, partition)
        try:
            found = self._consumer.get_watermark_offsets(place, timeout=self._timeout_s)
            begin, last = map(int, found)
        except self._kafka.KafkaException as error:
            raise self._servers.away(error.args[0].str()) from None
        if begin < 0 or last < 0:
            raise self._servers.away(f"{place_name(topic, partition)}: nobody says where it begins")
        if begin <= at:
            if at > last:
                self._short(stall, f"it ends at offset {last}")
            self._assign(topic, partition, at)
            return at
        lost = min(begin, end) - at
        what = (
            f"partition {partition} of topic {topic!r} no longer has offsets {at} to "
            f"{min(begin, end) - 1}, which belong to a batch: its retention has overtaken us"
        )
        if not self._skips_lost:
            raise DataLossError(
                f"{what}. Nothing of the batch was committed. To go on without these {lost} "
                'offsets, and have them counted, say on_data_loss="skip".'
            )
        log.warning("%s; they are skipped: %d offsets", what, lost)
        if begin < end:
            self._assign(topic, partition, begin)
        return min(begin, end)

    def _short(self, stall: _Stall, why: str) -> None:
        stall.short = why
        if stall.short_since is None:
            stall.short_since = self._clock()

    def _look(self, stall: _Stall, topic: str, partition: int, at: int, end: int) -> None:
        """Find out why nothing comes; raise if that will not change soon."""
        now = self._clock()
        if now - stall.looked < _LOOK_S:
            return
        stall.looked = now
        why = self._why_nothing(topic, partition, stall)
        if stall.short_since is not None and now - stall.short_since >= _SURE_S:
            raise DataLossError(
                f"partition {partition} of topic {topic!r} cannot be read from offset {at} to "
                f"{end}, as a batch has to: {stall.short}. The topic was deleted, made anew or cut "
                "short. Nothing of the batch was committed."
            )
        if why and stall.short_since is None:
            raise self._servers.away(f"{place_name(topic, partition)}: {why}")
        if now - stall.since >= self._timeout_s and stall.short_since is None:
            said = self._errors.last or "nothing comes"
            raise self._servers.away(f"{place_name(topic, partition)}: {said}")

    def _why_nothing(self, topic: str, partition: int, stall: _Stall) -> str:
        """Return what the cluster says of a partition that gives nothing; "" if all is well."""
        try:
            found = self._consumer.list_topics(topic, timeout=_LOOK_S * 2)
        except self._kafka.KafkaException as error:
            return str(self._errors.last or error.args[0].str())
        there = found.topics.get(topic)
        known = there is not None and partition in there.partitions
        if not known:
            self._short(stall, "nobody knows it")
        elif there.partitions[partition].leader < 0:
            return "it has no leader at the moment"
        return ""


def read_columns(
    read: KafkaRead, ranges: Sequence[KafkaRange], names: Sequence[str], *, with_position: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges as Arrow data with these columns of Kafka's.

    With position: and last, where each message stands.
    """
    if not ranges:
        return
    builder = _Columns(names, with_position=with_position)
    with read.servers.borrowed() as lent:
        reader = RangeReader(
            read.servers, lent, skips_lost=read.skips_lost, timeout_s=read.timeout_s
        )
        for each in ranges:
            try:
                yield from _chunks(reader, each, builder)
            except OutageError as error:
                if not read.is_opaque:
                    raise
                # Told to the planner, which leaves this partition out of the next attempt.
                raise away_error(read.spout_id, place_name(each[0], each[1]), str(error)) from error


def _chunks(reader: RangeReader, each: KafkaRange, builder: _Columns) -> Iterator[pa.RecordBatch]:
    gathered: list[Any] = []
    for some in reader.messages(*each):
        gathered += some
        if len(gathered) >= _CHUNK:
            yield builder.batch(each[0], each[1], gathered)
            gathered = []
    if gathered:
        yield builder.batch(each[0], each[1], gathered)


class _Columns:
    """Makes columns of messages that all are of one partition."""

    def __init__(self, names: Sequence[str], *, with_position: bool) -> None:
        self._message = require_confluent_kafka().Message
        self._with_position = with_position
        kinds = [(name, arrow_type(COLUMNS.type_of(name) or "")) for name in names]
        more = [(POSITION, pa.string())] if with_position else []
        self._schema = pa.schema([*kinds, *more])
        self._makers: Mapping[str, Callable[[str, int, list[Any], pa.DataType], pa.Array]] = {
            "key": lambda t, p, found, kind: pa.array(map(self._message.key, found), kind),
            "value": lambda t, p, found, kind: pa.array(map(self._message.value, found), kind),
            "topic": lambda t, p, found, kind: pa.repeat(pa.scalar(t, kind), len(found)),
            "partition": lambda t, p, found, kind: pa.repeat(pa.scalar(p, kind), len(found)),
            "offset": lambda t, p, found, kind: pa.array(self._offsets(found), kind),
            "timestamp": lambda t, p, found, kind: self._times(found, kind),
            "headers": lambda t, p, found, kind: self._headers(found, kind),
        }

    def batch(self, topic: str, partition: int, found: list[Any]) -> pa.RecordBatch:
        """Return messages as one batch."""
        kinds = [(f.name, f.type) for f in self._schema if f.name != POSITION]
        arrays = [self._makers[name](topic, partition, found, kind) for name, kind in kinds]
        if self._with_position:
            offsets = self._offsets(found).tolist()
            positions = [message_position(topic, partition, offset) for offset in offsets]
            arrays.append(pa.array(positions, pa.string()))
        if not arrays:  # nobody reads a column, but how many rows there are counts
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(found), pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _offsets(self, found: list[Any]) -> Any:
        first, last = found[0].offset(), found[-1].offset()
        if last - first + 1 == len(found):
            return np.arange(first, last + 1)
        return np.fromiter(map(self._message.offset, found), np.int64, len(found))

    def _times(self, found: list[Any], kind: pa.DataType) -> pa.Array:
        stamps = map(itemgetter(1), map(self._message.timestamp, found))
        ms = np.fromiter(stamps, np.int64, len(found))
        # A message without a time has a negative one.
        return pa.array(ms * 1000, pa.int64(), mask=ms < 0).cast(kind)

    def _headers(self, found: list[Any], kind: pa.DataType) -> pa.Array:
        given = list(map(self._message.headers, found))
        if given.count(None) == len(given):
            return pa.nulls(len(given), kind)
        rows = [h and [{"key": key, "value": _bytes(v)} for key, v in h] for h in given]
        return pa.array(rows, kind)


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def letter_position(message: Mapping[str, Any]) -> str:
    """Return, as text, all of a message but its value: what its letter must keep to be replayed."""
    when, headers = message["timestamp"], message["headers"]
    return json.dumps(
        {
            "topic": message["topic"],
            "partition": message["partition"],
            "offset": message["offset"],
            "timestamp": None if when is None else when.isoformat(),
            "key": _base64(message["key"]),
            "headers": headers
            and [{"key": each["key"], "value": _base64(each["value"])} for each in headers],
        }
    )


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()
