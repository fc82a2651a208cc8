"""What a loop of batches tells of others: steps of commits, partitions that are out of reach."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from waterspout.coordination.events import (
    CommitStep,
    Event,
    PartitionReachable,
    PartitionUnreachable,
)
from waterspout.coordination.progress import UnreachablePartition
from waterspout.spouts._base import BatchPlanner
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._away import PartitionName

__all__ = ["Reach", "Steps"]

log = logging.getLogger(__name__)


class Steps:
    """The steps of commits: noted by whoever takes them, published by the thread that drives."""

    def __init__(self, name: str, publish: Callable[[Event], None]) -> None:
        self._name = name
        self._publish = publish
        self._noted: deque[CommitStep] = deque()

    def note(self, step: Any, attempt: TransactionAttempt, state: str | None = None) -> None:
        """Note a step that was taken now. Callable from any thread; wakes nobody."""
        self._noted.append(CommitStep(self._name, attempt, step, state))

    def publish(self) -> None:
        """Tell what was noted, in its order."""
        while self._noted:
            self._publish(self._noted.popleft())


class Reach:
    """The partitions of spouts that cannot be reached: each change is told once."""

    def __init__(self, name: str, publish: Callable[[Event], None]) -> None:
        self._name = name
        self._publish = publish
        self._away: dict[tuple[str, PartitionName], UnreachablePartition] = {}

    @property
    def errors(self) -> dict[str, str]:
        """What was raised for each partition that is out of reach ("words/3")."""
        return {f"{away.component}/{away.partition}": away.error for away in self._away.values()}

    def look(self, planners: Mapping[str, BatchPlanner]) -> None:
        """Tell which partitions cannot be reached, and which can again."""
        now = {
            (spout_id, partition): error
            for spout_id, planner in planners.items()
            for partition, error in planner.unreachable().items()
        }
        for key in [key for key in self._away if key not in now]:
            del self._away[key]
            log.warning("partition %s of %r is there again", key[1], key[0])
            self._publish(PartitionReachable(self._name, *key))
        for key, error in now.items():
            before = self._away.get(key)
            if before is not None and before.error == error:
                continue
            since = time.time() if before is None else before.since
            self._away[key] = UnreachablePartition(*key, error, since)
            told = "partition %s of %r cannot be reached, and batches go on without it: %s"
            log.warning(told, key[1], key[0], error)
            self._publish(PartitionUnreachable(self._name, *key, error))
