"""Descriptions of what to read, for any engine to carry out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from waterspout._config import Config
from waterspout._kafka_servers import KafkaServers
from waterspout._schema import Schema
from waterspout.spouts._malformed import OnMalformed, TooLong, refuse_too_long
from waterspout.spouts._places import LOCAL, Place

__all__ = [
    "POSITION",
    "SMALL_BYTES",
    "TINY_BYTES",
    "TINY_ROWS",
    "EmitRead",
    "FilesRead",
    "FrameRead",
    "KafkaRange",
    "KafkaRead",
    "RangeRead",
    "Read",
    "RowsRead",
]

POSITION = "_position"
"""The column, where it is asked for, that says where in its source a row stands."""

TINY_ROWS = 10_000
TINY_BYTES = 1_000_000
SMALL_BYTES = 32_000_000


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows that the driver holds.

    A row's position in its source is `start` and how many rows are before it, behind a `prefix`;
    or what `positions` says of it.
    """

    schema: Schema
    rows: Sequence[Sequence[Any]]
    start: int = 0
    prefix: str = ""
    positions: Sequence[str] | None = None
    where: str = "a spout"

    @property
    def is_small(self) -> bool:
        """Whether it is safe to expect a small result."""
        return len(self.rows) <= 100_000

    @property
    def is_tiny(self) -> bool:
        """Whether one task reads and reduces it sooner than a shuffle would take."""
        return len(self.rows) <= TINY_ROWS

    def row_positions(self) -> list[str]:
        """Return the position of each row."""
        if self.positions is not None:
            return list(self.positions)
        return [f"{self.prefix}{self.start + index}" for index in range(len(self.rows))]


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The numbers from `start` to `end` (exclusive), each with a time `1/per_second` apart."""

    schema: Schema
    start: int
    end: int
    epoch_s: float
    per_second: float

    @property
    def is_small(self) -> bool:
        """Whether it is safe to expect a small result."""
        return self.end - self.start <= 100_000

    @property
    def is_tiny(self) -> bool:
        """Whether one task reads and reduces it sooner than a shuffle would take."""
        return self.end - self.start <= TINY_ROWS


@dataclass(frozen=True, slots=True)
class FilesRead:
    """Files in a format that Spark reads."""

    schema: Schema
    format: str
    paths: Sequence[str]
    size_bytes: int
    options: Mapping[str, str] = field(default_factory=dict)
    on_malformed: OnMalformed | None = None
    """What becomes of malformed records; None: what the configuration says."""

    too_long: Sequence[TooLong] = ()
    max_record_bytes: int = 0
    place: Place = field(default=LOCAL, compare=False)
    """How the driver reaches the files. Spark reads them by their names."""

    @property
    def is_small(self) -> bool:
        """Whether it is safe to expect a small result.

        Rows that are not expected to fit the driver are put down on the executors before they
        are fetched: a seventh more work for the first batch of a backlog of 18 MB.
        """
        return self.size_bytes <= SMALL_BYTES

    @property
    def is_tiny(self) -> bool:
        """Whether one task reads and reduces it sooner than a shuffle would take."""
        return self.size_bytes <= TINY_BYTES

    def malformed_are(self, conf: Config) -> OnMalformed:
        """Return what becomes of malformed records; raise if one is too long to be put aside."""
        chosen = self.on_malformed or OnMalformed(conf.on_error)
        if chosen is not OnMalformed.DEAD_LETTER:
            refuse_too_long(self.too_long, self.max_record_bytes)
        return chosen


@dataclass(frozen=True, slots=True)
class EmitRead:
    """What the emitters of a transactional spout emit, each in a task of its own.

    `spout` is pickled. `schema` is the stream's: without the attempt, which comes first in what
    an emitter emits.
    """

    schema: Schema
    spout: bytes
    topology: str
    spout_id: str
    options: Mapping[str, Any]
    metadata: Any
    is_partitioned: bool
    taken: Mapping[int, bytes] = field(default_factory=dict)
    """By partition, what the driver has taken of it; those are not asked again."""

    is_small: ClassVar[bool] = False
    """Nobody knows before it is read."""

    is_tiny: ClassVar[bool] = False

    @property
    def partitions(self) -> list[int]:
        """Those that have something in this batch; of a spout without partitions there is one."""
        if not self.is_partitioned:
            return [0]
        return [number for number, entry in enumerate(self.metadata) if entry[1] is not None]


@dataclass(frozen=True, slots=True)
class FrameRead:
    """What a function of the Spark session returns: a DataFrame of a pinned range.

    None as the function: nothing is to be read.
    """

    schema: Schema
    make: Callable[[Any], Any] | None
    position: str
    where: str

    is_small: ClassVar[bool] = False
    """Nobody knows before it is read."""

    is_tiny: ClassVar[bool] = False


KafkaRange = tuple[str, int, int, int]
"""Topic, partition, first offset, offset after the last."""


@dataclass(frozen=True, slots=True)
class KafkaRead:
    """Ranges of offsets of a Kafka, each read whole by a task.

    With a `value_schema` the value of a message is JSON of these fields, which stand first in the
    stream; `columns` are the fields of Kafka's own behind them.
    """

    schema: Schema
    servers: KafkaServers
    ranges: Sequence[KafkaRange]
    columns: Sequence[str]
    value_schema: Schema | None = None
    on_malformed: OnMalformed | None = None
    """What becomes of values that are not such JSON; None: what the configuration says."""

    spout_id: str = ""
    is_opaque: bool = False
    """Whether an attempt may go on without a partition that cannot be reached."""
    skips_lost: bool = False
    timeout_s: float = 10.0

    format: ClassVar[str] = "json"

    @property
    def offsets(self) -> int:
        """How many offsets it has; the messages may be fewer."""
        return sum(end - start for _, _, start, end in self.ranges)

    @property
    def is_small(self) -> bool:
        """Whether it is safe to expect a small result; nobody knows how large messages are."""
        return self.offsets <= 10_000

    @property
    def is_tiny(self) -> bool:
        """Several tasks fetch from several brokers."""
        return False

    def malformed_are(self, conf: Config) -> OnMalformed:
        """Return what becomes of values that are malformed."""
        return self.on_malformed or OnMalformed(conf.on_error)


Read = RowsRead | RangeRead | FilesRead | EmitRead | FrameRead | KafkaRead
