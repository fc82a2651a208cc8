"""Transactional topologies on Spark: a job for the processing phase, a job for the commit phase.

What a processing phase leaves, half-done bolts, is locally checkpointed on the executors: it has
no lineage, so that a lost block fails the attempt instead of silently emitting the batch again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from waterspout import faults
from waterspout.config import Config
from waterspout.coordination.engine import CommitOrder, Committed, Processed
from waterspout.errors import FailedException
from waterspout.spark.phases import PhaseEngine, Work
from waterspout.spark.session import SparkRuntime
from waterspout.spark.supersteps import ROWS_DDL, rows_of, table_of
from waterspout.spark.tasks import plan_of
from waterspout.topology.pickling import dumps, require_picklable
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.builder import TransactionalTopology
from waterspout.transactional.ledger import Metadata
from waterspout.transactional.runtime import (
    FAILED,
    BatchHeader,
    commit_stages,
    first_rows,
    run_stage,
)
from waterspout.waves.frames import unpack
from waterspout.waves.part import DRIVER
from waterspout.waves.shape import WaveShape, collapsed, spread

__all__ = ["BatchBoltEngine"]


@dataclass(frozen=True)
class _BatchTask:
    """What a Python worker runs for one stage of a phase."""

    described: bytes
    stage: int
    plan: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the parts of this stage that are among the rows; pass the others on."""
        faults.install(None if self.plan is None else plan_of(self.plan))
        shape, header = unpack(self.described)
        for row in run_stage(shape, header, self.stage, rows_of(batches)):
            yield from table_of([row]).to_batches()


@dataclass(frozen=True, slots=True)
class _Staged:
    """Half-done bolts on the executors, and the shape that they were made in."""

    frame: DataFrame
    shape: WaveShape


class BatchBoltEngine(PhaseEngine):
    """Runs the phases of a transactional topology's batches."""

    def __init__(
        self, runtime: SparkRuntime, topology: TransactionalTopology, conf: Config
    ) -> None:
        super().__init__(runtime, topology.name, conf)
        self._topology = topology
        self._run = secrets.token_hex(8)
        outline = topology.outline()
        self._shapes = (collapsed(outline), spread(outline, runtime.cores or 2))
        self._late = topology.late
        self._components = {
            spec.id: require_picklable(spec.component, f"component {spec.id!r}")
            for spec in topology.components.values()
        }
        self._largest: int | None = None

    def process(self, attempt: TransactionAttempt, metadata: Metadata, work: Work) -> Processed:
        """Emit the batch and execute it; leave what is half-done on the executors."""
        began = time.monotonic()
        small = self._largest is not None and self._largest <= self._conf.wave_collapse_tuples
        shape = self._shapes[0 if small else 1]
        header = self._header(attempt, commit=False, metadata=metadata[self._topology.spout_id])
        frame = self._runtime.spark.createDataFrame(table_of(first_rows(shape)))
        frame = self._through(frame, shape, header, range(len(shape.stages)), shape.stages[0].parts)
        observed = Observation()
        counted = frame.observe(
            observed,
            F.count(F.when(F.col("stage") == FAILED, True)).alias("failed"),
            F.sum(F.when(F.col("stage") == DRIVER, F.col("part"))).alias("executed"),
        )
        kept = counted.localCheckpoint(eager=True)
        work.staging.frames.append(kept)
        failed, executed = self._seen(observed, kept)
        if failed:
            self._raise(rows_of(kept.where(F.col("stage") == FAILED).toArrow().to_batches()))
        self._largest = max(executed, (self._largest or 0) * 3 // 4)
        work.results["staged"] = _Staged(kept, shape)
        took = time.monotonic() - began
        return Processed(attempt, processing_s=took, executed_tuples=executed)

    def commit(self, order: CommitOrder, work: Work) -> Committed:
        """Let committers finish, and what is behind them."""
        began = time.monotonic()
        order.claim()
        staged: _Staged = work.results["staged"]
        stages = commit_stages(staged.shape, self._late)
        executed = 0
        if stages:
            header = self._header(order.attempt, commit=True, resolved=order.resolved)
            frame = staged.frame.where(F.col("stage") >= 0)
            apart = staged.shape.stages[-1].parts
            frame = self._through(frame, staged.shape, header, stages, apart)
            rows = list(rows_of(frame.toArrow().to_batches()))
            self._raise(rows)
            executed = sum(row.part for row in rows if row.stage == DRIVER)
        took = time.monotonic() - began
        return Committed(order.attempt, commit_s=took, committed_tuples=executed)

    def _through(
        self,
        frame: DataFrame,
        shape: WaveShape,
        header: BatchHeader,
        stages: Iterable[int],
        apart: int,
    ) -> DataFrame:
        """Lead rows through some stages; at the beginning they stand in `apart` partitions.

        Of the first stage each part has one row: none is moved, unless too many stand together.
        """
        described = dumps((shape, header))
        plan = faults.current_plan()
        for turn, number in enumerate(stages):
            parts = shape.stages[number].parts
            if turn or parts > apart:
                target = F.pmod(F.col("part"), F.lit(parts)).cast("int")
                frame = frame.repartitionById(parts, target)
            task = _BatchTask(described, number, None if plan is None else plan.to_json())
            frame = frame.mapInArrow(task, ROWS_DDL)
        return frame

    def _header(self, attempt: TransactionAttempt, **more: Any) -> BatchHeader:
        return BatchHeader(
            run=self._run,
            attempt=attempt,
            spout_id=self._topology.spout_id,
            late=self._late,
            conf=self._conf.to_dict(),
            components=self._components,
            **more,
        )

    @staticmethod
    def _seen(observed: Observation, kept: DataFrame) -> tuple[int, int]:
        seen = observed.get
        if "failed" in seen:
            return int(seen["failed"] or 0), int(seen["executed"] or 0)
        # Spark Connect does not observe a checkpoint; looking at its blocks is quick.
        rows = list(rows_of(kept.where(F.col("stage") < 0).toArrow().to_batches()))
        failed = sum(row.stage == FAILED for row in rows)
        return failed, sum(row.part for row in rows if row.stage == DRIVER)

    @staticmethod
    def _raise(rows: Iterable[Any]) -> None:
        """Raise what a part gave as the reason to replay the batch."""
        for row in rows:
            if row.stage == FAILED:
                raise FailedException(row.data.decode("utf-8"))
