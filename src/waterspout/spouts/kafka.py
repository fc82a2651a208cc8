"""Topics of a Kafka: batches of pinned offsets for Trident, single messages for core topologies.

Which offsets a batch has is decided in the driver and stored before they are read; they are read
on the executors, with confluent-kafka. No group is joined: how far a topology is, only its own
ledger says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout._kafka_servers import KafkaServers
from waterspout._schema import FieldNames, Schema
from waterspout.errors import OutageError, SourceError, TopologyError
from waterspout.spouts._base import (
    BatchPlanner,
    BatchSpout,
    Piece,
    RunsIn,
    SpoutContext,
    SpoutKind,
)
from waterspout.spouts._kafka_cluster import KafkaCluster, TopicChoice
from waterspout.spouts._kafka_log import KafkaSpout
from waterspout.spouts._kafka_plan import firsts_of, ranges_of, with_ranges
from waterspout.spouts._kafka_planner import KafkaPlanner
from waterspout.spouts._kafka_reading import COLUMNS, place_name
from waterspout.spouts._kafka_starts import Start
from waterspout.spouts._malformed import OnMalformed
from waterspout.spouts._reads import KafkaRead, Read

__all__ = ["KafkaSpout", "OpaqueKafkaSpout", "TransactionalKafkaSpout"]

log = logging.getLogger(__name__)


class _PinnedOffsets(BatchSpout):
    """What both kinds have in common: all but what a replay holds."""

    read_in = RunsIn.PYTHON

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topics: str | Sequence[str],
        *,
        start: str | datetime | Mapping[str, Mapping[int, int]] = "earliest",
        value_schema: FieldNames | Schema | None = None,
        columns: Sequence[str] | None = None,
        on_error: str | None = None,
        on_data_loss: str = "fail",
        isolation: str = "read_committed",
        max_batch_size: int | None = None,
        refresh_secs: float = 5.0,
        timeout_secs: float = 10.0,
        options: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        self._name = type(self).__name__
        self.servers = KafkaServers.of(bootstrap, options, isolation)
        self.topics = TopicChoice.of(topics)
        self.start = Start.of(start, self.topics)
        self._value_schema = _checked_value_schema(value_schema, self._name)
        self._columns = self._chosen_columns(columns)
        self._on_malformed = self._chosen_malformed(on_error)
        if on_data_loss not in ("fail", "skip"):
            raise TopologyError(
                f"{self._name}: on_data_loss is 'fail' or 'skip', not {on_data_loss!r}"
            )
        sized = max_batch_size is not None
        if sized and (type(max_batch_size) is not int or max_batch_size < 1):
            raise TopologyError(
                f"{self._name}: max_batch_size is a number of offsets, at least 1, not "
                f"{max_batch_size!r}"
            )
        for name, given in (("refresh_secs", refresh_secs), ("timeout_secs", timeout_secs)):
            if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
                raise TopologyError(f"{self._name}: {name} is a number of seconds, not {given!r}")
        self.skips_lost = on_data_loss == "skip"
        self.max_batch_size = max_batch_size
        self.refresh_s = float(refresh_secs)
        self.timeout_s = float(timeout_secs)

    def __repr__(self) -> str:
        return f"{self._name}({self.servers.bootstrap!r}, {str(self.topics)!r})"

    @property
    def schema(self) -> Schema:
        """The fields of the JSON, if the values are such, and those of Kafka's own."""
        own = COLUMNS.select(self._columns, where=self._name)
        return Schema((*(self._value_schema or Schema()).fields, *own.fields))

    def open(self, context: SpoutContext) -> BatchPlanner:
        return KafkaPlanner(self, context)

    def read(self, metadata: Any) -> Read:
        """Describe the ranges of a batch."""
        ranges = tuple(
            (topic, number, start, end)
            for (topic, number), (start, end) in sorted(ranges_of(metadata).items())
            if end > start
        )
        return KafkaRead(
            schema=self.schema,
            servers=self.servers,
            ranges=ranges,
            columns=self._columns,
            value_schema=self._value_schema,
            on_malformed=self._on_malformed,
            spout_id=metadata["spout"],
            is_opaque=self.kind is SpoutKind.OPAQUE,
            skips_lost=self.skips_lost,
            timeout_s=self.timeout_s,
        )

    def read_nothing(self) -> Read:
        return self.read({"spout": "", "topics": {}})

    def on_malformed(self, conf: Config) -> OnMalformed | None:
        if self._value_schema is None:
            return None
        return self._on_malformed or OnMalformed(conf.on_error)

    def so_far(self, metadata: Any, folder: Path | None, spout_id: str) -> Any | None:
        """Return all offsets from the first that was read; None if some were lost on the way."""
        if metadata["lost"]:
            return None
        firsts = firsts_of(metadata)
        return with_ranges(metadata, lambda place, _, end: (firsts[place], end))

    def pieces(self, metadata: Any) -> list[Piece]:
        """Return the ranges of a batch."""
        return [Piece(name, None) for name in _named_ranges(metadata).values()]

    def leave_out(self, metadata: Any, names: Sequence[str]) -> Any:
        """Count some ranges of a batch as read without reading them."""
        out = {place for place, name in _named_ranges(metadata).items() if name in names}
        return with_ranges(metadata, lambda place, at, end: (end if place in out else at, end))

    def identity(self) -> Mapping[str, Any]:
        """Kind and fields. Topics and partitions may come; another cluster has other topic ids."""
        return {"spout": "Kafka", "kind": self.kind.value, "fields": str(self.schema)}

    def check(self) -> None:
        """See that the topics are there, if the Kafka is; one that is away is waited for."""
        cluster = KafkaCluster(self.servers)
        try:
            found, _ = cluster.topics(self.topics)
        except OutageError as error:
            log.warning("%r is not checked: %s", self, error)
            return
        finally:
            cluster.close()
        missing = [name for name in self.topics.names if name not in found]
        if missing:
            raise SourceError(
                f"{self!r}: there is no topic {missing[0]!r} at {self.servers.bootstrap}; make it "
                "first, or correct the name"
            )

    def _chosen_columns(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        parsed = set() if self._value_schema is None else {*self._value_schema.names}
        if columns is None:
            chosen = tuple(n for n in COLUMNS.names if n != "value" or not parsed)
            taken = [name for name in chosen if name in parsed]
            if taken:
                raise TopologyError(
                    f"{self._name}: {taken[0]!r} is a field of value_schema and a column of "
                    f"Kafka's; say which of Kafka's columns you want: columns=[...]"
                )
            return chosen
        chosen = (columns,) if isinstance(columns, str) else tuple(columns)
        for name in chosen:
            if name not in COLUMNS.names or name in parsed or chosen.count(name) > 1:
                raise TopologyError(
                    f"{self._name}: columns are some of {', '.join(COLUMNS.names)}, each once and "
                    f"none that value_schema has; got {columns!r}"
                )
        if not chosen and not parsed:
            raise TopologyError(f"{self._name}: a stream needs at least one column")
        return chosen

    def _chosen_malformed(self, on_error: str | None) -> OnMalformed | None:
        if on_error is None:
            return None
        if self._value_schema is None:
            raise TopologyError(
                f"{self._name}: on_error is for values that are not JSON of value_schema; give "
                "value_schema too"
            )
        if on_error not in ("fail", "dead_letter", "null"):
            raise TopologyError(
                f'{self._name}: on_error is "fail", "dead_letter" or "null", not {on_error!r}'
            )
        return OnMalformed(on_error)


class TransactionalKafkaSpout(_PinnedOffsets):
    """Emit the messages of topics; a replay of a batch has the same messages.

    The offsets of a batch are fixed for ever when it is planned. While a broker is away that holds
    a part of it, the run waits ("waiting for kafka, 34 s"), and goes on by itself.

    Args:
        bootstrap: Brokers to begin with, `"host:port,host:port"`, or a list of such.
        topics: A name, a list of names, or a pattern, which begins with ^ and must match a whole
            name; topics and partitions that come later are read from their first message.
        start: Where the first batch begins: "earliest", "latest", a `datetime` (the first message
            of that time or later), or `{"orders": {0: 1200, 1: 0}}` (partitions that it does not
            name begin with their first message).
        value_schema: Fields, as DDL: values are JSON objects with them. They come first, and
            Kafka's columns, without `value`, behind them.
        columns: Which of Kafka's columns the stream has: key, value, topic, partition, offset,
            timestamp, headers. None: all, without `value` where that is parsed.
        on_error: What becomes of a value that is not such JSON: "fail" (the batch fails and says
            where it stands), "dead_letter", or "null" (nulls for what cannot be read). None: as
            the configuration says. A message without a value (a tombstone) gives nulls.
        on_data_loss: What to do if messages are gone that were not read yet, because the topic was
            deleted or does not keep them as long: "fail" ends the run; "skip" goes on without
            them, logs which, and counts their offsets in the metadata of the batch.
        isolation: "read_committed" leaves out what belongs to transactions that were aborted, and
            what is behind one that is open; or "read_uncommitted".
        max_batch_size: How many offsets a batch has at most. None: 100,000, or as many as a run
            that sizes its batches asks for.
        refresh_secs: How often to look for new topics and partitions.
        timeout_secs: How long a partition may give nothing before its broker counts as away.
        options: Further options of librdkafka, as `{"security.protocol": "SASL_SSL",
            "sasl.password": "${KAFKA_PASSWORD}"}`; `${NAME}` is taken from the environment, where
            the client is made. Their values are never shown.
    """

    kind = SpoutKind.TRANSACTIONAL


class OpaqueKafkaSpout(_PinnedOffsets):
    """Emit the messages of topics; batches go on without a partition that cannot be reached.

    A replay may have other messages: each attempt is planned anew, from where the batch before
    ended, with the partitions that are there. One that is away catches up later. Exact with an
    opaque state. The arguments are those of `TransactionalKafkaSpout`.
    """

    kind = SpoutKind.OPAQUE


def _checked_value_schema(given: FieldNames | Schema | None, where: str) -> Schema | None:
    if given is None:
        return None
    schema = Schema.parse(given).require_types(where=f"{where}: value_schema")
    if not len(schema):
        raise TopologyError(f'{where}: value_schema has fields, as in "a string, n bigint"')
    return schema


def _named_ranges(metadata: Any) -> dict[tuple[str, int], str]:
    """Return the ranges that hold something, by the names that people choose them by."""
    return {
        place: f"{place_name(*place)}: offsets {start} to {end - 1}"
        for place, (start, end) in ranges_of(metadata).items()
        if end > start
    }
