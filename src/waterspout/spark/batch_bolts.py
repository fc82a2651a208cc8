"""Transactional topologies on Spark: a job for the processing phase, a job for the commit phase.

What a processing phase leaves, half-done bolts, comes to the driver where it is little. Else it is
locally checkpointed on the executors: it has no lineage, so that a lost block fails the attempt
instead of silently emitting the batch again.

Bolts that wait in the driver, and have little left to do, finish there, without a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from waterspout._config import Config
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.engine import Committed, Processed, Wrote
from waterspout.coordination.transactions import commits_in_driver, note_written
from waterspout.spark.phases import PhaseEngine, Work
from waterspout.spark.session import SparkRuntime
from waterspout.spark.supersteps import Stages, collected
from waterspout.spouts._emitters import EmittedSpout
from waterspout.state._head import Claim
from waterspout.transactional._at_once import AtOnce
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._ledger import Metadata
from waterspout.transactional._runtime import (
    PhasePlan,
    Phases,
    busy_s,
    commit_stages,
    counted,
    executed,
    extra_here_s,
    first_rows,
    raise_failed,
    run_here,
)
from waterspout.waves.bolts import Worker
from waterspout.waves.shape import check_widths
from waterspout.waves.shards import BUSY, COUNTED, DRIVER, FAILED, Row

__all__ = ["BatchBoltEngine"]

# Half-done bolts come to the driver if those of the batch before had at most so many bytes.
_COLLECTED_BYTES = 1_000_000

# They finish there if that takes the driver no longer than a job with its Python workers would.
_FINISHED_HERE_S = 0.1


class BatchBoltEngine(PhaseEngine):
    """Runs the phases of a transactional topology's batches."""

    leaves_hanging_commits = True

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
        self._stages = Stages(runtime, "attempt", "commit", "metadata", "resolved", "writer")
        self._in_driver = commits_in_driver(topology, conf)
        self._at_once = AtOnce()
        self._left_bytes: int | None = None
        """What the last processing phase has left for its commit; None: nobody knows."""
        self._extra_here_s: float | None = None
        """What the last commits would take, or took, in the driver more than in tasks."""

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
        with self._at_once.one_more() as present:
            began = time.monotonic()
            rows = self._process(attempt, metadata, work)
            raise_failed(rows)
            count = executed(rows)
            _, phase = work.results["staged"]
            self._phases.processed(count, busy_s(rows), present.most * phase.width)
            work.results["rows"] = rows
            took = time.monotonic() - began
            return Processed(attempt, processing_s=took, executed_tuples=count)

    def _process(self, attempt: TransactionAttempt, metadata: Metadata, work: Work) -> list[Row]:
        """Emit the batch and execute it; leave what is half-done on the executors, if it is much.

        Return what comes to the driver.
        """
        phase = self._phases.processing(attempt, metadata)
        work.results["staged"] = None, phase
        taken = self._spout.taken(phase.header.metadata)
        rows = first_rows(phase.shape, phase.header.spout_id, taken)
        shards = phase.shape.stages[0].shards
        if self._comes_here(phase):
            return self._collected(rows, phase, shards)
        with self._stages.led(rows, phase.shape, phase.header, phase.stages, shards) as frame:
            kept, seen = self._kept(frame, work)
        work.results["staged"] = kept, phase
        # Spark Connect does not observe a checkpoint; looking at its blocks is quick.
        if "failed" not in seen:
            return _rows_for_driver(kept)
        rows = _rows_for_driver(kept) if seen["failed"] else []
        self._left_bytes = int(seen["left"] or 0)
        rows += [Row(DRIVER, 0, int(seen["executed"] or 0), b"")]
        rows += [Row(BUSY, 0, int(seen["busy"] or 0), b"")]
        return rows

    def _kept(self, frame: DataFrame, work: Work) -> tuple[DataFrame, Mapping[str, Any]]:
        """Compute what is left and leave it on the executors; tell what was seen of it."""
        observed = Observation()
        is_left = F.col("stage") >= 0
        counted = frame.observe(
            observed,
            F.count(F.when(F.col("stage") == FAILED, True)).alias("failed"),
            F.sum(F.when(F.col("stage") == DRIVER, F.col("count"))).alias("executed"),
            F.sum(F.when(F.col("stage") == BUSY, F.col("count"))).alias("busy"),
            F.sum(F.when(is_left, F.length("data"))).alias("left"),
        )
        kept = counted.localCheckpoint(eager=True)
        work.staging.frames.append(kept)
        return kept, observed.get

    def _comes_here(self, phase: PhasePlan) -> bool:
        """Whether what a processing phase leaves is collected, and not kept on the executors."""
        if not commit_stages(phase.shape, phase.header.late):
            return True
        return self._left_bytes is not None and self._left_bytes <= _COLLECTED_BYTES

    def _collected(self, rows: list[Row], phase: PhasePlan, partitions: int) -> list[Row]:
        try:
            rows = self._run(rows, phase, partitions)
        except BaseException:
            self._left_bytes = None  # it may have been too much: the next attempt is kept there
            raise
        self._left_bytes = sum(len(row.data) for row in rows if row.stage >= 0)
        return rows

    def commits_without_jobs(self, work: Work) -> bool:
        kept, _ = work.results["staged"]
        return kept is None and (self._in_driver or self._pays_here)

    @property
    def _pays_here(self) -> bool:
        """Whether bolts that wait in the driver are sooner finished there than by a job."""
        if self._conf.commit_in == "tasks" or self._extra_here_s is None:
            return False
        return self._extra_here_s <= _FINISHED_HERE_S

    def commit(self, claim: Claim, move_heads: Callable[[], None], work: Work) -> Committed:
        """Let committers finish, and what is behind them: in tasks, or here.

        Here where a state is reached by the driver alone, or where it is sooner done.
        """
        began = time.monotonic()
        move_heads()
        kept, processing = work.results["staged"]
        before: list[Row] = work.results["rows"] if kept is None else []
        phase = self._phases.commit(processing, claim.resolved, claim.writer)
        rows = self._finished(phase, kept, before) if phase.stages else []
        raise_failed(rows)
        if not work.cancelled:  # one that had hung tells of no other
            self._extra_here_s = max(extra_here_s(rows), (self._extra_here_s or 0) * 3 / 4)
        note_written(self._topology, rows, claim)
        for state in self._topology.states:
            self.report(Wrote(claim.attempt, state))
        took = time.monotonic() - began
        return Committed(
            claim.attempt,
            commit_s=took,
            committed_tuples=executed(rows),
            counts=counted([*before, *rows]),
        )

    def _finished(self, phase: PhasePlan, kept: DataFrame | None, before: list[Row]) -> list[Row]:
        """Lead what a processing phase has left, there or here, through the commit phase."""
        if kept is None:
            # One row for each shard that has something to finish; each gets a task of its own.
            left = [row for row in before if row.stage >= 0]
            if self._in_driver or self._pays_here:
                return run_here(phase, left, Worker())
            left.sort(key=lambda row: (row.stage, row.shard))
            return self._run(left, phase, len(left))
        frame = kept.where((F.col("stage") >= 0) | (F.col("stage") == COUNTED))
        if self._in_driver:
            return run_here(phase, collected(frame), Worker())
        partitions = phase.shape.stages[-1].shards
        through = self._stages.through(frame, phase.shape, phase.header, phase.stages, partitions)
        return list(collected(through))

    def _run(self, rows: list[Row], phase: PhasePlan, partitions: int) -> list[Row]:
        """Lead rows through the stages of a phase; at first they are in so many partitions."""
        return self._stages.run(rows, phase.shape, phase.header, phase.stages, partitions)


def _rows_for_driver(kept: DataFrame) -> list[Row]:
    return list(collected(kept.where(F.col("stage") < 0)))
