"""The engine on Spark: phases as jobs on threads of a bounded pool."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame

from waterspout.config import Config
from waterspout.coordination.engine import CommitOrder, Committed, Processed
from waterspout.spark.commit import CommitPhase
from waterspout.spark.compiler import Compiler
from waterspout.spark.phases import PhaseEngine, Work
from waterspout.spark.session import SparkRuntime
from waterspout.spark.staging import Collected, Kept, Placement, keep
from waterspout.state.head import Writer
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.ledger import Metadata
from waterspout.trident.plan.nodes import Node, Update
from waterspout.trident.plan.plan import Plan

__all__ = ["SparkEngine"]


class SparkEngine(PhaseEngine):
    """Runs the phases of a plan's batches; several process at once, one commits."""

    def __init__(self, runtime: SparkRuntime, plan: Plan, conf: Config) -> None:
        super().__init__(runtime, plan.name, conf)
        self._plan = plan
        self._compiler = Compiler(runtime, plan, conf)
        self._placements: dict[Node, Placement] = {
            node: Placement(conf, driver_only=plan.states[node.state].factory.driver_only)
            for node in plan.nodes
            if isinstance(node, Update)
        }
        self._commit_phase = CommitPhase(runtime, plan, conf, self._compiler, self._placements)

    def enroll(self, writer: Writer) -> None:
        """Write to the states as this writer."""
        self._commit_phase.enroll(writer)

    def close(self) -> None:
        """Wait for the threads and close the states."""
        super().close()
        self._commit_phase.close()

    def process(self, attempt: TransactionAttempt, metadata: Metadata, work: Work) -> Processed:
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
        self, node: Node, made: dict[Node, DataFrame], attempt: TransactionAttempt, work: Work
    ) -> None:
        from waterspout.trident.plan.plan import Phase

        if self._plan.phases[node] is Phase.PROCESSING:
            made[node] = keep(self._compiler.frame(node, made, attempt.txid), work.staging).frame

    def _stage(
        self,
        node: Node,
        made: dict[Node, DataFrame],
        attempt: TransactionAttempt,
        work: Work,
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

    def commit(self, order: CommitOrder, work: Work) -> Committed:
        began = time.monotonic()
        order.claim()
        written = self._commit_phase.run(order, work.results, work.staging)
        return Committed(
            order.attempt, {"commit_s": time.monotonic() - began, "written_rows": written}
        )
