"""The engine on Spark: phases as jobs on threads of a bounded pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from waterspout.config import Config
from waterspout.coordination.engine import (
    BatchEngine,
    CommitOrder,
    Committed,
    Ended,
    Failed,
    Processed,
)
from waterspout.spark.commit import CommitPhase
from waterspout.spark.compiler import Compiler
from waterspout.spark.failures import translate
from waterspout.spark.pool import DaemonPool
from waterspout.spark.session import SparkRuntime
from waterspout.spark.staging import Collected, Kept, Placement, Staging, keep
from waterspout.state.head import Writer
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.ledger import Metadata
from waterspout.trident.plan.nodes import Node, Update
from waterspout.trident.plan.plan import Plan

__all__ = ["SparkEngine"]


@dataclass(slots=True)
class _Work:
    """An attempt's threads and what it has staged so far."""

    results: dict[Node, Collected | Kept | DataFrame] = field(default_factory=dict)
    staging: Staging = field(default_factory=lambda: Staging([]))
    running: Future[None] | None = None
    cancelled: bool = False


class SparkEngine(BatchEngine):
    """Runs the phases of a plan's batches; several process at once, one commits."""

    def __init__(self, runtime: SparkRuntime, plan: Plan, conf: Config) -> None:
        self._runtime = runtime
        self._plan = plan
        self._conf = conf
        self._compiler = Compiler(runtime, plan, conf)
        self._placements: dict[Node, Placement] = {
            node: Placement(conf, driver_only=plan.states[node.state].factory.driver_only)
            for node in plan.nodes
            if isinstance(node, Update)
        }
        self._processing = DaemonPool(conf.max_batches, "waterspout-process")
        self._committing = DaemonPool(1, "waterspout-commit")
        self._work: dict[TransactionAttempt, _Work] = {}
        self._lock = threading.Lock()
        self._commit_phase = CommitPhase(runtime, plan, conf, self._compiler, self._placements)

    def enroll(self, writer: Writer) -> None:
        """Write to the states as this writer."""
        self._commit_phase.enroll(writer)

    def start_processing(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        work = _Work()
        with self._lock:
            self._work[attempt] = work
        work.running = self._processing.submit(
            lambda: self._guard(
                attempt, work, "processing", lambda: self._process(attempt, metadata, work)
            )
        )

    def start_commit(self, order: CommitOrder) -> None:
        attempt = order.attempt
        with self._lock:
            work = self._work[attempt]
        work.running = self._committing.submit(
            lambda: self._guard(attempt, work, "commit", lambda: self._commit(order, work))
        )

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
        """Wait for the threads (bounded by the cancelling before) and close the states."""
        self._processing.close(self._conf.cancel_wait_secs)
        self._committing.close(self._conf.cancel_wait_secs)
        self._commit_phase.close()
        # Of a batch that was committed, or about to be, when the run ended with an error.
        with self._lock:
            left = list(self._work.values())
            self._work.clear()
        for work in left:
            work.staging.release(self._runtime)

    # --- on the threads ----------------------------------------------------------------------

    def _guard(
        self,
        attempt: TransactionAttempt,
        work: _Work,
        phase: str,
        run: Callable[[], Processed | Committed],
    ) -> None:
        tag = self._tag(attempt, phase)
        try:
            with self._runtime.tagged(tag, f"{self._plan.name} {attempt} {phase}", phase):
                event = run()
        except BaseException as error:
            if not work.cancelled:
                self.report(Failed(attempt, translate(error, self._runtime)))
            return
        if not work.cancelled:
            self.report(event)

    def _process(self, attempt: TransactionAttempt, metadata: Metadata, work: _Work) -> Processed:
        began = time.monotonic()
        made: dict[Node, DataFrame] = {}
        small = True
        for spout_id, source in self._plan.sources.items():
            read = source.spout.read(metadata[spout_id])
            small = small and read.is_small
            made[source] = self._compiler.read(read)
        for node in self._plan.nodes:
            if node in self._plan.shared and node not in self._plan.staged:
                self._share(node, made, attempt, work)
        for node in self._plan.staged:
            self._stage(node, made, attempt, work, small)
        rows = sum(r.rows for r in work.results.values() if isinstance(r, (Collected, Kept)))
        return Processed(attempt, {"processing_s": time.monotonic() - began, "staged_rows": rows})

    def _share(
        self, node: Node, made: dict[Node, DataFrame], attempt: TransactionAttempt, work: _Work
    ) -> None:
        from waterspout.trident.plan.plan import Phase

        if self._plan.phases[node] is Phase.PROCESSING:
            made[node] = keep(self._compiler.frame(node, made, attempt.txid), work.staging).frame

    def _stage(
        self,
        node: Node,
        made: dict[Node, DataFrame],
        attempt: TransactionAttempt,
        work: _Work,
        small: bool,
    ) -> None:
        frame = self._compiler.frame(node, made, attempt.txid)
        late = [c for c in self._plan.children[node] if self._plan.phases[c].value == "commit"]
        if not late:
            frame.write.format("noop").mode("overwrite").save()
            return
        staged = self._commit_phase.stage(node, late, frame, work.staging, source_is_small=small)
        work.results[node] = staged
        if len(late) < len(self._plan.children[node]):
            # What follows in this phase reads what was staged: a batch is computed once.
            made[node] = self._commit_phase.frame_of(staged)

    def _commit(self, order: CommitOrder, work: _Work) -> Committed:
        began = time.monotonic()
        order.claim()
        written = self._commit_phase.run(order, work.results, work.staging)
        return Committed(
            order.attempt, {"commit_s": time.monotonic() - began, "written_rows": written}
        )

    def _end(self, attempt: TransactionAttempt, work: _Work) -> None:
        work.staging.release(self._runtime)
        self.report(Ended(attempt))

    def _tag(self, attempt: TransactionAttempt, phase: str) -> str:
        return f"waterspout-{self._plan.name}-{attempt.txid}-{attempt.attempt_id}-{phase}"
