"""How a Kafka is reached: its brokers and options, clients of it, and what their errors mean.

What is given as an option may be a password or a key: no option's value is ever shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from waterspout._addresses import Secrets, addresses, resolved
from waterspout._connections import Connections
from waterspout.errors import (
    ConfigError,
    MissingDependencyError,
    OutageError,
    SourceError,
    TopologyError,
)

__all__ = [
    "BorrowedConsumer",
    "KafkaClientErrors",
    "KafkaServers",
    "check_topic",
    "is_topic",
    "offset_in",
    "require_confluent_kafka",
    "said_by",
]

SERVICE = "kafka"
"""What a run says it waits for."""

_PORT = 9092
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_IDLE_CONSUMERS = 8

# What these would change is ours to decide: which offsets are read, and when they are committed.
_OURS = {
    "auto.offset.reset": "start=... says where to begin",
    "bootstrap.servers": "the first argument says which brokers",
    "enable.auto.commit": "a run keeps its positions itself",
    "enable.auto.offset.store": "a run keeps its positions itself",
    "enable.partition.eof": "reading depends on it",
    "group.instance.id": "no consumer joins a group",
    "isolation.level": "isolation=... says it",
}

_READING: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # An offset that is gone is told, never replaced by another one.
    "auto.offset.reset": "error",
    # Nobody joins the group: it only has to have a name.
    "group.id": "waterspout",
    "max.poll.interval.ms": 86_400_000,
}
# What a user may choose otherwise. At the end of a partition a broker answers at once: the next
# range is read over the same connection, and would wait for that answer. What is fetched beyond the
# end of a range is thrown away, so that it should not be much; then the library pauses for a whole
# second unless it is told not to.
_USUAL: Mapping[str, Any] = {
    "fetch.wait.max.ms": 5,
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 32_768,
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.refresh.sparse": True,
    "log_level": 0,
}
# The same of a client that writes. By murmur2 a key goes where Kafka's own clients send it.
_WRITING: Mapping[str, Any] = {
    "linger.ms": 2,
    "partitioner": "murmur2_random",
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.refresh.interval.ms": 30_000,
    "log_level": 0,
}
# The same of a client that only asks.
_ASKING: Mapping[str, Any] = {"reconnect.backoff.max.ms": 1_000, "log_level": 0}
_NOT_FOR_ASKING = ("group.", "fetch.", "queued.", "max.poll.", "max.partition.", "session.")


def require_confluent_kafka() -> Any:
    """Return the client library, or say how to get it."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise MissingDependencyError("confluent-kafka", "kafka") from error
    return confluent_kafka


def is_topic(name: Any) -> bool:
    """Whether something can be the name of a topic."""
    return isinstance(name, str) and bool(_TOPIC.fullmatch(name)) and not set(name) <= {"."}


def check_topic(name: Any) -> None:
    """Refuse what cannot be the name of a topic."""
    if not is_topic(name):
        raise TopologyError(
            f"{name!r} is not the name of a topic; a name has letters, digits, '.', '_' and '-'"
        )


@dataclass(frozen=True)
class KafkaServers:
    """The brokers to begin with, and the options of the client; picklable, and shown without them.

    `${NAME}` in an option is taken from the environment of the process that makes a client.
    """

    bootstrap: str
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    isolation: str = "read_committed"

    @classmethod
    def of(cls, bootstrap: Any, options: Mapping[str, Any] | None, isolation: str) -> KafkaServers:
        """Return what a user has described; an error says what is wrong with it."""
        require_confluent_kafka()
        try:
            pairs = addresses(bootstrap, port=_PORT, what="Kafka broker")
        except ConfigError as error:
            raise TopologyError(str(error)) from None
        if isolation not in ("read_committed", "read_uncommitted"):
            raise TopologyError(
                f"isolation is 'read_committed' or 'read_uncommitted', not {isolation!r}"
            )
        for name in options or {}:
            if not isinstance(name, str) or name in _OURS:
                why = _OURS.get(name, "a name is text, such as 'sasl.username'")
                raise TopologyError(f"the option {name!r} of a Kafka cannot be given: {why}")
        shown = ",".join(f"[{h}]:{n}" if ":" in h else f"{h}:{n}" for h, n in pairs)
        made = cls(shown, tuple(sorted((options or {}).items())), isolation)
        made._check_options()
        return made

    def _check_options(self) -> None:
        """Have the client library look at the options; nothing is connected."""
        kafka = require_confluent_kafka()
        if any(isinstance(value, str) and "${" in value for _, value in self.options):
            return  # what they are is known where the client is made
        try:
            # Without brokers it has nobody to connect to.
            kafka.Consumer({**_READING, **_USUAL, **dict(self.options)}).close()
        except (kafka.KafkaException, TypeError, ValueError) as error:
            names = ", ".join(name for name, _ in self.options)
            raise TopologyError(
                f"the options of a Kafka ({names}) are refused by its client: "
                f"{self.secrets.hidden(said_by(error))}"
            ) from None

    @property
    def secrets(self) -> Secrets:
        """What is not to be seen in any text: the value of every option that is text."""
        return Secrets.of(words=tuple(str(v) for _, v in self.options if isinstance(v, str)))

    def consumer(self, noted: KafkaClientErrors) -> Any:
        """Make a client that reads; what it has to complain about is noted."""
        kafka = require_confluent_kafka()
        settings = {**_USUAL, **self._resolved(), **_fixed(self.options), **self._brokers()}
        settings["isolation.level"] = self.isolation
        return self._made(lambda: kafka.Consumer({**settings, "error_cb": noted.note}))

    def producer(self, noted: KafkaClientErrors, name: str, timeout_s: float) -> Any:
        """Make a client that writes in transactions under a name, each within some time."""
        kafka = require_confluent_kafka()
        settings = {
            **_WRITING,
            **self._resolved(),
            **self._brokers(),
            "acks": "all",
            "enable.idempotence": True,
            "transactional.id": name,
            "transaction.timeout.ms": int(timeout_s * 1000),
            "error_cb": noted.note,
        }
        return self._made(lambda: kafka.Producer(settings))

    def admin(self, noted: KafkaClientErrors) -> Any:
        """Make a client that asks."""
        kafka = require_confluent_kafka()
        given = {k: v for k, v in self._resolved().items() if not k.startswith(_NOT_FOR_ASKING)}
        settings = {**_ASKING, **given, **self._brokers(), "error_cb": noted.note}
        return self._made(lambda: kafka.admin.AdminClient(settings))

    def _made(self, make: Any) -> Any:
        kafka = require_confluent_kafka()
        try:
            return make()
        except (kafka.KafkaException, TypeError, ValueError) as error:
            said = self.secrets.hidden(said_by(error))
            raise SourceError(f"no client of the Kafka at {self.bootstrap}: {said}") from None

    def _brokers(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap}

    def _resolved(self) -> dict[str, Any]:
        return {k: resolved(v) if isinstance(v, str) else v for k, v in self.options}

    def away(self, said: str) -> OutageError:
        """Return the error of a Kafka that cannot be reached for now."""
        return OutageError(
            SERVICE, f"the Kafka at {self.bootstrap} cannot be reached: {self.secrets.hidden(said)}"
        )

    @contextmanager
    def borrowed(self) -> Iterator[BorrowedConsumer]:
        """Lend a consumer of this process; one that was in trouble is not lent again."""
        kept = _consumers.take(self)
        lent = kept or BorrowedConsumer(self)
        lent.errors.forget()
        try:
            yield lent
            lent.consumer.unassign()
        except BaseException:
            lent.close()
            raise
        _consumers.give(self, lent)


def _fixed(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return the settings of a consumer that are ours; only the group may have another name."""
    chosen = {k: v for k, v in options if k in ("group.id", "max.poll.interval.ms")}
    return {**_READING, **chosen}


class KafkaClientErrors:
    """What a client has said by itself: that a broker is away, that a password is wrong."""

    def __init__(self) -> None:
        self.last = ""
        self.refused = False
        """Whether a broker has refused us: to wait would not help."""

    def note(self, error: Any) -> None:
        """Take what the client calls back with; never raises."""
        kafka = require_confluent_kafka()
        self.last = said_by(error)
        refusals = (kafka.KafkaError._AUTHENTICATION, kafka.KafkaError.SASL_AUTHENTICATION_FAILED)
        self.refused = self.refused or error.code() in refusals

    def forget(self) -> None:
        """Begin anew."""
        self.last, self.refused = "", False


class BorrowedConsumer:
    """A consumer, and what it has said."""

    def __init__(self, servers: KafkaServers) -> None:
        self.errors = KafkaClientErrors()
        self.consumer = servers.consumer(self.errors)

    def close(self) -> None:
        """Give up its connections."""
        self.consumer.close()


_consumers: Connections[KafkaServers, BorrowedConsumer] = Connections(
    BorrowedConsumer.close, idle_max=_IDLE_CONSUMERS
)


def said_by(error: Any) -> str:
    """Return what an error of the client says."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    said = inner.str() if hasattr(inner, "str") else str(inner)
    return str(said) or type(error).__name__


def offset_in(answer: Any, least: int = 0) -> int | None:
    """Return the offset that a broker was asked for; None if its answer has none.

    While a broker comes back, the client may hand out an answer that is no error and has -1001
    where the offset should be. Taken for an offset it would mean a partition without messages: the
    first batch would begin there, and what a state has noted would not be found. `least` is -1
    where no message at all is an answer too, as to "the first one of a time".
    """
    offset = int(answer.offset)
    return offset if offset >= least else None
