"""Transactional topologies on Spark: a job for the processing phase, a job for the commit phase.

What a processing phase leaves, half-done bolts, is locally checkpointed on the executors: it has
no lineage, so that a lost block fails the attempt instead of silently emitting the batch again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from waterspout._config import Config
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.engine import Committed, Processed, Wrote
from waterspout.coordination.transactions import commits_in_driver, note_written
from waterspout.spark.phases import PhaseEngine, Work
from waterspout.spark.session import SparkRuntime
from waterspout.spark.supersteps import Stages, rows_of, table_of
from waterspout.spouts._emitters import EmittedSpout
from waterspout.state._head import Claim
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._ledger import Metadata
from waterspout.transactional._runtime import (
    PhasePlan,
    Phases,
    commit_stages,
    counted,
    executed,
    first_rows,
    raise_failed,
    run_here,
)
from waterspout.waves.bolts import Worker
from waterspout.waves.shape import check_widths
from waterspout.waves.shards import COUNTED, DRIVER, FAILED, Row

__all__ = ["BatchBoltEngine"]


class BatchBoltEngine(PhaseEngine):
    """Runs the phases of a transactional topology's batches."""

    def __init__(
        self,
        runtime: SparkRuntime,
        topology: TransactionalTopology,
        spout: EmittedSpout,
        conf: Config,
    ) -> None:
        super().__init__(runtime, topology.name, conf)
        self._topology = topology
        self._spout = spout
        self._change = Change()
        self._phases = Phases(topology, conf, self.workers)
        self._stages = Stages("attempt", "commit", "metadata", "resolved", "writer")
        self._in_driver = commits_in_driver(topology, conf)

    @property
    def workers(self) -> int:
        """Into how many Spark tasks a stage is divided at most."""
        return self._change.workers or self._runtime.cores or 2

    @property
    def widths(self) -> Mapping[str, int]:
        """The components that run in fewer of them."""
        return self._change.parallelism

    def check_change(self, change: Change) -> None:
        check_widths(self._topology, change.parallelism)

    def change(self, change: Change) -> None:
        super().change(change)
        self._change = change.over(self._change)
        self._phases = Phases(self._topology, self._conf, self.workers, self.widths)

    def process(self, attempt: TransactionAttempt, metadata: Metadata, work: Work) -> Processed:
        """Emit the batch and execute it; leave what is half-done on the executors."""
        began = time.monotonic()
        phase = self._phases.processing(attempt, metadata)
        taken = self._spout.taken(phase.header.metadata)
        rows = first_rows(phase.shape, phase.header.spout_id, taken)
        frame = self._runtime.spark.createDataFrame(table_of(rows))
        frame = self._through(frame, phase, phase.shape.stages[0].shards)
        if not commit_stages(phase.shape, phase.header.late):
            # Nothing is left for the commit phase, so that all of it can come here.
            rows = list(rows_of(frame.toArrow().to_batches()))
            return self._processed(attempt, work, phase, None, rows, began)
        observed = Observation()
        counted = frame.observe(
            observed,
            F.count(F.when(F.col("stage") == FAILED, True)).alias("failed"),
            F.sum(F.when(F.col("stage") == DRIVER, F.col("count"))).alias("executed"),
        )
        kept = counted.localCheckpoint(eager=True)
        work.staging.frames.append(kept)
        seen = observed.get
        # Spark Connect does not observe a checkpoint; looking at its blocks is quick.
        unseen = "failed" not in seen
        rows = _rows_for_driver(kept) if unseen or seen["failed"] else []
        count = None if unseen else int(seen["executed"] or 0)
        return self._processed(attempt, work, phase, kept, rows, began, count)

    def _processed(
        self,
        attempt: TransactionAttempt,
        work: Work,
        phase: PhasePlan,
        kept: DataFrame | None,
        rows: list[Row],
        began: float,
        count: int | None = None,
    ) -> Processed:
        """Remember what a processing phase has left, where it has not failed."""
        raise_failed(rows)
        count = executed(rows) if count is None else count
        self._phases.processed(count)
        work.results["staged"] = (kept, phase)
        work.results["rows"] = rows
        took = time.monotonic() - began
        return Processed(attempt, processing_s=took, executed_tuples=count)

    def commit(self, claim: Claim, move_heads: Callable[[], None], work: Work) -> Committed:
        """Let committers finish, and what is behind them: in tasks, or here.

        Here where a state is reached by the driver alone.
        """
        began = time.monotonic()
        move_heads()
        staged, processing = work.results["staged"]
        phase = self._phases.commit(processing, claim.resolved, claim.writer)
        rows: list[Row] = []
        if phase.stages:
            frame = staged.where((F.col("stage") >= 0) | (F.col("stage") == COUNTED))
            if not self._in_driver:
                frame = self._through(frame, phase, phase.shape.stages[-1].shards)
            rows = list(rows_of(frame.toArrow().to_batches()))
            if self._in_driver:
                rows = run_here(phase, rows, Worker())
            raise_failed(rows)
        note_written(self._topology, rows, claim)
        for state in self._topology.states:
            self.report(Wrote(claim.attempt, state))
        took = time.monotonic() - began
        return Committed(
            claim.attempt,
            commit_s=took,
            committed_tuples=executed(rows),
            counts=counted(rows or work.results["rows"]),
        )

    def _through(self, frame: DataFrame, phase: PhasePlan, partitions: int) -> DataFrame:
        """Lead rows through the stages of a phase; at first they are in so many partitions."""
        return self._stages.through(frame, phase.shape, phase.header, phase.stages, partitions)


def _rows_for_driver(kept: DataFrame) -> list[Row]:
    return list(rows_of(kept.where(F.col("stage") < 0).toArrow().to_batches()))
