"""The driver's look at a Kafka: which topics there are, and from where to where each goes.

A broker that is away must not hold up the others: each is asked by itself, and one that has not
answered in time is not waited for again. What it was asked stays open, and its answer counts
whenever it comes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from waterspout._kafka_servers import (
    KafkaClientErrors,
    KafkaServers,
    is_topic,
    offset_in,
    require_confluent_kafka,
)
from waterspout.errors import SourceError, TopologyError
from waterspout.spouts._kafka_plan import ClusterLook, Extent, Place, TopicLook

__all__ = ["KafkaCluster", "TopicChoice"]

_ANSWER_S = 3.0
"""How long the driver waits for an answer; who has not given one by then is away."""

_OPEN_S = 30.0
"""How long a question to a broker that is away stays open before it is asked anew."""

_NO_ID = "A" * 22  # as brokers write it in their base 64


@dataclass(frozen=True)
class TopicChoice:
    """The topics of a spout: those with these names, or all that a pattern matches."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    @classmethod
    def of(cls, topics: str | Sequence[str]) -> TopicChoice:
        """Read what a user has written; a pattern begins with ^.

        >>> TopicChoice.of("^orders-.*").selects("orders-eu"), TopicChoice.of("a").selects("ab")
        (True, False)
        """
        if isinstance(topics, str) and topics.startswith("^"):
            try:
                re.compile(topics)
            except re.error as error:
                raise TopologyError(f"topics={topics!r} is no pattern: {error}") from None
            return cls(pattern=topics)
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        for name in names:
            if not is_topic(name):
                raise TopologyError(
                    f"{name!r} is not the name of a topic; a name has letters, digits, '.', '_' "
                    "and '-'; a pattern begins with ^ and stands alone"
                )
        if not names or len(set(names)) != len(names):
            raise TopologyError(f"topics={topics!r} must name one topic or more, each once")
        return cls(names)

    def selects(self, topic: str) -> bool:
        """Whether a topic is to be read."""
        if self.pattern is None:
            return topic in self.names
        return not topic.startswith("__") and re.fullmatch(self.pattern, topic) is not None

    def __str__(self) -> str:
        return self.pattern or ", ".join(self.names)


@dataclass(slots=True)
class _Question:
    """What one broker was asked: the first and the last offset of its partitions."""

    since: float
    begins: Mapping[Place, Future[Any]]
    ends: Mapping[Place, Future[Any]]

    @property
    def futures(self) -> list[Future[Any]]:
        return [*self.begins.values(), *self.ends.values()]

    @property
    def is_answered(self) -> bool:
        return all(future.done() for future in self.futures)


@dataclass(slots=True)
class _Answers:
    extents: dict[Place, Extent] = field(default_factory=dict)
    away: dict[Place, str] = field(default_factory=dict)


class KafkaCluster:
    """Asks a Kafka. One thread uses it."""

    def __init__(self, servers: KafkaServers, clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = servers
        self._clock = clock
        self._errors = KafkaClientErrors()
        self._admin: Any = None
        self._open: dict[int, _Question] = {}
        """By broker, what was asked and is not answered."""
        self._slow: set[int] = set()
        """Brokers that have not answered in time, and are not waited for."""

    @property
    def admin(self) -> Any:
        """The client, made when it is first needed."""
        if self._admin is None:
            self._admin = self._servers.admin(self._errors)
        return self._admin

    def close(self) -> None:
        """Give up the connections."""
        self._admin = None
        self._open.clear()

    def topics(self, choice: TopicChoice) -> tuple[dict[str, TopicLook], dict[Place, int]]:
        """Return the chosen topics that are there, and which broker leads each partition."""
        names = choice.names if choice.pattern is None else self._matching(choice)
        found: dict[str, TopicLook] = {}
        leaders: dict[Place, int] = {}
        for name, described in self._described(names).items():
            partitions = described.partitions
            found[name] = TopicLook(_id(described), len(partitions))
            for part in partitions:
                leaders[name, part.id] = -1 if part.leader is None else part.leader.id
        return found, leaders

    def ids(self, names: Collection[str]) -> dict[str, str]:
        """Return the id of each of some topics that is there."""
        return {name: _id(topic) for name, topic in self._described(names).items()}

    def look(self, topics: Mapping[str, TopicLook], leaders: Mapping[Place, int]) -> ClusterLook:
        """Return what the partitions of some topics have now, as far as their brokers answer."""
        by_leader: dict[int, list[Place]] = {}
        for place, leader in sorted(leaders.items()):
            by_leader.setdefault(leader, []).append(place)
        found = _Answers()
        nobody = by_leader.pop(-1, [])
        found.away |= dict.fromkeys(nobody, "it has no leader at the moment")
        asked = {leader: self._asked(leader, places) for leader, places in by_leader.items()}
        quick = [f for leader, q in asked.items() if leader not in self._slow for f in q.futures]
        wait(quick, timeout=_ANSWER_S)
        for leader, question in asked.items():
            self._take(leader, question, by_leader[leader], found)
        self._errors.forget()
        return ClusterLook(dict(topics), found.extents, found.away)

    def at_time(self, places: Collection[Place], time_ms: int) -> dict[Place, int | None]:
        """Return the offset of the first message of a time or later; None: there is none yet."""
        kafka = require_confluent_kafka()
        spec = kafka.admin.OffsetSpec.for_timestamp(time_ms)
        futures = self._list(list(places), spec)
        wait(list(futures.values()), timeout=_ANSWER_S)
        found: dict[Place, int | None] = {}
        for place, future in futures.items():
            if not future.done():
                raise self._silent("no answer")
            offset = self._offset(future, least=-1)
            if isinstance(offset, str):
                raise self._silent(offset)
            found[place] = offset if offset >= 0 else None
        return found

    def _matching(self, choice: TopicChoice) -> list[str]:
        kafka = require_confluent_kafka()
        try:
            names = self.admin.list_topics(timeout=_ANSWER_S).topics
        except kafka.KafkaException as error:
            raise self._silent(_said(error)) from None
        return sorted(name for name in names if choice.selects(name))

    def _described(self, names: Collection[str]) -> dict[str, Any]:
        """Return the descriptions of those topics that are there."""
        kafka = require_confluent_kafka()
        if not names:
            return {}
        wanted = kafka.TopicCollection(sorted(names))
        futures = self.admin.describe_topics(wanted, request_timeout=_ANSWER_S)
        found: dict[str, Any] = {}
        for name, future in futures.items():
            try:
                found[name] = future.result(_ANSWER_S + 1.0)
            except TimeoutError:
                raise self._silent("no answer") from None
            except kafka.KafkaException as error:
                code = error.args[0].code()
                if code in (
                    kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
                    kafka.KafkaError._UNKNOWN_TOPIC,
                ):
                    continue
                if code == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    said = self._servers.secrets.hidden(_said(error))
                    raise SourceError(f"the topic {name!r} may not be read: {said}") from None
                raise self._silent(_said(error)) from None
        return found

    def _asked(self, leader: int, places: Sequence[Place]) -> _Question:
        """Return what a broker was asked: an open question, or a new one."""
        now, question = self._clock(), self._open.get(leader)
        if question is not None and not question.is_answered and now - question.since < _OPEN_S:
            return question
        if question is not None and question.is_answered and leader in self._slow:
            return question  # its answer has come after all
        spec = require_confluent_kafka().admin.OffsetSpec
        asked = _Question(
            now, self._list(places, spec.earliest()), self._list(places, spec.latest())
        )
        self._open[leader] = asked
        return asked

    def _list(self, places: Sequence[Place], spec: Any) -> dict[Place, Future[Any]]:
        kafka = require_confluent_kafka()
        level = self._servers.isolation.upper()
        futures = self.admin.list_offsets(
            {kafka.TopicPartition(*place): spec for place in places},
            isolation_level=getattr(kafka.IsolationLevel, level),
            request_timeout=_OPEN_S,
        )
        return {(at.topic, at.partition): future for at, future in futures.items()}

    def _take(
        self, leader: int, question: _Question, places: Sequence[Place], found: _Answers
    ) -> None:
        """Take what a broker has answered by now."""
        if question.is_answered:
            self._open.pop(leader, None)
        else:
            self._slow.add(leader)
        for place in places:
            begin, end = question.begins.get(place), question.ends.get(place)
            if begin is None or end is None:
                found.away[place] = "it was not asked for yet"
                continue
            if not (begin.done() and end.done()):
                why = self._errors.last or "no answer"
                found.away[place] = f"broker {leader}: {self._servers.secrets.hidden(why)}"
                continue
            first, last = self._offset(begin), self._offset(end)
            if isinstance(first, str) or isinstance(last, str):
                found.away[place] = f"broker {leader}: {first if isinstance(first, str) else last}"
                continue
            found.extents[place] = Extent(first, max(first, last))
            self._slow.discard(leader)

    def _offset(self, future: Future[Any], least: int = 0) -> int | str:
        """Return the offset that a broker has answered with, or why it cannot tell."""
        kafka = require_confluent_kafka()
        try:
            offset = offset_in(future.result(0), least)
        except kafka.KafkaException as error:
            return self._servers.secrets.hidden(_said(error))
        return "it answers without an offset" if offset is None else offset

    def _silent(self, said: str) -> Exception:
        """Return the error of a Kafka of which no broker answers, or that refuses us.

        Next time a new client asks: this one would wait for the controller that it knows, which
        may be the one broker that is down.
        """
        self.close()
        why = self._errors.last or said
        if self._errors.refused:
            hidden = self._servers.secrets.hidden(why)
            return SourceError(f"the Kafka at {self._servers.bootstrap} refuses us: {hidden}")
        return self._servers.away(why)


def _said(error: Any) -> str:
    return str(error.args[0].str()) if error.args else str(error)


def _id(described: Any) -> str:
    """Return the id of a topic; no text, where brokers are too old to have ids."""
    given = described.topic_id
    return "" if given is None or str(given) == _NO_ID else str(given)
