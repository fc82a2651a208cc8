"""`BatchBolt` and `Committer`: what users write for transactional topologies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from waterspout.topology.collector import restored_context
from waterspout.topology.component import Component
from waterspout.topology.context import TopologyContext
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.collector import BatchCollector
from waterspout.tuples import Tuple

__all__ = ["BatchBolt", "BatchContext", "Committer"]


class BatchContext(TopologyContext):
    """What a task knows about its topology, and what a committer may have to know.

    `resolved` is there in the commit phase: for each txid that more than one attempt had begun to
    commit, the attempt that did. A record written by another attempt of such a txid is void; the
    maps of `waterspout.state` take it as an argument of `begin_commit`.
    """

    resolved: Mapping[int, int]

    @classmethod
    def of(cls, context: TopologyContext, resolved: Mapping[int, int]) -> BatchContext:
        """Return the context of a task for one phase."""
        made = object.__new__(cls)
        made.__dict__.update(vars(context), resolved=dict(resolved))
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return (restored_context, ())


class BatchBolt(Component, ABC):
    """Processes one batch: there is one object for each task and attempt, dropped afterwards.

    `FailedException`, from any method, replays the batch and those after it. Between the phases
    the object may be pickled: connections are to be opened where they are used.
    """

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: BatchContext,
        collector: BatchCollector,
        id: TransactionAttempt,
    ) -> None:
        """Get ready for the batch `id`; called on an executor."""
        self.collector = collector
        self.id = id

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple, in either phase; its first field is the attempt."""

    def finish_batch(self) -> None:
        """All tuples of the batch were executed here; called once, tuples or not.

        In a committer, and behind one, it runs in the commit phase: batches in txid order, one at
        a time. It is called again if its worker is lost: store the txid with what you write, and
        skip what this txid has written already. An attempt that was given up may still run
        somewhere: do not let it write over a later one.
        """


class Committer:
    """Marks a `BatchBolt` whose `finish_batch` belongs to the commit phase."""
