"""Where the first batch of a Kafka spout begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from waterspout.errors import ConfigError, TopologyError
from waterspout.spouts._kafka_cluster import KafkaCluster, TopicChoice
from waterspout.spouts._kafka_plan import ClusterLook, Place

__all__ = ["Start"]


@dataclass(frozen=True)
class Start:
    """A place to begin: the first messages, the next ones, those of a time, or offsets."""

    latest: bool = False
    time_ms: int | None = None
    offsets: tuple[tuple[Place, int], ...] = ()

    @classmethod
    def of(cls, given: Any, topics: TopicChoice) -> Start:
        """Read what a user has written; an error says what could have been."""
        match given:
            case "earliest":
                return cls()
            case "latest":
                return cls(latest=True)
            case datetime():
                if given.tzinfo is None:
                    raise TopologyError(
                        f"start={given!r} does not say in which time zone: give it a tzinfo, as in "
                        "datetime(2026, 1, 1, tzinfo=UTC)"
                    )
                return cls(time_ms=int(given.timestamp() * 1000))
            case Mapping():
                return cls(offsets=tuple(sorted(_offsets(given, topics))))
        raise TopologyError(
            f'start={given!r} is none; write "earliest", "latest", a datetime with a time zone, or '
            '{"topic": {0: 1200}}'
        )

    @property
    def needs_all(self) -> bool:
        """Whether every partition must be asked before anything begins.

        Else one that is reached later would begin with its first message, though it should not.
        """
        return self.latest or self.time_ms is not None

    def positions(self, cluster: KafkaCluster, look: ClusterLook) -> dict[Place, int]:
        """Return where to begin; partitions that are not in it begin with their first message."""
        if self.latest:
            return {place: extent.end for place, extent in look.extents.items()}
        if self.time_ms is not None:
            found = cluster.at_time(look.extents, self.time_ms) if look.extents else {}
            return {p: look.extents[p].end if at is None else at for p, at in found.items()}
        chosen = dict(self.offsets)
        for place, offset in chosen.items():
            _refuse_unknown(place, offset, look)
        return chosen


def _offsets(given: Mapping[Any, Any], topics: TopicChoice) -> Collection[tuple[Place, int]]:
    found = []
    for topic, partitions in given.items():
        if not isinstance(topic, str) or not topics.selects(topic):
            raise TopologyError(f"start names {topic!r}, which is none of the topics: {topics}")
        if not isinstance(partitions, Mapping):
            raise TopologyError(f"start[{topic!r}] is a dict of offsets by partition, as {{0: 12}}")
        for number, offset in partitions.items():
            numbers = [isinstance(n, int) and not isinstance(n, bool) for n in (number, offset)]
            if not all(numbers) or number < 0 or offset < 0:
                raise TopologyError(
                    f"start[{topic!r}] has {number!r}: {offset!r}; partition and offset are "
                    "numbers from 0 on"
                )
            found.append(((topic, number), offset))
    return found


def _refuse_unknown(place: Place, offset: int, look: ClusterLook) -> None:
    topic, number = place
    here, extent = look.topics.get(topic), look.extents.get(place)
    if here is None or number >= here.partitions:
        raise ConfigError(f"start names partition {number} of topic {topic!r}, which is not there")
    if extent is not None and offset > extent.end:
        raise ConfigError(
            f"start says offset {offset} for partition {number} of topic {topic!r}, which ends at "
            f"{extent.end}; there is nothing to begin with"
        )
