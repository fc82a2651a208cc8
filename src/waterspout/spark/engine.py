"""The engine on Spark: phases as jobs on threads of a bounded pool."""

from __future__ import annotations

import time
from collections.abc import Callable

from waterspout._config import Config
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.engine import Committed, Processed, Wrote
from waterspout.errors import ConfigError
from waterspout.spark.counting import input_rows
from waterspout.spark.phases import PhaseEngine, Work
from waterspout.spark.session import SparkRuntime
from waterspout.spark.steps import BatchRows, StepRunner
from waterspout.spouts._base import read_of
from waterspout.spouts._reads import RowsRead
from waterspout.state._head import Claim
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Metadata
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.rebalancing import rebalanced

__all__ = ["SparkEngine"]


class SparkEngine(PhaseEngine):
    """Runs the phases of a plan's batches; several process at once, one commits."""

    def __init__(self, runtime: SparkRuntime, plan: Plan, conf: Config) -> None:
        super().__init__(runtime, plan.name, conf)
        self.plan = plan
        self._steps = StepRunner(runtime, plan, conf)

    def close(self) -> None:
        super().close()
        self._steps.close()

    def check_change(self, change: Change) -> None:
        if change.workers is not None:
            raise ConfigError(
                "Spark divides the batches of a Trident topology; a number of workers is for "
                "topologies of spouts and bolts"
            )
        rebalanced(self.plan, change.parallelism)

    def change(self, change: Change) -> None:
        super().change(change)
        self.plan = rebalanced(self.plan, change.parallelism)
        self._steps.close()
        self._steps = StepRunner(self._runtime, self.plan, self._conf)

    def process(self, attempt: TransactionAttempt, metadata: Metadata, work: Work) -> Processed:
        began = time.monotonic()
        sources = self.plan.sources.items()
        reads = {source: read_of(source.spout, name, metadata) for name, source in sources}
        requests = any(
            source.hidden and not (isinstance(read, RowsRead) and not read.rows)
            for source, read in reads.items()
        )
        batch = BatchRows(attempt, work.staging, reads)
        small = all(read.is_small for read in reads.values())
        tiny = all(read.is_tiny for read in reads.values())
        self._steps.process(batch, small=small, tiny=tiny, requests=requests)
        work.results["batch"] = batch
        left = batch.left_for_commit(self.plan)
        given = {source.spout_id: read for source, read in reads.items() if not source.hidden}
        found = input_rows(given, work.staging.computed)
        return Processed(
            attempt,
            input_rows=found.total,
            inputs=found.by_spout,
            processing_s=time.monotonic() - began,
            staged_rows=left,
        )

    def commits_without_jobs(self, work: Work) -> bool:
        return self._steps.commits_here(work.results["batch"])

    def commit(self, claim: Claim, move_heads: Callable[[], None], work: Work) -> Committed:
        began = time.monotonic()
        move_heads()
        batch: BatchRows = work.results["batch"]
        batch.wrote = lambda state: self.report(Wrote(claim.attempt, state))
        written = self._steps.commit(batch, claim)
        took, late = time.monotonic() - began, claim.late_rows
        return Committed(claim.attempt, commit_s=took, written=written, late_rows=late)
