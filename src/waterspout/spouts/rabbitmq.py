"""Messages of a RabbitMQ queue, each acked there when its tree of tuples is complete."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from waterspout._addresses import masked, shown
from waterspout._tls import TLS
from waterspout.errors import OutageError, SourceError, TopologyError
from waterspout.spouts._amqp import (
    Link,
    QueueConsumer,
    cut,
    decoded,
    parameters_of,
    properties_of,
    refuse_bad_url,
    refuse_tls_of_plain,
    require_pika,
    said_by,
    text_body,
)
from waterspout.spouts._deliveries import Deliveries
from waterspout.topology._collector import SpoutCollector
from waterspout.topology._component import Spout
from waterspout.topology._context import TopologyContext

__all__ = ["RabbitMQSpout"]

_PREFETCH_MAX = 65_535
_BURST_MAX = 100
_UNSENT_MAX = 1_000
_OPEN_TIMEOUT_S = 30.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.1, 10.0

# For how long a queue must give nothing to count as empty; and how long a message that failed is
# waited for, which another consumer may have got.
_QUIET_S, _COMES_BACK_S = 1.0, 10.0
_PENDING_KEY = "topology.max.spout.pending"

# What was given to the constructor, as attributes.
_RECIPE = ("output_fields", "_url", "_tls", "_decode", "_consumer", "_raises")

_PROPERTIES = (
    *("message_id", "content_type", "content_encoding", "correlation_id", "reply_to", "type"),
    *("timestamp", "expiration", "priority", "delivery_mode", "app_id", "user_id", "cluster_id"),
)
# What the broker notes in the headers when it delivers again, or dead-letters: of the same message.
_BROKERS_OWN = re.compile(r"x-(death|first-death-.*|last-death-.*|delivery-count|acquired-count)")


class RabbitMQSpout(Spout):
    """Emit the messages of a queue; at least once, in the order of their delivery.

    A message is acked when its tree is complete and requeued when it fails. What was not acked
    when the process ends, however it ends, the broker delivers again. A connection that is lost is
    opened again, for as long as the run waits (`outage_secs`); a message that is being processed
    meanwhile is recognised when it comes again, and not emitted twice.

    A message id is a string made of the `message_id` property and a digest of all content, so that
    a message has the same one whenever it comes. Equal messages that are open at the same time are
    numbered.

    Args:
        url: `amqp://user:password@host:port/vhost`, or `amqps://...`; `${NAME}` stands for a
            variable of the driver's environment. The query takes pika's options (`?heartbeat=120`).
        queue: Its name. Several tasks, and other programs, may consume it at the same time.
        fields: What `decode` returns a value for.
        decode: Makes a list of values of `(body, properties)`. The properties are those of AMQP
            that the message has, and `exchange`, `routing_key` and `redelivered`.
        prefetch: How many unacked messages the broker lets a task have, 1 to 65535. More than
            `max_spout_pending`, or the spout waits for the broker after each.
        declare: Whether to create the queue, `durable` and with these `arguments`, if it is
            missing. If it is there and otherwise, RabbitMQ refuses.
        on_bad_message: What to do with a message that `decode` raises for, or makes another number
            of values of: "reject" it, so that the queue's dead-letter exchange gets it (without
            one RabbitMQ drops it); or "raise", which ends the run and leaves it in the queue.
        tls: The certificates of an `amqps://` connection; None: those of the system, no own one.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        fields: str | Sequence[str] = ("body",),
        decode: Callable[[bytes, Mapping[str, Any]], Sequence[Any]] = text_body,
        prefetch: int = 10_000,
        declare: bool = False,
        durable: bool = True,
        arguments: Mapping[str, Any] | None = None,
        on_bad_message: str = "reject",
        tls: TLS | None = None,
    ) -> None:
        require_pika()
        refuse_bad_url(url, "RabbitMQSpout")
        if not queue or not isinstance(queue, str) or len(queue.encode()) > 255:
            raise TopologyError(f"a queue has a name of 1 to 255 bytes, not {queue!r}")
        if type(prefetch) is not int or not 1 <= prefetch <= _PREFETCH_MAX:
            raise TopologyError(
                f"prefetch is a number from 1 to {_PREFETCH_MAX}, not {prefetch!r}; without a "
                "bound the broker would send the whole queue into the driver's memory"
            )
        if not callable(decode):
            raise TopologyError(f"decode is a function of (body, properties), not {decode!r}")
        if on_bad_message not in ("reject", "raise"):
            raise TopologyError(f"on_bad_message is 'reject' or 'raise', not {on_bad_message!r}")
        if arguments is not None and not declare:
            raise TopologyError("arguments are for a queue that is declared: add declare=True")
        self.output_fields = (fields,) if isinstance(fields, str) else tuple(fields)
        self.declared_streams()  # refuses bad names at once
        refuse_tls_of_plain(url, tls)
        self._url = url
        self._tls = tls
        self._decode = decode
        self._consumer = QueueConsumer(queue, prefetch, declare, durable, arguments)
        self._raises = on_bad_message == "raise"
        self._begin()

    def _begin(self) -> None:
        """Go back to the state before `open`."""
        self._bad = 0
        self._parameters: Any = None
        self._collector: Any = None
        self._pending_max = _PREFETCH_MAX
        self._deliveries = Deliveries(self._consumer.prefetch)
        self._link: Link | None = None
        self._active = True
        self._outage: OutageError | None = None
        self._retry_at = 0.0
        self._retry_s = _RETRY_MIN_S
        self._news_at = self._failed_at = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has nothing of what was opened; above all not the URL with its secrets filled in.
        return {name: value for name, value in vars(self).items() if name in _RECIPE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"RabbitMQSpout({shown(self._url)!r}, queue={self._consumer.queue!r})"

    @property
    def schema(self) -> str | None:
        """The type of the one field, where the body is text; else only `decode` knows."""
        is_text = self._decode is text_body and len(self.output_fields or ()) == 1
        return f"{(self.output_fields or ('',))[0]} string" if is_text else None

    @property
    def bad_messages(self) -> int:
        """How many messages were rejected because they could not be decoded."""
        return self._bad

    @property
    def outage(self) -> OutageError | None:
        """Why there is no connection, if there is none; the run waits for up to `outage_secs`."""
        return self._outage

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutCollector
    ) -> None:
        """Connect, and wait until the broker has agreed to everything."""
        self.close()
        self._begin()
        self._pending_max = conf.get(_PENDING_KEY) or _PREFETCH_MAX
        self._collector = collector
        name = f"waterspout {context.topology_name} {context.this_component_id}"
        name = f"{name} {context.this_task_id}"
        self._parameters = parameters_of(self._url, name, self._tls, "RabbitMQSpout")
        link = self._link = Link(self._parameters, self._consumer)
        if not link.wait(lambda: link.ready, _OPEN_TIMEOUT_S):
            self._link = None
            error = self._described(link.error, final=link.final)
            link.close()
            raise error

    def next_tuple(self) -> None:
        """Emit what has arrived, at most 100 messages, and send the acks collected so far."""
        link = self._connected()
        if link is None:
            return
        room = min(_BURST_MAX, self._pending_max - len(self._deliveries))
        rejected: list[Exception] = []
        inbox, emit = link.inbox, self._collector.emit
        while inbox and room > 0:
            method, properties, body = inbox[0]
            try:
                values = self._values(method, properties, body)
            except Exception as error:
                if self._raises:
                    raise self._undecodable(error) from error
                link.reject(method.delivery_tag)
                rejected.append(error)
                values = None
            inbox.popleft()
            self._news_at = time.monotonic()
            if values is None:
                continue
            msg_id = self._deliveries.deliver(
                _name(method, properties, body), method.delivery_tag, method.redelivered
            )
            if msg_id is not None:
                room -= 1
                emit(values, msg_id)
        if rejected:
            self._bad += len(rejected)
            # One report for all of them: a queue full of bad messages is one trouble.
            self._collector.report_error(self._undecodable(rejected[0], len(rejected)))

    def is_drained(self) -> bool:
        """Whether the queue has given nothing for a while, and nothing is about to come back.

        A queue does not say that it is empty: what was failed takes its time, and may also have
        gone to another consumer.
        """
        link, now = self._link, time.monotonic()
        if link is None or not link.ready or self._deliveries.unsent:
            return False
        if self._deliveries.returning and now - self._failed_at < _COMES_BACK_S:
            return False
        return now - max(self._news_at, self._failed_at) >= _QUIET_S

    def lag(self) -> int | None:
        """Return how many messages are in the queue, or delivered to this task and not emitted.

        As the broker told when it was asked last; it is asked anew for the next time.
        """
        link = self._link
        if link is None or not link.ready:
            return None
        link.ask_length()
        return None if link.length is None else link.length + len(link.inbox)

    def ack(self, msg_id: Any) -> None:
        """Let the broker forget the message, soon; one delivered again meanwhile stays."""
        self._deliveries.ack(msg_id)
        if not self._active or self._deliveries.unsent >= _UNSENT_MAX:
            self._send()

    def fail(self, msg_id: Any) -> None:
        """Give the message back to the queue, from where it comes again, with the same id."""
        self._failed_at = time.monotonic()
        self._deliveries.fail(msg_id)
        if not self._active or self._deliveries.unsent >= _UNSENT_MAX:
            self._send()

    def activate(self) -> None:
        self._active = True
        if self._link is not None:
            self._link.resume()

    def deactivate(self) -> None:
        """Stop consuming; messages that were not emitted go back to the queue at once."""
        self._active = False
        self._send()
        link = self._link
        if link is None:
            return
        if link.ready:
            link.pause()
        else:
            # It would begin to consume when it is connected, and nobody would take that.
            self._link = None
            link.close()

    def close(self) -> None:
        """Send what is acked, and disconnect: the broker requeues the rest."""
        link, self._link = self._link, None
        if link is not None:
            link.acknowledge(self._deliveries.take_acknowledgements())
            link.close()
        self._parameters = None
        self._deliveries = Deliveries(self._consumer.prefetch)

    def _connected(self) -> Link | None:
        """Return the link, with what has come in received; None without a connection."""
        if self._link is None:
            if self._parameters is None or time.monotonic() < self._retry_at:
                return None
            self._link = Link(self._parameters, self._consumer)
        link = self._link
        self._send()
        if self._link is None or not link.ready:
            return None
        if self._outage is not None:
            self._news_at = time.monotonic()
        self._outage, self._retry_s = None, _RETRY_MIN_S
        return link

    def _send(self) -> None:
        """Send acks and fails, receive, and see whether the connection is lost."""
        link = self._link
        if link is None:
            return
        if self._deliveries.unsent:
            link.acknowledge(self._deliveries.take_acknowledgements())
        link.poll()
        if link.error is not None:
            self._lost(link)

    def _lost(self, link: Link) -> None:
        error, final = self._described(link.error, final=link.final), link.final
        self._link = None
        self._deliveries.lost()
        link.close()
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)
        if final:
            raise error
        if self._outage is None:
            self._collector.report_error(error)
        self._outage = error if isinstance(error, OutageError) else None

    def _values(self, method: Any, properties: Any, body: bytes) -> Sequence[Any]:
        known = properties_of(method, properties)
        return decoded(self._decode, body, known, self.output_fields or ())

    def _undecodable(self, error: Exception, count: int = 1) -> SourceError:
        done = "It stays in the queue" if self._raises else f"Rejected, {self._bad} so far"
        return SourceError(
            f"{self!r}: {count} of the messages cannot be decoded, the first because of "
            # Not the body: it may be anything, and this goes into logs.
            f"{type(error).__name__}: {cut(masked(str(error)))}. {done}."
        )

    def _said(self, error: Exception) -> str:
        return said_by(error, self._url)

    def _described(self, error: Exception | None, *, final: bool) -> SourceError:
        said = "no answer in time" if error is None else self._said(error)
        text = (
            f"{self!r} cannot be read: {said}. See that the server is there, that user, password "
            "and vhost of the URL are right, and that the queue exists and the user may read it "
            "(declare=True creates it)."
        )
        return SourceError(text) if final else OutageError("rabbitmq", text)


def _name(method: Any, properties: Any, body: bytes) -> str:
    """Return what a message is known by: its `message_id`, and a digest of all that is in it."""
    headers = properties.headers
    if headers:
        headers = sorted((k, repr(v)) for k, v in headers.items() if not _BROKERS_OWN.fullmatch(k))
    known = [getattr(properties, name) for name in _PROPERTIES]
    # A repr holds no zero byte, so it separates them safely.
    head = repr((method.exchange, method.routing_key, known, headers or None)).encode()
    digest = blake2b(b"%b\0%b" % (head, body), digest_size=16).hexdigest()
    return f"{properties.message_id}:{digest}" if properties.message_id else digest
