"""The driver side of a Kafka spout: looks at the topics, and pins the offsets of each batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waterspout.errors import DataLossError
from waterspout.spouts._base import BatchPlanner, SpoutContext, SpoutKind
from waterspout.spouts._kafka_cluster import KafkaCluster
from waterspout.spouts._kafka_plan import (
    ClusterLook,
    Extent,
    Loss,
    OffsetsStanding,
    Place,
    TopicLook,
    ends_of,
    firsts_of,
    ids_of,
    metadata_of,
    offsets_in,
    ranges_of,
    shared_out,
    stand,
    starts_of,
)
from waterspout.spouts._kafka_reading import place_name
from waterspout.transactional._away import PartitionName, PartitionsAway, read_away_error

if TYPE_CHECKING:
    from waterspout.spouts.kafka import _PinnedOffsets

__all__ = ["KafkaPlanner"]

log = logging.getLogger(__name__)

_SURE_S = 3.0
"""How long a loss must be seen to be believed: a broker that has just started may be behind."""

_USUAL_SIZE = 100_000
"""How many offsets a batch has at most, where nobody says."""

_FRESH_S = 0.5
"""How old a look may be while it still has something for the next batch."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What was found for a batch behind `previous`, before it is planned."""

    previous: str
    at: float
    standing: OffsetsStanding
    ids: Mapping[str, str]
    lost: int


class KafkaPlanner(BatchPlanner):
    """Plans batches of offsets. Where one goes on, the metadata of the batch before says."""

    unit = "offsets"

    def __init__(self, spout: _PinnedOffsets, context: SpoutContext) -> None:
        self._spout = spout
        self._name = context.spout_id
        self._clock = context.clock
        self._is_opaque = spout.kind is SpoutKind.OPAQUE
        self._cluster = KafkaCluster(spout.servers)
        self._away = PartitionsAway(context.conf.retry_backoff, context.clock)
        self._topics: dict[str, TopicLook] = {}
        self._leaders: dict[Place, int] = {}
        self._refresh_at = self._clock()
        self._ahead: _Ahead | None = None
        self._extents: Mapping[Place, Extent] = {}
        """Of the last look; for the lag."""
        first = context.known.get(context.since)
        self._starts = None if first is None else starts_of(first)
        """Where the first batch begins, once that is known: a replay of it must not skip."""
        self._doubts: dict[tuple[str, int | None], float] = {}
        """Losses that were seen and are not believed yet, and since when."""
        self._told: set[tuple[str, int | None, str]] = set()

    def is_ready(self, previous: Any) -> bool:
        self._ahead = self._found(previous)
        return bool(self._ahead.standing.waiting)

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        """Pin the next offsets, `target` of them; at most as many as the spout allows."""
        ahead, self._ahead = self._found(previous), None
        if previous is None:
            # A replay goes on from here, not from where "earliest" is by then.
            self._starts = dict(ahead.standing.positions)
        most = self._spout.max_batch_size
        if target is None:
            limit = most or _USUAL_SIZE
        else:
            limit = max(1, target if most is None else min(target, most))
        return metadata_of(
            ahead.standing.positions,
            shared_out(ahead.standing.waiting, limit, turn=txid),
            ids=ahead.ids,
            firsts=firsts_of(previous),
            spout_id=self._name,
            lost=ahead.lost,
        )

    def size_of(self, metadata: Any) -> int:
        """Return how many offsets a batch has: what `target` of `plan` counts."""
        return offsets_in(metadata)

    def holds_data(self, metadata: Any) -> bool | None:
        return offsets_in(metadata) > 0

    def lag(self, previous: Any) -> Mapping[str, int]:
        """Count the offsets between a batch and the ends that were seen last."""
        at = ends_of(previous) if previous is not None else self._starts or {}
        waiting = [max(0, e.end - at.get(p, e.begin)) for p, e in self._extents.items()]
        return {"offsets": sum(waiting)} if self._extents else {}

    def is_drained(self) -> bool:
        """Whether every partition was asked; one that rests, or is in doubt, may have something."""
        return not (self._away.left_alone or self._doubts)

    def look_anew(self) -> None:
        self._ahead, self._refresh_at = None, self._clock()

    def unreachable(self) -> Mapping[PartitionName, str]:
        return self._away.errors

    def attempt_failed(self, error: BaseException) -> None:
        self._ahead, self._refresh_at = None, self._clock()
        told = read_away_error(error, self._name) if self._is_opaque else None
        if told is not None:
            self._away.read_in_vain(*told)

    def succeeded(self, txid: int, metadata: Any) -> None:
        for place, (start, end) in ranges_of(metadata).items():
            if end > start:
                self._away.committed(place_name(*place))

    def confirm(self, metadata: Any) -> None:
        """See that what was read is of the topics that were planned, not of new ones."""
        read = {topic for (topic, _), (start, end) in ranges_of(metadata).items() if end > start}
        planned, now = ids_of(metadata), self._cluster.ids(read)
        for topic in sorted(read):
            loss = None
            if topic not in now:
                loss = Loss(topic, None, "it is gone", certain=False)
            elif planned[topic] and now[topic] and planned[topic] != now[topic]:
                loss = Loss(topic, None, "it was deleted and made anew, and has another id now")
            if loss is None:
                self._doubts.pop((topic, None), None)
            elif loss.certain or self._is_sure(loss):
                raise self._lost(loss)
            else:
                raise self._spout.servers.away(f"the topic {topic!r} is not known at the moment")

    def close(self) -> None:
        self._cluster.close()

    def _found(self, previous: Any) -> _Ahead:
        """Return what the last look has found for a batch, if it is still of use; else look."""
        ahead, key = self._ahead, json.dumps(previous)
        fresh = ahead is not None and self._clock() - ahead.at < _FRESH_S
        if ahead is not None and fresh and ahead.previous == key and ahead.standing.waiting:
            return ahead
        return self._looked(previous, key)

    def _looked(self, previous: Any, key: str) -> _Ahead:
        """Look at the topics, and see where a batch behind `previous` would go on."""
        look = self._look()
        if previous is None and self._starts is None:
            self._starts = self._first_positions(look)
        positions = ends_of(previous) if previous is not None else dict(self._starts or {})
        ids = ids_of(previous)
        read = {topic for topic, _ in positions if self._spout.topics.selects(topic)}
        wanted = {*look.topics, *read, *self._spout.topics.names}
        standing = stand(positions, ids, look, wanted=wanted)
        lost = 0 if previous is None else int(previous["lost"])
        standing, ids = self._without_doubts(standing, positions, ids, look)
        lost += self._counted(standing.losses)
        there = {p: e for p, e in standing.extents.items() if self._away.may_ask(place_name(*p))}
        standing = OffsetsStanding(standing.positions, there)
        return _Ahead(key, self._clock(), standing, ids, lost)

    def _look(self) -> ClusterLook:
        now = self._clock()
        if now >= self._refresh_at:
            self._topics, self._leaders = self._cluster.topics(self._spout.topics)
            self._refresh_at = now + self._spout.refresh_s
        began = self._clock()
        look = self._cluster.look(self._topics, self._leaders)
        self._extents = look.extents
        self._away.begin_look()
        if look.away:
            self._refresh_at = began  # another broker may lead them by now
            place, why = min(look.away.items())
            if not self._is_opaque or not look.extents:
                some = f"{place_name(*place)}: {why}"
                more = f" (and {len(look.away) - 1} more partitions)" if len(look.away) > 1 else ""
                raise self._spout.servers.away(some + more)
        for place in look.extents:
            self._away.answered(place_name(*place))
        for place, why in look.away.items():
            # Asking is not waited for twice, so that it costs the others nothing.
            self._away.asked_in_vain(place_name(*place), OSError(why), self._clock())
        return look

    def _first_positions(self, look: ClusterLook) -> dict[Place, int]:
        if look.away and self._spout.start.needs_all:
            place, why = min(look.away.items())
            raise self._spout.servers.away(f"{place_name(*place)}: {why}")
        return self._spout.start.positions(self._cluster, look)

    def _without_doubts(
        self,
        standing: OffsetsStanding,
        before: Mapping[Place, int],
        ids: Mapping[str, str],
        look: ClusterLook,
    ) -> tuple[OffsetsStanding, dict[str, str]]:
        """Return the same without what is lost only perhaps: that stays as it was, for now."""
        doubted = [loss for loss in standing.losses if not loss.certain and not self._is_sure(loss)]
        seen = {(loss.topic, loss.partition) for loss in standing.losses}
        self._doubts = {key: since for key, since in self._doubts.items() if key in seen}
        positions, extents = dict(standing.positions), dict(standing.extents)
        now_ids = {**ids, **{t: found.id for t, found in look.topics.items()}}
        for loss in doubted:
            self._refresh_at = self._clock()
            for place in [p for p in positions if _concerns(loss, p)]:
                extents.pop(place, None)
                positions.pop(place)
            positions |= {p: at for p, at in before.items() if _concerns(loss, p)}
            if loss.partition is None:
                now_ids[loss.topic] = ids.get(loss.topic, "")
        sure = tuple(loss for loss in standing.losses if loss not in doubted)
        return OffsetsStanding(positions, extents, sure), now_ids

    def _is_sure(self, loss: Loss) -> bool:
        since = self._doubts.setdefault((loss.topic, loss.partition), self._clock())
        return self._clock() - since >= _SURE_S

    def _counted(self, losses: tuple[Loss, ...]) -> int:
        """Return how many offsets are lost; raise where that is not to be."""
        for loss in losses:
            if not self._spout.skips_lost:
                raise self._lost(loss)
            if (loss.topic, loss.partition, loss.why) not in self._told:
                self._told.add((loss.topic, loss.partition, loss.why))
                log.warning("%s; it is skipped: %d offsets", self._text(loss), loss.offsets)
        return sum(loss.offsets for loss in losses)

    def _text(self, loss: Loss) -> str:
        part = "" if loss.partition is None else f", partition {loss.partition}"
        return f"spout {self._name!r}: topic {loss.topic!r}{part}: {loss.why}"

    def _lost(self, loss: Loss) -> DataLossError:
        return DataLossError(
            f"{self._text(loss)}. Messages that were not read are lost, and nothing was skipped: "
            'to go on without them, and have them counted, say on_data_loss="skip".'
        )


def _concerns(loss: Loss, place: Place) -> bool:
    return place[0] == loss.topic and loss.partition in (None, place[1])
