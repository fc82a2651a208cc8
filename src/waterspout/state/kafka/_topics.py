"""The two topics of a state: made where they are missing, and looked at before a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from waterspout._kafka_servers import (
    KafkaClientErrors,
    KafkaServers,
    require_confluent_kafka,
    said_by,
)
from waterspout.errors import ForeignStoreError, StoreError
from waterspout.state._base import Risk
from waterspout.state.kafka._heads import Deadline
from waterspout.state.kafka._notes import NOTE_PARTITIONS

__all__ = ["StateTopics", "why_unsafe"]

_ASK_S = 5.0
_PAUSE_S = 0.05
_HEADS: Mapping[str, str] = {
    # A head that has not moved for a week must still be there.
    "cleanup.policy": "compact",
    # What is read from the start by each new process stays little.
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True)
class StateTopics:
    """The topic that rows go to, and that of heads beside it."""

    servers: KafkaServers
    topic: str
    heads: str
    partitions: int
    replicas: int
    creates: bool

    def check(self, deadline: Deadline) -> None:
        """Refuse topics that cannot be a state's, or are missing and not to be made."""
        admin, errors = self._admin()
        there = self._described(admin, errors, deadline)
        self._refuse_missing(there)
        self._refuse_other_heads(admin, errors, there, deadline)

    def _refuse_other_heads(
        self, admin: Any, errors: KafkaClientErrors, there: Mapping[str, Any], deadline: Deadline
    ) -> None:
        """Refuse what is no topic of heads, and would lose them or look for them elsewhere."""
        if self.heads not in there:
            return
        found = len(there[self.heads].partitions)
        policy = self._settings(admin, errors, [self.heads], deadline)[self.heads]
        if found != 1 + NOTE_PARTITIONS or policy["cleanup.policy"] != "compact":
            raise ForeignStoreError(
                f"the topic {self.heads!r} is no topic of heads: that has {1 + NOTE_PARTITIONS} "
                f"partitions and cleanup.policy compact, this one {found} and "
                f"{policy['cleanup.policy']}. Give heads=... another name, or mend its policy."
            )

    def risk(self, deadline: Deadline) -> Risk | None:
        """Return why what the topics have acknowledged may be lost, if that is so."""
        admin, errors = self._admin()
        there = self._described(admin, errors, deadline)
        settings = self._settings(admin, errors, sorted(there), deadline)
        for name, described in there.items():
            replicas = min((len(part.replicas) for part in described.partitions), default=1)
            found = why_unsafe(name, replicas, settings[name])
            if found is not None:
                return found
        return None

    def create(self, deadline: Deadline) -> None:
        """Make what is missing, and wait until each partition has a leader."""
        kafka = require_confluent_kafka()
        admin, errors = self._admin()
        there = self._described(admin, errors, deadline)
        self._refuse_missing(there)
        self._refuse_other_heads(admin, errors, there, deadline)
        new = kafka.admin.NewTopic
        wanted = [
            new(self.topic, self.partitions, self.replicas),
            new(self.heads, 1 + NOTE_PARTITIONS, self.replicas, config=dict(_HEADS)),
        ]
        missing = [one for one in wanted if one.topic not in there]
        if not missing:
            return
        futures = admin.create_topics(missing, operation_timeout=_ASK_S, request_timeout=_ASK_S)
        for name, future in futures.items():
            try:
                future.result(2 * _ASK_S)
            except (kafka.KafkaException, FutureTimeout) as error:
                self._unless_there(error, name, errors)
        self._await_leaders(admin, errors, deadline)

    def _unless_there(self, error: Any, name: str, errors: KafkaClientErrors) -> None:
        kafka = require_confluent_kafka().KafkaError
        told = error.args[0] if error.args else None
        code = told.code() if isinstance(told, kafka) else kafka._TIMED_OUT
        if code == kafka.TOPIC_ALREADY_EXISTS:
            return
        if code in (kafka._TIMED_OUT, kafka.REQUEST_TIMED_OUT, kafka._TRANSPORT):
            raise self.servers.away(errors.last or said_by(error)) from None
        raise StoreError(
            f"the topic {name!r} cannot be made at {self.servers.bootstrap}: "
            f"{self.servers.secrets.hidden(said_by(error))}. Make it by hand (a topic of heads has "
            f"{1 + NOTE_PARTITIONS} partitions and cleanup.policy compact), or give replicas=..."
        ) from None

    def _await_leaders(self, admin: Any, errors: KafkaClientErrors, deadline: Deadline) -> None:
        while True:
            there = self._described(admin, errors, deadline)
            parts = [part for one in there.values() for part in one.partitions]
            if len(there) == 2 and all(p.leader is not None and p.leader.id >= 0 for p in parts):
                return
            if deadline.is_over:
                raise self.servers.away("topics that were made have no leaders")
            time.sleep(_PAUSE_S)

    def _refuse_missing(self, there: Mapping[str, Any]) -> None:
        missing = [name for name in (self.topic, self.heads) if name not in there]
        if missing and not self.creates:
            raise StoreError(
                f"there is no topic {missing[0]!r} at {self.servers.bootstrap}, and create=False. "
                f"Make it; a topic of heads has {1 + NOTE_PARTITIONS} partitions and "
                "cleanup.policy compact"
            )

    def _admin(self) -> tuple[Any, KafkaClientErrors]:
        errors = KafkaClientErrors()
        return self.servers.admin(errors), errors

    def _described(
        self, admin: Any, errors: KafkaClientErrors, deadline: Deadline
    ) -> dict[str, Any]:
        """Return the descriptions of those topics that are there."""
        kafka = require_confluent_kafka()
        absent = (kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError._UNKNOWN_TOPIC)

        def ask() -> dict[str, Any]:
            wanted = kafka.TopicCollection([self.topic, self.heads])
            found: dict[str, Any] = {}
            for name, future in admin.describe_topics(
                wanted, request_timeout=deadline.at_most(_ASK_S)
            ).items():
                try:
                    found[name] = future.result(2 * _ASK_S)
                except kafka.KafkaException as error:
                    if error.args[0].code() not in absent:
                        raise
            return found

        return self._asked(ask, errors, deadline)  # type: ignore[no-any-return]

    def _settings(
        self, admin: Any, errors: KafkaClientErrors, names: list[str], deadline: Deadline
    ) -> dict[str, dict[str, str]]:
        """Return the settings of topics."""
        resource = require_confluent_kafka().admin.ConfigResource

        def ask() -> dict[str, dict[str, str]]:
            wanted = [resource(resource.Type.TOPIC, name) for name in names]
            futures = (
                admin.describe_configs(wanted, request_timeout=deadline.at_most(_ASK_S))
                if wanted
                else {}
            )
            return {
                one.name: {k: str(v.value) for k, v in future.result(2 * _ASK_S).items()}
                for one, future in futures.items()
            }

        return self._asked(ask, errors, deadline)  # type: ignore[no-any-return]

    def _asked(self, ask: Any, errors: KafkaClientErrors, deadline: Deadline) -> Any:
        kafka = require_confluent_kafka()
        while True:
            try:
                return ask()
            except (kafka.KafkaException, FutureTimeout) as error:
                said = errors.last or said_by(error)
                if errors.refused:
                    hidden = self.servers.secrets.hidden(said)
                    raise StoreError(
                        f"the Kafka at {self.servers.bootstrap} refuses us: {hidden}"
                    ) from None
                if deadline.is_over:
                    raise self.servers.away(said) from None
            time.sleep(min(_PAUSE_S, deadline.left))


def why_unsafe(topic: str, replicas: int, settings: Mapping[str, str]) -> Risk | None:
    """Return why a topic may lose what it has acknowledged; None if it does not."""
    if settings.get("unclean.leader.election.enable") == "true":
        return Risk(
            f"topic {topic!r} has unclean.leader.election.enable: a replica may take over that "
            "has not all that was acknowledged",
            "Set it to false for the topic",
        )
    if replicas > 1 and settings.get("min.insync.replicas") == "1":
        return Risk(
            f"topic {topic!r} has {replicas} replicas and min.insync.replicas 1: what one broker "
            "alone has acknowledged is lost with it",
            "Set its min.insync.replicas to 2",
        )
    return None
