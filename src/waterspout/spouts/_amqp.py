"""One connection to a RabbitMQ that consumes one queue; nothing here waits unless it says so.

pika's blocking connection waits while it connects. So this is its asynchronous one, whose loop
runs only while `poll` does: no thread, and no heartbeat while nobody polls.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from waterspout.errors import MissingDependencyError
from waterspout.spouts._deliveries import Acknowledgements

__all__ = ["Link", "QueueConsumer", "require_pika"]

_WAIT_S = 0.05
_CLOSE_TIMEOUT_S = 5.0

# What a broker says to what will not work another time either: access refused, not found, locked
# by another, declared otherwise, not allowed, not implemented.
_FINAL = (403, 404, 405, 406, 530, 540)


def require_pika() -> Any:
    """Return the client library, or say how to get it."""
    try:
        import pika
        import pika.adapters.select_connection
    except ImportError as error:
        raise MissingDependencyError("pika", "rabbitmq") from error
    return pika


@dataclass(frozen=True, slots=True)
class QueueConsumer:
    """What a link consumes, and how."""

    queue: str
    prefetch: int
    declare: bool
    durable: bool
    arguments: Mapping[str, Any] | None


class Link:
    """Connects when it is made; `ready` once messages come, `error` when it is of no more use."""

    def __init__(self, parameters: Any, consumer: QueueConsumer) -> None:
        pika = require_pika()
        self._consumer = consumer
        self._channel: Any = None
        self._tag = ""
        self._closed = False
        self._consumed = False
        self.ready = False
        self.error: Exception | None = None
        self.final = False
        """Whether another attempt would end like this one."""
        self.inbox: deque[tuple[Any, Any, bytes]] = deque()
        """Delivered and not yet taken: method, properties and body of each."""
        self.length: int | None = None
        """How many messages were in the queue, for anybody, when the broker told last."""
        self._asks_length = False
        self._loop = pika.adapters.select_connection.IOLoop()
        self._loop.activate_poller()
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
            custom_ioloop=self._loop,
        )

    def poll(self, wait_s: float = 0.0) -> None:
        """Send and receive what can be at once, or wait some time for it; keep it alive."""
        timer = self._loop.call_later(wait_s, _nothing)
        self._loop.poll()
        if wait_s:
            self._loop.remove_timeout(timer)
        self._loop.process_timeouts()

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Poll until something is so, the link is lost, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if self.error is not None or time.monotonic() > deadline:
                return False
            self.poll(_WAIT_S)
        return True

    def ask_length(self) -> None:
        """Ask how many messages are in the queue; the answer comes with a later poll."""
        if self._asks_length or not (self.ready and self._channel.is_open):
            return
        self._asks_length = True
        self._channel.queue_declare(self._consumer.queue, passive=True, callback=self._on_length)

    def _on_length(self, answer: Any) -> None:
        self._asks_length = False
        self.length = answer.method.message_count

    def acknowledge(self, given: Acknowledgements) -> None:
        """Ack and give back messages; the next poll sends it."""
        if self._channel is None or not self._channel.is_open:
            return  # without a connection the broker delivers all of it again
        for tag in given.requeue:
            self._channel.basic_nack(tag, requeue=True)
        if given.ack_up_to:
            self._channel.basic_ack(given.ack_up_to, multiple=True)
        for tag in given.ack:
            self._channel.basic_ack(tag)

    def reject(self, tag: int) -> None:
        """Refuse a message for good: it goes to the dead-letter exchange, if there is one."""
        if self._channel.is_open:
            self._channel.basic_reject(tag, requeue=False)

    def pause(self) -> None:
        """Stop consuming, give back what was not taken, and wait until the broker has done so."""
        if not (self.ready and self._channel.is_open):
            return
        cancelled: list[Any] = []
        self._channel.basic_cancel(self._tag, callback=cancelled.append)
        self.wait(lambda: bool(cancelled), _CLOSE_TIMEOUT_S)
        self.ready = False
        if not self._channel.is_open:
            return
        for method, _, _ in self.inbox:
            self._channel.basic_nack(method.delivery_tag, requeue=True)
        self.inbox.clear()
        # The broker does not answer nacks. It works in order: once it answers a later request, it
        # has the nacks.
        answered: list[Any] = []
        self._channel.basic_qos(prefetch_count=self._consumer.prefetch, callback=answered.append)
        self.wait(lambda: bool(answered), _CLOSE_TIMEOUT_S)

    def resume(self) -> None:
        """Take messages again."""
        if self._channel is not None and self._channel.is_open:
            self._consume()

    def close(self) -> None:
        """Close the connection, and wait until the broker agrees: it then has every ack."""
        pika = require_pika()
        if not self._closed:
            # It may be closing already.
            with contextlib.suppress(pika.exceptions.ConnectionWrongStateError):
                self._connection.close()
            deadline = time.monotonic() + _CLOSE_TIMEOUT_S
            while not self._closed and time.monotonic() < deadline:
                self.poll(_WAIT_S)
        self.ready = False
        self.inbox.clear()
        self._loop.deactivate_poller()
        self._loop.close()

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(self._on_cancelled)
        if self._consumer.declare:
            channel.queue_declare(
                self._consumer.queue,
                durable=self._consumer.durable,
                arguments=dict(self._consumer.arguments or {}),
                callback=self._on_declared,
            )
        else:
            self._on_declared(None)

    def _on_declared(self, _: Any) -> None:
        self._channel.basic_qos(
            prefetch_count=self._consumer.prefetch, callback=lambda _: self._consume()
        )

    def _consume(self) -> None:
        inbox = self.inbox
        self._tag = self._channel.basic_consume(
            self._consumer.queue,
            lambda _, method, properties, body: inbox.append((method, properties, body)),
            callback=self._on_consuming,
        )

    def _on_consuming(self, _: Any) -> None:
        self.ready = self._consumed = True

    def _on_cancelled(self, _: Any) -> None:
        self._fail(ConnectionError("the broker has cancelled the consumer: the queue is gone"))

    def _on_channel_closed(self, _: Any, reason: Exception) -> None:
        code = getattr(reason, "reply_code", 0)
        # A queue of a cluster whose node is down is "not found" too, until the node is back.
        away = "down or inaccessible" in str(reason)
        self._fail(reason, final=not self._consumed and code in _FINAL and not away)

    def _on_closed(self, _: Any, reason: Exception) -> None:
        self._closed = True
        refused = any(f"({code})" in str(reason) for code in (403, 530))
        self._fail(reason, final=not self._consumed and refused)

    def _fail(self, error: Exception, *, final: bool = False) -> None:
        if self.error is None:
            self.error, self.final = error, final


def _nothing() -> None:
    """Do nothing: a callback that only wakes a poll."""
