"""The recipe of a state that is a topic of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from waterspout._kafka_servers import KafkaServers, check_topic
from waterspout._schema import Schema, field_names
from waterspout.errors import TopologyError
from waterspout.state._base import StateKind
from waterspout.state._rows import RowsStoreState
from waterspout.state.kafka._messages import MessageForm
from waterspout.state.kafka._rows import KafkaRows
from waterspout.state.kafka._topics import StateTopics

__all__ = ["KafkaState"]

_OURS = {
    "acks": "it is always all",
    "enable.idempotence": "it is always on",
    "transactional.id": "each partition has its own; prefix=... begins it",
    "transaction.timeout.ms": "transaction_secs=... says it",
}


@dataclass(frozen=True)
class KafkaState(RowsStoreState):
    """Recipe of rows that are written to a topic; a reader of committed messages has each once.

    `stream.partition_persist(KafkaState("host:9092", topic="orders"), AppendRows())`

    A stream with a field `value` (text or binary) is one of messages: its fields are some of key,
    value, headers, partition and timestamp. Of any other stream, or if `key` or `as_json` is given,
    a message's value is the JSON of the row.

    Args:
        bootstrap: Brokers to begin with, `"host:port,host:port"`, or a list of such.
        topic: Where rows go. Made at the first batch if it is missing.
        key: The field, or fields, of which the key of a message is made.
        as_json: Whether to write JSON though the stream has a field `value`.
        heads: The topic that keeps what was committed, compacted; `<topic>-waterspout-heads` unless
            you say otherwise. Two states write to one topic if each has its own.
        partitions: With how many partitions the topic is made, if it is missing; the broker's usual
            number unless you say so.
        replicas: How many copies topics have that are made here; the broker's usual number.
        create: Whether to make topics that are missing, or to say that they are.
        prefix: What the transactional ids begin with, for rules that say who may use which.
        timeout_secs: How long to wait for Kafka before the run is told that it is away.
        transaction_secs: How long one partition's rows of a batch may take.
        options: Further options of librdkafka, as `{"security.protocol": "SASL_SSL",
            "sasl.password": "${KAFKA_PASSWORD}"}`; `${NAME}` is taken from the environment, where
            the client is made. Their values are never shown.
    """

    bootstrap: str | Sequence[str]
    topic: str = field(kw_only=True)
    key: str | Sequence[str] | None = field(default=None, kw_only=True)
    as_json: bool = field(default=False, kw_only=True)
    heads: str = field(default="", kw_only=True)
    partitions: int = field(default=-1, kw_only=True)
    replicas: int = field(default=-1, kw_only=True)
    create: bool = field(default=True, kw_only=True)
    prefix: str = field(default="waterspout", kw_only=True)
    timeout_secs: float = field(default=30.0, kw_only=True)
    transaction_secs: float = field(default=60.0, kw_only=True)
    options: Mapping[str, str | int | float | bool] | None = field(
        default=None, kw_only=True, repr=False, hash=False
    )
    kind: StateKind = field(default=StateKind.TRANSACTIONAL, kw_only=True)
    servers: KafkaServers = field(init=False, repr=False)

    backend: ClassVar[str] = "kafka"
    pins_batches = True

    def __post_init__(self) -> None:
        for name in self.options or {}:
            if name in _OURS:
                raise TopologyError(f"KafkaState: the option {name!r} is ours: {_OURS[name]}")
        servers = KafkaServers.of(self.bootstrap, self.options, "read_committed")
        object.__setattr__(self, "servers", servers)
        object.__setattr__(self, "bootstrap", servers.bootstrap)
        check_topic(self.topic)
        object.__setattr__(self, "heads", self.heads or f"{self.topic}-waterspout-heads")
        check_topic(self.heads)
        if self.heads == self.topic:
            raise TopologyError(f"KafkaState: heads={self.heads!r} must be another topic")
        key = () if self.key is None else field_names(self.key)
        object.__setattr__(self, "key", key)
        if self.kind is not StateKind.TRANSACTIONAL:
            raise TopologyError(
                "KafkaState is transactional: a log takes nothing back, so that a batch is given "
                f"again as it was; it cannot be {self.kind.value}"
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in ("partitions", "replicas"):
            given = getattr(self, name)
            if type(given) is not int or (given < 1 and given != -1):
                raise TopologyError(
                    f"KafkaState: {name} is a number from 1, or -1 for what the broker takes, not "
                    f"{given!r}"
                )
        for name, least in (("timeout_secs", 0.001), ("transaction_secs", 1.0)):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int | float) or not given >= least:
                raise TopologyError(
                    f"KafkaState: {name} is a number of seconds, at least {least:g}, not {given!r}"
                )
        if not isinstance(self.prefix, str) or not self.prefix:
            raise TopologyError(f"KafkaState: prefix is text, not {self.prefix!r}")

    @property
    def title(self) -> str:
        return f"topic {self.topic!r} at {self.servers.bootstrap}"

    def bind_rows(
        self, rows: Schema, keys: tuple[str, ...] = (), order_by: str | None = None
    ) -> Self:
        if keys:
            raise TopologyError(
                "KafkaState appends rows: in a log no row takes the place of another. Use "
                "AppendRows(), and KafkaState(..., key=[...]) for a compacted topic, which keeps "
                "the last row of each key"
            )
        bound = super().bind_rows(rows)
        _ = bound._form  # which refuses fields that cannot be messages
        return bound

    @property
    def _form(self) -> MessageForm:
        assert isinstance(self.key, tuple)
        return MessageForm.of(self.rows, self.key, self.as_json, "KafkaState")

    def store(self) -> KafkaRows:
        topics = StateTopics(
            self.servers, self.topic, self.heads, self.partitions, self.replicas, self.create
        )
        return KafkaRows(
            topics,
            self._form,
            title=self.title,
            prefix=self.prefix,
            timeout_s=float(self.timeout_secs),
            transaction_s=float(self.transaction_secs),
        )

    def within(self) -> Mapping[str, Any]:
        return {"topic": self.topic, "heads": self.heads}

    def location(self) -> str:
        return f"kafka:{self.servers.bootstrap}#{self.heads}/{self.topic}"
