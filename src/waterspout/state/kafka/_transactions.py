"""Transactions under a name, of which one producer at a time is in command.

A broker lets only the producer that has begun last under a name (`init_transactions`) write and
commit; it finishes what the one before had open, and refuses that one from then on. So whoever
first begins and then reads what was committed under the name has read all of it, and if its own
commit succeeds, nothing was committed in between. `NamedTransactions.run` is that: begin, look,
decide, write, and from the start again where it is not known what became of it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from waterspout import faults
from waterspout._connections import Connections
from waterspout._kafka_servers import (
    KafkaClientErrors,
    KafkaServers,
    require_confluent_kafka,
    said_by,
)
from waterspout.errors import StoreError
from waterspout.state.kafka._heads import Deadline, HeadsReader
from waterspout.state.kafka._messages import Message

__all__ = ["Delivered", "NamedStep", "NamedTransactions"]

_PAUSE_S = 0.1
_IDLE_PRODUCERS = 16


@dataclass(frozen=True, slots=True)
class Delivered:
    """Where the last of some messages went, and who has written them."""

    place: tuple[int, int]
    by: str


class NamedStep(Protocol):
    """What is to be done under a name; asked again after each failure."""

    reads: Sequence[int]
    """The partitions of the topic of heads to be read before."""

    def owner(self, records: Mapping[str, str]) -> str | None:
        """Return who has written last under the name, if the records tell."""

    def rows(self, records: Mapping[str, str]) -> Iterable[Message] | None:
        """Return the messages to write, after a look at the records; None: nothing is to do."""

    def record(self, written: Delivered) -> tuple[int, str, str]:
        """Return partition, key and value for the topic of heads, in the same transaction."""


class NamedTransactions:
    """Writes to a topic, and to a topic of heads, under one name."""

    def __init__(
        self, servers: KafkaServers, topic: str, heads: str, name: str, timeout_s: float
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._heads = heads
        self._name = name
        self._timeout_s = timeout_s

    def run(self, step: NamedStep, deadline: Deadline, **context: Any) -> None:
        """Take a step, once; raises what it raises, or what the Kafka has against it.

        When the time is over it is not known whether the step was taken: who takes it again
        finds out.
        """
        kafka = require_confluent_kafka()
        while True:
            try:
                return self._try(step, deadline, context)
            except kafka.KafkaException as error:
                self._refuse_if_final(error)
                if deadline.is_over:
                    raise self._servers.away(f"{self._name}: {said_by(error)}") from None
            time.sleep(min(_PAUSE_S, deadline.left))

    def _try(self, step: NamedStep, deadline: Deadline, context: Mapping[str, Any]) -> None:
        at = (self._servers, self._name, self._timeout_s)
        lent = _producers.take(at)
        try:
            with HeadsReader.borrow(self._servers, self._heads) as reader:
                if lent is None:
                    lent = self._begun(deadline)
                records = reader.read(step.reads, deadline)
                by = step.owner(records)
                if lent.has_written and by is not None and by != lent.id:
                    # Another has begun after it, and the broker would refuse all that it sends.
                    lent.give_up()
                    lent = self._begun(deadline)
                    records = reader.read(step.reads, deadline)
            rows = step.rows(records)
            if rows is not None:
                self._write(lent, step, rows, deadline, context)
        except BaseException:
            if lent is not None:
                lent.give_up()
            raise
        _producers.give(at, lent)

    def _begun(self, deadline: Deadline) -> _Producer:
        """Return a producer that is in command of the name from now on."""
        made = _Producer(self._servers, self._name, self._timeout_s)
        try:
            made.client.init_transactions(max(0.1, deadline.left))
        except BaseException as error:
            made.give_up()
            if made.errors.refused:
                raise StoreError(self._refusal(made.errors.last)) from None
            if made.errors.last and deadline.is_over:
                raise self._servers.away(made.errors.last) from error
            raise
        return made

    def _write(
        self,
        lent: _Producer,
        step: NamedStep,
        rows: Iterable[Message],
        deadline: Deadline,
        context: Mapping[str, Any],
    ) -> None:
        client = lent.client
        lent.has_written = True
        lent.place, lent.failed = (-1, -1), None
        client.begin_transaction()
        for message in rows:
            self._send(lent, deadline, self._topic, message)
        self._flush(lent, deadline)
        # Last, so that it is open for as short as can be: readers of this partition wait for it.
        partition, key, value = step.record(Delivered(lent.place, lent.id))
        place = {"key": key, "value": value, "partition": partition}
        self._send(lent, deadline, self._heads, place)
        faults.point("transaction.before", **context)
        client.commit_transaction(max(0.1, deadline.left))
        faults.point("transaction.after", **context)

    def _send(self, lent: _Producer, deadline: Deadline, topic: str, message: Message) -> None:
        while True:
            try:
                lent.client.produce(topic, on_delivery=lent.delivered, **message)
                return
            except BufferError:
                lent.client.poll(_PAUSE_S)
                if deadline.is_over:
                    raise self._servers.away(f"{self._name}: messages do not leave") from None

    def _flush(self, lent: _Producer, deadline: Deadline) -> None:
        """Wait for the rows, each of which says where it went, or why not."""
        left = lent.client.flush(max(0.1, deadline.left))
        if lent.failed is not None:
            raise require_confluent_kafka().KafkaException(lent.failed)
        if left:
            raise self._servers.away(f"{self._name}: {left} messages are not answered")

    def _refuse_if_final(self, error: Any) -> None:
        """Raise if to try again would not help."""
        kafka = require_confluent_kafka().KafkaError
        code = error.args[0].code()
        if code in (kafka.MSG_SIZE_TOO_LARGE, kafka.INVALID_MSG_SIZE, kafka.INVALID_TIMESTAMP):
            raise StoreError(
                f"topic {self._topic!r} does not take a row of this batch: {said_by(error)}. Give "
                "the topic another max.message.bytes (and the option message.max.bytes), or leave "
                "such rows out before"
            ) from None
        if code == kafka._UNKNOWN_PARTITION:
            raise StoreError(
                f"topic {self._topic!r} has no such partition as a row names in its field "
                "'partition'"
            ) from None
        if code in (
            *(kafka.TOPIC_AUTHORIZATION_FAILED, kafka.CLUSTER_AUTHORIZATION_FAILED),
            *(kafka.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, kafka.INVALID_TRANSACTION_TIMEOUT),
            *(kafka.UNSUPPORTED_VERSION, kafka._UNSUPPORTED_FEATURE, kafka.POLICY_VIOLATION),
        ):
            raise StoreError(self._refusal(said_by(error))) from None

    def _refusal(self, said: str) -> str:
        hidden = self._servers.secrets.hidden(said)
        return f"the Kafka at {self._servers.bootstrap} refuses {self._name}: {hidden}"


@dataclass
class _Producer:
    """A producer in command of a name, until another one is."""

    servers: KafkaServers
    name: str
    timeout_s: float
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    has_written: bool = False
    place: tuple[int, int] = (-1, -1)
    failed: Any = None
    errors: KafkaClientErrors = field(default_factory=KafkaClientErrors)
    client: Any = None

    def __post_init__(self) -> None:
        self.client = self.servers.producer(self.errors, self.name, self.timeout_s)

    def delivered(self, error: Any, message: Any) -> None:
        """Hear what became of a message; of several errors the first is the reason."""
        if error is not None:
            self.failed = self.failed or error
        else:
            self.place = (message.partition(), message.offset())

    def give_up(self) -> None:
        """Leave it as it is: what it has open is ended by whoever begins next under the name."""
        client, self.client = self.client, None
        if client is not None:
            with suppress(Exception):
                client.purge()


_Address = tuple[KafkaServers, str, float]
_producers: Connections[_Address, _Producer] = Connections(
    _Producer.give_up, idle_max=_IDLE_PRODUCERS
)
