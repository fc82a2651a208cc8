"""Streams of RabbitMQ over AMQP 0.9.1: where one ends, where it begins, and what is in a range.

A stream (`x-queue-type: stream`) is a log: its messages have offsets, stay when they were read, and
a consumer begins at any offset. How long one is, the broker tells only with seconds of delay; so
whoever wants to know its end consumes it from its last chunk on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from waterspout._addresses import shown
from waterspout._tls import TLS
from waterspout.errors import DataLossError, OutageError, SourceError
from waterspout.spouts._amqp import Link, QueueConsumer, parameters_of, said_by

__all__ = ["OffsetRange", "StreamPlace", "StreamTail", "first_offset", "messages_of"]

_TAIL_PREFETCH = 200
_READ_PREFETCH = 2000
_ACK_EVERY = 500
# How long the first message of a consumer is waited for, on a broker that has just said yes.
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages of a stream, from an offset to before another. Stored as JSON."""

    queue: str
    start: int
    end: int

    @classmethod
    def of(cls, metadata: Mapping[str, Any], queue: str) -> OffsetRange:
        """Return the range of metadata; refuse that of another stream."""
        found = cls(**metadata)
        if found.queue != queue:
            raise SourceError(
                f"the stream {found.queue!r} was read here before, and now it is {queue!r}: keep "
                "the streams of a spout in their order, and add new ones at the end"
            )
        return found


@dataclass(frozen=True)
class StreamPlace:
    """A broker, and how long it may take to answer."""

    url: str
    tls: TLS | None
    who: str
    timeout_s: float

    def consume(self, queue: str, start: str | int, prefetch: int) -> Link:
        """Return a link to which the messages of a stream come, from somewhere on."""
        name = f"waterspout {self.who} {queue}"
        parameters = parameters_of(self.url, name, self.tls, self.who)
        consumer = QueueConsumer(queue, prefetch, False, True, None, {"x-stream-offset": start})
        link = Link(parameters, consumer)
        if link.wait(lambda: link.ready, self.timeout_s):
            return link
        error = self.error(queue, link)
        link.close()
        raise error

    def error(self, queue: str, link: Link) -> SourceError:
        """Return why a link is of no use."""
        said = "no answer in time" if link.error is None else said_by(link.error, self.url)
        text = (
            f"{self.who} cannot read the stream {queue!r} at {shown(self.url)}: {said}. See that "
            "the server is there, that user, password and vhost of the URL are right, and that "
            "the queue exists and is a stream (x-queue-type)."
        )
        return SourceError(text) if link.final else OutageError("rabbitmq", text)


class StreamTail:
    """Knows where a stream ends. In the driver, one for each stream.

    While whoever reads keeps up, the newest messages come here too. While there is a backlog none
    does: what is not acked stops the broker.
    """

    def __init__(self, place: StreamPlace, queue: str) -> None:
        self._place = place
        self._queue = queue
        self._link: Link | None = None
        self._open = 0
        """How many messages came over the link and were not acked."""
        self.end: int | None = None
        """The offset behind the newest message that is known of; None before there is one."""

    def look(self, wanted: int) -> int | None:
        """Return the end of the stream; not the newest, if as much as is wanted is known of."""
        if self._link is not None and self.end is not None and self.end >= wanted:
            return self.end
        try:
            if self._link is not None and self._open >= _TAIL_PREFETCH // 2:
                self.close()  # far behind: begin with the last chunk, not with all in between
            if self._link is None:
                self._link = self._place.consume(self._queue, "last", _TAIL_PREFETCH)
                self._open = 0
                link = self._link
                link.wait(lambda: bool(link.inbox), _QUIET_S)
                if link.inbox:
                    self.end = None  # it may have been made anew
            self._take(self._link)
        except BaseException:
            self.close()
            raise
        return self.end

    def _take(self, link: Link) -> None:
        """Take what has come, and ask for more, unless that is much."""
        link.poll()
        while link.inbox:
            while link.inbox:
                method, properties, _ = link.inbox.popleft()
                self.end = max(self.end or 0, _offset(properties) + 1)
                self._open += 1
            if self._open < _TAIL_PREFETCH // 2:
                link.ack_up_to(method.delivery_tag)
                self._open = 0
            link.poll()
        if link.error is not None:
            raise self._place.error(self._queue, link)

    def close(self) -> None:
        """Give up the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None


def first_offset(place: StreamPlace, queue: str) -> int | None:
    """Return the offset of the oldest message that a stream has; None if it has none."""
    link = place.consume(queue, "first", 1)
    try:
        if not link.wait(lambda: bool(link.inbox), _QUIET_S):
            if link.error is not None:
                raise place.error(queue, link)
            return None
        return _offset(link.inbox[0][1])
    finally:
        link.close()


def messages_of(
    place: StreamPlace, queue: str, start: int, end: int
) -> Iterator[tuple[int, tuple[Any, Any, bytes]]]:
    """Yield the messages from `start` to before `end`: offset, (method, properties, body)."""
    if start >= end:
        return
    link = place.consume(queue, start, _READ_PREFETCH)
    try:
        at, unacked = start, 0
        while at < end:
            if not link.inbox and not link.wait(lambda: bool(link.inbox), place.timeout_s):
                raise place.error(queue, link)
            method, properties, body = link.inbox.popleft()
            offset = _offset(properties)
            if offset < at:
                continue  # a broker may begin with the whole chunk that the range begins in
            if offset > at:
                raise DataLossError(
                    f"messages {at} to {min(offset, end) - 1} of the RabbitMQ stream {queue!r} are "
                    "gone: the broker keeps no more (x-max-length-bytes, x-max-age). They belong "
                    "to a batch that is not finished; `waterspout batch skip` goes on without it."
                )
            yield offset, (method, properties, body)
            at, unacked = offset + 1, unacked + 1
            if unacked == _ACK_EVERY:
                link.ack_up_to(method.delivery_tag)
                unacked = 0
    finally:
        link.close()


def _offset(properties: Any) -> int:
    return int(properties.headers["x-stream-offset"])
