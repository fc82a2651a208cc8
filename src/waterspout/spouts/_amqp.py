"""One connection to a RabbitMQ that consumes one queue; nothing here waits unless it says so.

pika's blocking connection waits while it connects. So this is its asynchronous one, whose loop
runs only while `poll` does: no thread, and no heartbeat while nobody polls.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from waterspout._addresses import Secrets, check_url, resolved, shown
from waterspout._tls import TLS
from waterspout.errors import MissingDependencyError, TopologyError
from waterspout.spouts._deliveries import Acknowledgements

__all__ = [
    "Link",
    "QueueConsumer",
    "cut",
    "decoded",
    "parameters_of",
    "properties_of",
    "refuse_bad_url",
    "refuse_tls_of_plain",
    "require_pika",
    "said_by",
    "text_body",
]

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
    consuming: Mapping[str, Any] | None = None
    """Arguments of the consumer itself, such as where it begins in a stream."""


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

    def ack_up_to(self, tag: int) -> None:
        """Ack a message and all before it; the next poll sends it."""
        if self._channel is not None and self._channel.is_open:
            self._channel.basic_ack(tag, multiple=True)

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
            arguments=None if self._consumer.consuming is None else dict(self._consumer.consuming),
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


def text_body(body: bytes, properties: Mapping[str, Any]) -> list[Any]:
    """Return the body as text: UTF-8, whatever the properties say.

    >>> text_body("caf\u00e9".encode(), {})
    ['caf\u00e9']
    """
    return [body.decode()]


def decoded(
    decode: Callable[[bytes, Mapping[str, Any]], Sequence[Any]],
    body: bytes,
    properties: Mapping[str, Any],
    fields: Sequence[str],
) -> Sequence[Any]:
    """Return the values that a user's function makes of a message; refuse another number."""
    values = decode(body, properties)
    if not isinstance(values, list | tuple) or len(values) != len(fields):
        raise TypeError(
            f"decode has to return a list of {len(fields)} values, for the "
            f"fields {fields}; it returned {type(values).__name__}"
        )
    return values


def properties_of(method: Any, properties: Any) -> dict[str, Any]:
    """Return what a message has beside its body."""
    known = {name: value for name, value in vars(properties).items() if value is not None}
    known["exchange"], known["routing_key"] = method.exchange, method.routing_key
    known["redelivered"] = method.redelivered
    return known


def refuse_bad_url(url: str, who: str) -> None:
    """Refuse the URL of a spout that is none; what is in variables is looked at later."""
    check_url(url, f"URL of a {who}")
    if "${" not in url:
        _check_place(url, who)


def refuse_tls_of_plain(url: str, tls: TLS | None) -> None:
    """Refuse certificates for a connection that has none."""
    if tls is not None and url.startswith("amqp://"):
        raise TopologyError("tls is for an encrypted connection: write amqps:// in the URL")


def _check_place(url: str, who: str) -> None:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("amqp", "amqps") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        # It is not quoted: what cannot be read may have its password anywhere.
        raise TopologyError(
            f"{who}: its URL cannot be read. Write amqp://user:password@host:port/vhost, "
            "with % signs for odd characters, such as %2F for the vhost '/'."
        )


def parameters_of(url: str, connection_name: str, tls: TLS | None, who: str) -> Any:
    """Return pika's parameters of a connection, with the secrets of this process filled in."""
    pika = require_pika()
    plain = resolved(url)
    check_url(plain, f"URL of a {who}")
    _check_place(plain, who)
    try:
        parameters = pika.URLParameters(plain)
    except (ValueError, TypeError, KeyError, SyntaxError, OSError) as error:
        raise TopologyError(
            f"{who}: an option in the query of its URL cannot be read by pika "
            f"({type(error).__name__}), at {shown(url)}"
        ) from None
    if tls is not None:
        parameters.ssl_options = pika.SSLOptions(tls.context(), parameters.host)
    parameters.client_properties = {"connection_name": connection_name}
    return parameters


def said_by(error: BaseException, url: str) -> str:
    """Return what went wrong at the bottom of pika's errors, which have no text of their own."""
    text = str(error) or repr(error)
    found = re.search(r"last exception - (.*); first exception", text)
    return cut(Secrets.of(url).hidden(found[1] if found else text))


def cut(text: str) -> str:
    """Return a text that may be of any length as one that can be shown."""
    return text if len(text) <= 300 else f"{text[:300]}..."
