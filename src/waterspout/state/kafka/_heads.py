"""Reads the topic of heads to its end, in the process that asks; remembers how far it has read.

The end is the last record that was written, not the last that a reader of committed records is
given: as long as a transaction before it is open, nobody knows what the end says. That is waited
for. A broker tells a reader of committed records the end as far as it is decided, so the real one
is asked for apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from waterspout._connections import Connections
from waterspout._kafka_servers import (
    KafkaClientErrors,
    KafkaServers,
    offset_in,
    require_confluent_kafka,
    said_by,
)
from waterspout.errors import OutageError, StoreError

__all__ = ["Deadline", "HeadsReader"]

_ASK_S = 5.0
_POLL_S = 0.1
_IDLE_READERS = 4


class Deadline:
    """How long something may still take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left; 0 if it is over."""
        return max(0.0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        return not self.left

    def at_most(self, seconds: float) -> float:
        """Return how long one question may wait: a client takes no time that is over."""
        return max(0.1, min(seconds, self.left))


@dataclass(slots=True)
class _Read:
    """What was read of one partition, and up to where."""

    position: int = 0
    records: dict[str, str] = field(default_factory=dict)


class HeadsReader:
    """A reader of one topic of heads. One thread at a time uses it; lent by `borrow`."""

    def __init__(self, servers: KafkaServers, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._errors = KafkaClientErrors()
        self._consumer: Any = None
        self._admin = servers.admin(self._errors)
        self._read: dict[int, _Read] = {}

    @staticmethod
    @contextmanager
    def borrow(servers: KafkaServers, topic: str) -> Iterator[HeadsReader]:
        """Lend a reader of this process; one that was in trouble is not lent again."""
        lent = _readers.take((servers, topic)) or HeadsReader(servers, topic)
        lent._errors.forget()
        try:
            yield lent
        except BaseException:
            lent.close()
            raise
        _readers.give((servers, topic), lent)

    def read(self, partitions: Sequence[int], deadline: Deadline) -> Mapping[str, str]:
        """Return the records of some partitions as they are now; none if there is no topic."""
        ends = self._ends(partitions, deadline)
        if ends is None:
            return {}
        self._read_to(ends, deadline)
        return {k: v for p in partitions for k, v in self._read[p].records.items()}

    def end(self, partition: int, deadline: Deadline) -> int | None:
        """Return where a partition ends; None if there is no such topic."""
        ends = self._ends([partition], deadline)
        return None if ends is None else ends[partition]

    def _ends(self, partitions: Sequence[int], deadline: Deadline) -> dict[int, int] | None:
        """Ask where partitions end, open transactions included; None if there is no topic."""
        kafka = require_confluent_kafka()
        admin = kafka.admin
        asked = {
            kafka.TopicPartition(self._topic, p): admin.OffsetSpec.latest() for p in partitions
        }
        while True:
            try:
                futures = self._admin.list_offsets(
                    asked,
                    isolation_level=kafka.IsolationLevel.READ_UNCOMMITTED,
                    request_timeout=deadline.at_most(_ASK_S),
                )
                found = {at.partition: offset_in(f.result(_ASK_S)) for at, f in futures.items()}
                ends = {number: end for number, end in found.items() if end is not None}
                if len(ends) == len(found):
                    return ends
                said = "it answers without an offset"
            except (kafka.KafkaException, FutureTimeout) as error:
                said = said_by(error) or "it does not answer"
            # A client goes on asking as of a leader that it knows to be there no more.
            self._admin = self._servers.admin(self._errors)
            # Once it was there, it is waited for: a broker that comes back may not know it yet.
            if not self._read and self._is_absent(deadline):
                return None
            self._give_up_if_over(deadline, said)
            time.sleep(min(_POLL_S, deadline.left))

    def _is_absent(self, deadline: Deadline) -> bool:
        """Whether a broker answers, and says that there is no such topic."""
        kafka = require_confluent_kafka()
        wanted = kafka.TopicCollection([self._topic])
        (future,) = self._admin.describe_topics(
            wanted, request_timeout=deadline.at_most(_ASK_S)
        ).values()
        try:
            future.result(2 * _ASK_S)
        except kafka.KafkaException as error:
            absent = (kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError._UNKNOWN_TOPIC)
            return error.args[0].code() in absent
        except FutureTimeout:
            pass
        return False

    def _read_to(self, ends: Mapping[int, int], deadline: Deadline) -> None:
        kafka = require_confluent_kafka()
        for partition, end in ends.items():
            known = self._read.setdefault(partition, _Read())
            if known.position > end:  # somebody has made the topic anew
                self._read[partition] = _Read()
        behind = {p for p, end in ends.items() if self._read[p].position < end}
        if not behind:
            return
        if self._consumer is None:
            self._consumer = self._servers.consumer(self._errors)
        first = kafka.OFFSET_BEGINNING
        self._consumer.assign(
            [kafka.TopicPartition(self._topic, p, self._read[p].position or first) for p in behind]
        )
        while behind:
            for message in self._consumer.consume(1000, _POLL_S):
                self._take(message)
            behind = {p for p in behind if self._read[p].position < ends[p]}
            if behind:
                self._give_up_if_over(deadline, self._errors.last or "a transaction is open")
        self._consumer.unassign()

    def _take(self, message: Any) -> None:
        kafka = require_confluent_kafka()
        error, partition = message.error(), message.partition()
        if error is None:
            known = self._read[partition]
            known.records[message.key().decode()] = message.value().decode()
            known.position = message.offset() + 1
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            known = self._read[partition]
            known.position = max(known.position, message.offset())
        else:
            self._errors.note(error)

    def _give_up_if_over(self, deadline: Deadline, said: str) -> None:
        if self._errors.refused:
            raise StoreError(
                f"the Kafka at {self._servers.bootstrap} refuses us: "
                f"{self._servers.secrets.hidden(self._errors.last)}"
            )
        if deadline.is_over:
            raise self._away(said)

    def _away(self, said: str) -> OutageError:
        return self._servers.away(f"topic {self._topic!r} cannot be read to its end: {said}")

    def close(self) -> None:
        """Give up the connections."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._admin = None


_readers: Connections[tuple[KafkaServers, str], HeadsReader] = Connections(
    HeadsReader.close, idle_max=_IDLE_READERS
)
