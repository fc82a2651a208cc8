"""Phases of batches as jobs on threads of a bounded pool: what all engines on Spark do alike."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from waterspout._config import Config
from waterspout._log_context import about
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.engine import (
    BatchEngine,
    Committed,
    Ended,
    Failed,
    Processed,
)
from waterspout.spark.failures import translate
from waterspout.spark.pool import DaemonPool
from waterspout.spark.session import SparkRuntime
from waterspout.spark.staging import Staging
from waterspout.state._head import Claim
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Metadata

__all__ = ["PhaseEngine", "Work"]

log = logging.getLogger(__name__)

_MOST_IN_FLIGHT = 4  # where nobody says how many; more only wait for the cores


@dataclass(slots=True)
class Work:
    """An attempt's threads and what it has staged so far."""

    results: dict[Any, Any] = field(default_factory=dict)
    staging: Staging = field(default_factory=lambda: Staging([]))
    running: Future[None] | None = None
    cancelled: bool = False


class PhaseEngine(BatchEngine):
    """Several batches process at once, one commits; each phase runs on a thread."""

    def __init__(self, runtime: SparkRuntime, name: str, conf: Config) -> None:
        self._runtime = runtime
        self._name = name
        self._conf = conf
        self._processing = DaemonPool(self.most_in_flight, "waterspout-process")
        self._committing = DaemonPool(1, "waterspout-commit")
        self._work: dict[TransactionAttempt, Work] = {}
        self._last_commit: Work | None = None
        self._lock = threading.Lock()

    @property
    def most_in_flight(self) -> int:
        """How many batches may process at once: as was said, else what the cores can bear."""
        said = self._conf.max_spout_pending
        return said or max(2, min(_MOST_IN_FLIGHT, self._runtime.cores or _MOST_IN_FLIGHT))

    @abstractmethod
    def process(self, attempt: TransactionAttempt, metadata: Metadata, work: Work) -> Processed:
        """Run a processing phase; called on a thread of its own, its jobs under a tag."""

    @abstractmethod
    def commit(self, claim: Claim, move_heads: Callable[[], None], work: Work) -> Committed:
        """Run a commit phase; called on the one thread for commits."""

    def commits_without_jobs(self, work: Work) -> bool:
        """Whether Spark has nothing to do in a commit phase."""
        return False

    leaves_hanging_commits = False
    """Whether the next commit goes on beside a cancelled one that does not end.

    Only where both share nothing in this process, and a lost attempt's late write is refused.
    """

    def start_processing(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        work = Work()
        with self._lock:
            self._work[attempt] = work
        work.running = self._processing.submit(
            lambda: self._guard(
                attempt, work, "processing", lambda: self.process(attempt, metadata, work)
            )
        )

    def start_commit(self, claim: Claim, move_heads: Callable[[], None]) -> None:
        attempt = claim.attempt
        with self._lock:
            work = self._work[attempt]
        if self.leaves_hanging_commits:
            self._leave_hanging_commit()
        self._last_commit = work
        work.running = self._committing.submit(
            lambda: self._guard(
                attempt, work, "commit", lambda: self.commit(claim, move_heads, work)
            )
        )

    def _leave_hanging_commit(self) -> None:
        """Go on with another thread, if the one for commits is in user code that does not end."""
        last = self._last_commit
        if last is None or not last.cancelled or last.running is None or last.running.done():
            return
        log.warning(
            "%s: a commit that was cancelled has not ended; the next one does not wait for it",
            self._name,
        )
        self._committing.close(0)
        self._committing = DaemonPool(1, "waterspout-commit")

    def cancel(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            work = self._work.pop(attempt, None)
        if work is None:
            self.report(Ended(attempt))
            return
        work.cancelled = True
        running = work.running
        if running is None or running.cancel() or running.done():
            self._end(attempt, work)
            return
        running.add_done_callback(lambda _: self._end(attempt, work))
        for phase in ("processing", "commit"):
            self._runtime.cancel(self._tag(attempt, phase))

    def release(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            work = self._work.pop(attempt)
        work.staging.release(self._runtime)

    def close(self) -> None:
        """Wait for the threads (bounded by the cancelling before) and free what is staged."""
        self._processing.close(self._conf.cancel_wait_secs)
        self._committing.close(self._conf.cancel_wait_secs)
        # Of a batch that was committed, or about to be, when the run ended with an error.
        with self._lock:
            left = list(self._work.values())
            self._work.clear()
        for work in left:
            work.staging.release(self._runtime)

    @property
    def conf(self) -> Config:
        """The options, as they are by now."""
        return self._conf

    def change(self, change: Change) -> None:
        if change.pending is not None:
            self._conf = self._conf.replace(max_spout_pending=change.pending)
            self._processing.close(self._conf.cancel_wait_secs)
            self._processing = DaemonPool(self.most_in_flight, "waterspout-process")

    def _guard(
        self,
        attempt: TransactionAttempt,
        work: Work,
        phase: str,
        run: Callable[[], Processed | Committed],
    ) -> None:
        try:
            with about(attempt, topology=self._name), self._tagged(attempt, work, phase):
                event = run()
        except BaseException as error:
            if not work.cancelled:
                self.report(Failed(attempt, translate(error, self._runtime)))
            return
        if not work.cancelled:
            self.report(event)

    def _tagged(
        self, attempt: TransactionAttempt, work: Work, phase: str
    ) -> AbstractContextManager[None]:
        if phase == "commit" and self.commits_without_jobs(work):
            return nullcontext()  # there will be nothing to cancel, and each name is a call
        said = f"{self._name} {attempt} {phase}"
        return self._runtime.tagged(self._tag(attempt, phase), said, phase)

    def _end(self, attempt: TransactionAttempt, work: Work) -> None:
        work.staging.release(self._runtime)
        self.report(Ended(attempt))

    def _tag(self, attempt: TransactionAttempt, phase: str) -> str:
        return f"waterspout-{self._name}-{attempt.txid}-{attempt.attempt_id}-{phase}"
