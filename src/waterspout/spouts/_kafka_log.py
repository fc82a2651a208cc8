"""`KafkaSpout`: the messages of topics in a core topology, each tracked by itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from waterspout._backoff import Backoff
from waterspout._kafka_servers import KafkaServers
from waterspout.errors import DataLossError, TopologyError
from waterspout.spouts._kafka_cluster import KafkaCluster, TopicChoice
from waterspout.spouts._kafka_plan import ClusterLook, Place, TopicLook
from waterspout.spouts._kafka_reading import COLUMNS, RangeReader, place_name
from waterspout.spouts._kafka_starts import Start
from waterspout.topology._component import LogSpout
from waterspout.topology._context import TopologyContext

__all__ = ["KafkaSpout"]

log = logging.getLogger(__name__)

_SURE_S = 3.0
_AGAIN_S = 0.2

# What was given to the constructor, as attributes.
_RECIPE = (
    *("output_fields", "servers", "topics", "start", "skips_lost", "retry_backoff"),
    *("_text", "_refresh_s", "_timeout_s"),
)


class KafkaSpout(LogSpout):
    """Emit the messages of topics, at least once; read on the executors, each tracked by itself.

    A message that fails is read and emitted again alone, after a pause that doubles each time,
    while the others go on. Stored is, for each partition, the offset before which everything is
    acked: a run that starts again goes on there. Partitions that cannot be reached are waited for,
    and the others go on. `max_replays` says after how many failures a message is a dead letter.

    Args:
        bootstrap: Brokers to begin with, `"host:port,host:port"`, or a list of such.
        topics: A name, a list of names, or a pattern that begins with ^.
        fields: Which of key, value, topic, partition, offset, timestamp and headers to emit.
        text: Whether keys and values are emitted as text (UTF-8, what is none replaced), or as
            the bytes that they are.
        start: Where to begin, as for `TransactionalKafkaSpout`.
        on_data_loss: "fail" ends the run if messages are gone that were not read; "skip" goes on
            without them and logs how many.
        isolation: "read_committed" or "read_uncommitted".
        retry_secs: How long a message that failed waits before it is emitted again the first time.
        retry_max_secs: How long it waits at most.
        refresh_secs: How often to look for new topics and partitions.
        timeout_secs: How long a partition may give nothing before its broker counts as away.
        options: Further options of librdkafka; their values are never shown.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topics: str | Sequence[str],
        *,
        fields: str | Sequence[str] = ("value",),
        text: bool = True,
        start: str | datetime | Mapping[str, Mapping[int, int]] = "earliest",
        on_data_loss: str = "fail",
        isolation: str = "read_committed",
        retry_secs: float = 0.2,
        retry_max_secs: float = 30.0,
        refresh_secs: float = 5.0,
        timeout_secs: float = 10.0,
        options: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        self.servers = KafkaServers.of(bootstrap, options, isolation)
        self.topics = TopicChoice.of(topics)
        self.start = Start.of(start, self.topics)
        self.output_fields = (fields,) if isinstance(fields, str) else tuple(fields)
        unknown = [name for name in self.output_fields if name not in COLUMNS.names]
        if unknown or not self.output_fields:
            raise TopologyError(
                f"KafkaSpout: fields are some of {', '.join(COLUMNS.names)}; got {fields!r}"
            )
        self.declared_streams()  # refuses one that is named twice
        if on_data_loss not in ("fail", "skip"):
            raise TopologyError(
                f"KafkaSpout: on_data_loss is 'fail' or 'skip', not {on_data_loss!r}"
            )
        for given in (retry_secs, retry_max_secs, refresh_secs, timeout_secs):
            if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
                raise TopologyError(f"KafkaSpout: {given!r} is no number of seconds")
        self.skips_lost = on_data_loss == "skip"
        self.retry_backoff = Backoff(float(retry_secs), float(retry_max_secs))
        self._text = bool(text)
        self._refresh_s = float(refresh_secs)
        self._timeout_s = float(timeout_secs)
        self._begin()

    def _begin(self) -> None:
        """Go back to the state before `open`."""
        self._cluster: KafkaCluster | None = None
        self._topics: dict[str, TopicLook] = {}
        self._leaders: dict[Place, int] = {}
        self._refresh_at = 0.0
        self._looked = ClusterLook()
        self._starts: dict[Place, int] | None = None
        self._gone_since: dict[str, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name in _RECIPE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"KafkaSpout({self.servers.bootstrap!r}, {str(self.topics)!r})"

    def open(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self._begin()
        self._cluster = KafkaCluster(self.servers)

    def resume(self, positions: Mapping[int | str, int]) -> None:
        """See that what was read is still what is there."""
        # Partitions that come later begin with their first message, whatever `start` says.
        self._starts = {} if positions else None
        until = time.monotonic() + _SURE_S
        while True:
            self._refresh_at = 0.0
            self._look()
            lost = [text for name, at in positions.items() if (text := self._lost(str(name), at))]
            if not lost or time.monotonic() >= until:
                break
            time.sleep(_AGAIN_S)
        for text in lost:
            self._tell_lost(text)

    def partitions(self) -> Sequence[str]:
        """Return those that can be reached; a name has the topic's id: a new topic has others."""
        self._look()
        return [self._name(place) for place in sorted(self._looked.extents)]

    def begin(self, partition: int | str) -> int:
        place = _place(str(partition))
        if self._starts is None:
            assert self._cluster is not None
            if self._looked.away and self.start.needs_all:
                raise self.servers.away(next(iter(self._looked.away.values())))
            self._starts = self.start.positions(self._cluster, self._looked)
        return self._starts.get(place, self._looked.extents[place].begin)

    def end(self, partition: int | str) -> int:
        extent = self._looked.extents.get(_place(str(partition)))
        return 0 if extent is None else extent.end

    def read(self, partition: int | str, start: int, end: int) -> Iterator[tuple[int, list[Any]]]:
        place = _place(str(partition))
        values = [self._values()[name] for name in self.output_fields or ()]
        with self.servers.borrowed() as lent:
            reader = RangeReader(
                self.servers, lent, skips_lost=self.skips_lost, timeout_s=self._timeout_s
            )
            for messages in reader.messages(*place, start, end):
                for message in messages:
                    yield message.offset(), [value(message) for value in values]

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def _look(self) -> None:
        """Look at the topics; raise if no partition can be reached, or one is lost."""
        assert self._cluster is not None
        now = time.monotonic()
        if now >= self._refresh_at:
            topics, self._leaders = self._cluster.topics(self.topics)
            self._see_that_all_are_there(topics, now)
            self._topics = {**self._topics, **topics}
            self._refresh_at = now + self._refresh_s
        self._looked = self._cluster.look(self._topics, self._leaders)
        if self._looked.away:
            self._refresh_at = now
            if not self._looked.extents:
                place, why = min(self._looked.away.items())
                raise self.servers.away(f"{place_name(*place)}: {why}")

    def _see_that_all_are_there(self, topics: Mapping[str, TopicLook], now: float) -> None:
        for topic, known in list(self._topics.items()):
            here = topics.get(topic)
            if here is None:
                since = self._gone_since.setdefault(topic, now)
                if now - since >= _SURE_S:
                    del self._topics[topic]
                    self._tell_lost(f"topic {topic!r} was read, and is gone")
                continue
            self._gone_since.pop(topic, None)
            if known.id and here.id and known.id != here.id:
                self._topics[topic] = here
                self._tell_lost(f"topic {topic!r} was deleted and made anew: it has another id now")

    def _lost(self, name: str, at: int) -> str | None:
        """Say what is lost of a partition that was read up to an offset; None: nothing."""
        (topic, number), known = _place(name), _id(name)
        if not self.topics.selects(topic):
            return None
        here, extent = self._topics.get(topic), self._looked.extents.get((topic, number))
        if here is None:
            return f"topic {topic!r} was read, and is gone"
        if known and here.id and known != here.id:
            return f"topic {topic!r} was deleted and made anew: it has another id now"
        if extent is not None and at > extent.end:
            return (
                f"{place_name(topic, number)} was read up to offset {at}, and ends at {extent.end}"
            )
        if extent is not None and at < extent.begin:
            return f"{place_name(topic, number)}: offsets {at} to {extent.begin - 1} are not kept"
        return None

    def _tell_lost(self, text: str) -> None:
        if not self.skips_lost:
            raise DataLossError(
                f"{text}. Messages that were not read are lost; to go on without them, say "
                'on_data_loss="skip".'
            )
        log.warning("%s; what is lost is skipped", text)

    def _name(self, place: Place) -> str:
        known = self._topics[place[0]].id
        return f"{place_name(*place)}@{known}" if known else place_name(*place)

    def _values(self) -> dict[str, Callable[[Any], Any]]:
        plain = _as_text if self._text else _as_it_is
        return {
            "key": lambda message: plain(message.key()),
            "value": lambda message: plain(message.value()),
            "topic": lambda message: message.topic(),
            "partition": lambda message: message.partition(),
            "offset": lambda message: message.offset(),
            "timestamp": lambda message: _moment(message.timestamp()[1]),
            "headers": lambda message: message.headers() or [],
        }


def _place(name: str) -> Place:
    """Read a partition's name.

    >>> _place("orders/3@AbC"), _place("orders/3")
    (('orders', 3), ('orders', 3))
    """
    topic, _, number = name.partition("@")[0].rpartition("/")
    return topic, int(number)


def _id(name: str) -> str:
    return name.partition("@")[2]


def _as_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _as_it_is(data: bytes | None) -> bytes | None:
    return data


def _moment(stamp_ms: int) -> datetime | None:
    return None if stamp_ms < 0 else datetime.fromtimestamp(stamp_ms / 1000, UTC)
