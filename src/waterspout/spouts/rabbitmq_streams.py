"""RabbitMQ streams, read by ranges of offsets: the same messages in every attempt.

Not for queues, which give a message once: `waterspout.spouts.rabbitmq` has the spout for those.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from waterspout._addresses import shown
from waterspout._schema import FieldNames, Schema
from waterspout._tls import TLS
from waterspout.errors import (
    DataLossError,
    FailedException,
    MalformedRowError,
    TopologyError,
)
from waterspout.spouts._amqp import (
    decoded,
    properties_of,
    refuse_bad_url,
    refuse_tls_of_plain,
    require_pika,
    text_body,
)
from waterspout.spouts._amqp_streams import (
    OffsetRange,
    StreamPlace,
    StreamTail,
    first_offset,
    messages_of,
)
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

__all__ = ["OpaqueRabbitMQStreamSpout", "TransactionalRabbitMQStreamSpout"]

log = logging.getLogger(__name__)

_BODY = Schema((("body", "string"),))
_FAR = 1 << 62
_CHECK_S = 5.0
"""How often it is looked whether the broker still keeps what comes next."""


class _RabbitMQStreams(Component):
    """What both kinds have in common: a recipe, which travels."""

    read_on_executors = True

    def __init__(
        self,
        url: str,
        queues: str | Sequence[str],
        *,
        fields: FieldNames | Schema | None = None,
        decode: Callable[[bytes, Mapping[str, Any]], Sequence[Any]] = text_body,
        start: str | int = "earliest",
        max_messages: int = 10_000,
        on_loss: str = "stop",
        tls: TLS | None = None,
        timeout_secs: float = 10.0,
    ) -> None:
        name = type(self).__name__
        require_pika()
        refuse_bad_url(url, name)
        refuse_tls_of_plain(url, tls)
        self.queues = (queues,) if isinstance(queues, str) else tuple(queues)
        if not self.queues or not all(isinstance(q, str) and q for q in self.queues):
            raise TopologyError(f"{name}: queues are the names of streams, not {self.queues!r}")
        if len({*self.queues}) < len(self.queues):
            raise TopologyError(f"{name}: a stream is named twice in {self.queues!r}")
        is_offset = type(start) is int and start >= 0
        if start not in ("earliest", "latest") and not is_offset:
            raise TopologyError(
                f"{name}: start is 'earliest', 'latest' or an offset, not {start!r}"
            )
        if type(max_messages) is not int or max_messages < 1:
            raise TopologyError(f"{name}: max_messages is a number from 1 on, not {max_messages!r}")
        if on_loss not in ("stop", "skip"):
            raise TopologyError(f"{name}: on_loss is 'stop' or 'skip', not {on_loss!r}")
        if not isinstance(timeout_secs, int | float) or not timeout_secs > 0:
            raise TopologyError(f"{name}: timeout_secs is a number of seconds above 0")
        if fields is None and decode is not text_body:
            raise TopologyError(
                f"{name}: decode needs fields with types, such as fields='id bigint, price double'"
            )
        own = _BODY if fields is None else Schema.parse(fields).require_types(where=name)
        self.schema = Schema((("queue", "string"), ("offset", "bigint"), *own.fields))
        self.output_fields = ("tx", *self.schema.names)
        self._url = url
        self._names = own.names
        self._decode = decode
        self.start = start
        self.max_messages = max_messages
        self.skips = on_loss == "skip"
        self.place = StreamPlace(url, tls, name, timeout_secs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self._url)!r}, {', '.join(self.queues)})"

    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> _OffsetRanges:
        return _OffsetRanges(self)

    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> _OffsetRanges:
        return _OffsetRanges(self)

    def values(self, queue: str, offset: int, message: tuple[Any, Any, bytes]) -> list[Any]:
        """Return a row without its attempt."""
        method, properties, body = message
        try:
            known = properties_of(method, properties)
            return [queue, offset, *decoded(self._decode, body, known, self._names)]
        except Exception as error:
            # Not the body: it may be anything, and this goes into logs.
            raise MalformedRowError(
                f"message {offset} of the RabbitMQ stream {queue!r} cannot be decoded: "
                f"{type(error).__name__}: {str(error)[:200]}. Nothing of the batch was committed."
            ) from error


class TransactionalRabbitMQStreamSpout(_RabbitMQStreams, PartitionedTransactionalSpout):
    """Emit the messages of RabbitMQ streams; a batch has the same messages in every attempt.

    For queues of the type `stream` (RabbitMQ 3.9 or newer), which keep what was read. A batch's
    range of offsets is stored before it is read. While the broker is away the run waits, and goes
    on by itself. Messages of a range that the broker no longer keeps are an error: DataLossError.

    The fields are `queue`, `offset`, and `body` as UTF-8 text, or what `decode` makes of a message.

    Args:
        url: `amqp://user:password@host:port/vhost`, or `amqps://...`; `${NAME}` stands for a
            variable of the environment, of driver and executors.
        queues: The streams, such as the partitions of a super stream. Keep their order; new ones
            come last.
        fields: DDL of what `decode` returns.
        decode: Makes a list of values of `(body, properties)`, on the executors.
        start: Where a stream begins that was never read: "earliest", "latest", or an offset.
        max_messages: How many messages of a stream a batch takes at most.
        on_loss: What to do where the broker has given up messages before they were put into a
            batch: "stop", or "skip" and say how many.
        tls: The certificates of an `amqps://` connection; None: those of the system, no own one.
        timeout_secs: How long the broker may take to answer.
    """


class OpaqueRabbitMQStreamSpout(_RabbitMQStreams, OpaquePartitionedTransactionalSpout):
    """Emit the messages of RabbitMQ streams; an attempt at a batch has what can be reached then.

    Streams whose node is away are left out, and catch up later. For the arguments see
    `TransactionalRabbitMQStreamSpout`.
    """


class _OffsetRanges(PartitionCoordinator, PartitionEmitter, OpaqueEmitter):
    """Coordinator and emitter of both spouts."""

    def __init__(self, spout: _RabbitMQStreams) -> None:
        self._spout = spout
        self._tails: dict[str, StreamTail] = {}
        self._checked: dict[str, float] = {}

    def num_partitions(self) -> int:
        return len(self._spout.queues)

    def next_metadata(self, txid: int, partition: int, last: Any, target: int | None = None) -> Any:
        """Return the range behind `last`; `target`: how many messages it should have, about."""
        queue, spout = self._spout.queues[partition], self._spout
        wanted = spout.max_messages if target is None else max(1, min(target, spout.max_messages))
        tail = self._tails.setdefault(queue, StreamTail(spout.place, queue))
        if last is None:
            at = self._begin(queue, tail)
            if at is None:
                return None
            if spout.start != "earliest":
                return asdict(OffsetRange(queue, at, at))  # so that the position is stored
        else:
            at = self._kept(queue, OffsetRange.of(last, queue).end)
        known = tail.look(at + wanted)
        if known is not None and known < at:
            raise DataLossError(
                f"the RabbitMQ stream {queue!r} was read up to {at - 1}, and its newest message is "
                f"{known - 1}: it was made anew, or its broker was restored from an older copy. "
                "Put it back as it was; nothing was skipped."
            )
        end = at if known is None else min(known, at + wanted)
        return asdict(OffsetRange(queue, at, end)) if end > at else None

    def lag(self, partition: int, last: Any) -> int:
        """Return how many messages are behind a range, as far as is known."""
        queue = self._spout.queues[partition]
        tail = self._tails.get(queue)
        at = 0 if last is None else OffsetRange.of(last, queue).end
        return 0 if tail is None or tail.end is None else max(0, tail.end - at)

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: BatchCollector, partition: int, metadata: Any
    ) -> Any:
        """Emit the messages of a range: all of them, or raise."""
        queue, spout = self._spout.queues[partition], self._spout
        pinned = OffsetRange.of(metadata, queue)
        try:
            for offset, message in messages_of(spout.place, queue, pinned.start, pinned.end):
                collector.emit([attempt, *spout.values(queue, offset, message)])
        except DataLossError as error:
            if spout.skips and isinstance(spout, OpaqueRabbitMQStreamSpout):
                raise FailedException(f"{error} The next attempt looks what is there.") from error
            raise
        return metadata

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails = {}

    def _begin(self, queue: str, tail: StreamTail) -> int | None:
        """Return the offset at which a stream begins that was never read; None: it is empty."""
        match self._spout.start:
            case "latest":
                return tail.look(_FAR) or 0
            case int(start):
                return start
        return None if tail.look(_FAR) is None else first_offset(self._spout.place, queue)

    def _kept(self, queue: str, at: int) -> int:
        """Return where to go on: behind what was read, unless the broker has given up more."""
        now = time.monotonic()
        if now < self._checked.get(queue, 0.0):
            return at
        first = first_offset(self._spout.place, queue)
        self._checked[queue] = now + _CHECK_S
        if first is None or first <= at:
            return at
        if not self._spout.skips:
            raise DataLossError(
                f"{first - at} messages of the RabbitMQ stream {queue!r} from {at} on are gone: "
                "the broker kept no more (x-max-length-bytes, x-max-age), and they were not read. "
                "on_loss='skip' goes on with what is there."
            )
        log.warning("%r: %d messages of %r are lost, and skipped", self._spout, first - at, queue)
        return first
