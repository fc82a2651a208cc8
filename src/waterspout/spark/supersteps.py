"""Waves on Spark: one job a wave, one pass over the Python workers a stage."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from waterspout import faults
from waterspout.spark.carried import carrying_outages
from waterspout.spark.failures import translate
from waterspout.spark.pool import DaemonPool
from waterspout.spark.session import SparkRuntime
from waterspout.spark.tasks import plan_of
from waterspout.spark.turns import quick_turns
from waterspout.topology._pickling import dumps
from waterspout.waves.bolts import LiveTasks, Worker
from waterspout.waves.engine import Wave, WaveDone, WaveEngine, WaveFailed
from waterspout.waves.frames import unpack
from waterspout.waves.garbage import leave_alone
from waterspout.waves.over_waves import results_of
from waterspout.waves.shape import WaveShape
from waterspout.waves.shards import Row, ShardHeader, run_stage

__all__ = ["SparkWaves", "Stages", "rows_of", "table_of"]

_SCHEMA = pa.schema(
    [("stage", pa.int32()), ("shard", pa.int32()), ("count", pa.int64()), ("data", pa.binary())]
)
# The same for Spark, which would ask the JVM what a text means.
_STRUCT = (
    StructType()
    .add("stage", IntegerType())
    .add("shard", IntegerType())
    .add("count", LongType())
    .add("data", BinaryType())
)

# Bolts of this worker process, alive between waves; and descriptions it has read before.
_live = LiveTasks()
_read: dict[str, tuple[WaveShape, ShardHeader]] = {}


@dataclass(frozen=True)
class _StageTask:
    """What a Python worker runs for one stage: rows in, rows out."""

    key: str
    described: bytes
    """The pickled shape and header, under a key: a worker reads them once."""

    changes: Mapping[str, Any]
    """What the header has in this wave or phase, instead of what was described."""

    stage: int
    plan: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the shards of this stage that are among the rows; pass the others on."""
        faults.install(None if self.plan is None else plan_of(self.plan))
        shape, header = self._description()
        context = TaskContext.get()
        worker = Worker(_live)
        if context is not None:
            worker = Worker(_live, str(context.taskAttemptId()), context.attemptNumber())
        header = replace(header, **self.changes)
        with carrying_outages():
            for row in run_stage(shape, header, self.stage, rows_of(batches), worker):
                yield _batch([row])

    def _description(self) -> tuple[WaveShape, ShardHeader]:
        found = _read.get(self.key)
        if found is None:
            if len(_read) > 16:
                _read.clear()
            found = _read[self.key] = unpack(self.described)
            leave_alone()
        return found


class Stages:
    """Leads rows through stages; what all waves or batches have in common is pickled once.

    `changing` names the fields of a header that are not the same in all of them.
    """

    def __init__(self, *changing: str) -> None:
        self._changing = changing
        self._described: dict[int, tuple[str, bytes]] = {}
        self._shapes: list[WaveShape] = []
        """Those of `_described`, so that no other one gets the id of one that is gone."""
        self._targets: dict[int, Column] = {}
        """Where a row goes, by the number of shards; made once, by a dozen calls into the JVM."""

    def through(
        self,
        frame: DataFrame,
        shape: WaveShape,
        header: ShardHeader,
        stages: Sequence[int],
        partitions: int,
    ) -> DataFrame:
        """Lead rows through some stages; at the beginning they are in so many partitions.

        Each shard of the first stage has one row: none is moved, unless too many are together.
        """
        if id(shape) not in self._described:
            nothing: dict[str, Any] = dict.fromkeys(self._changing)
            common = replace(header, **nothing)
            self._shapes.append(shape)
            self._described[id(shape)] = (secrets.token_hex(8), dumps((shape, common)))
        described = self._described[id(shape)]
        changes = {name: getattr(header, name) for name in self._changing}
        plan = faults.current_plan()
        plan_json = None if plan is None else plan.to_json()
        for turn, number in enumerate(stages):
            shards = shape.stages[number].shards
            if turn or shards > partitions:
                frame = frame.repartitionById(shards, self._target(shards))
            frame = frame.mapInArrow(_StageTask(*described, changes, number, plan_json), _STRUCT)
        return frame

    def _target(self, shards: int) -> Column:
        if shards not in self._targets:
            self._targets[shards] = F.pmod(F.col("shard"), F.lit(shards)).cast("int")
        return self._targets[shards]


class SparkWaves(WaveEngine):
    """Runs waves in a thread of its own; one at a time."""

    def __init__(self, runtime: SparkRuntime, name: str, *, cancel_wait_s: float) -> None:
        self._runtime = runtime
        self._name = name
        self._cancel_wait_s = cancel_wait_s
        self._pool = DaemonPool(1, "waterspout-wave")
        self._ended: queue.SimpleQueue[WaveDone | WaveFailed | None] = queue.SimpleQueue()
        self._stages = Stages("number", "attempt", "seed", "closing", "probe")
        self._running: Future[None] | None = None
        self._tag = ""
        self._lock = threading.Lock()

    @property
    def workers(self) -> int:
        """As many as compute at once; a shape for two where the session does not tell."""
        return self._runtime.cores or 2

    def start(self, wave: Wave) -> None:
        self._tag = f"waterspout-{self._name}-wave-{wave.header.number}-{wave.header.attempt}"
        self._running = self._pool.submit(lambda: self._guard(wave, self._tag))

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        try:
            return self._ended.get(timeout=wait_s) if wait_s > 0 else self._ended.get_nowait()
        except queue.Empty:
            return None

    def wake(self) -> None:
        self._ended.put(None)

    def cancel(self) -> None:
        """Cancel the job; its tasks may go on for a while, and nobody listens to them."""
        if self._running is not None and not self._running.cancel():
            self._runtime.cancel(self._tag)

    def close(self) -> None:
        self._pool.close(self._cancel_wait_s)

    def _guard(self, wave: Wave, tag: str) -> None:
        began = time.monotonic()
        description = f"{self._name} wave {wave.header.number}"
        try:
            with quick_turns(), self._runtime.tagged(tag, description, "waves"):
                frame = self._runtime.spark.createDataFrame(table_of(wave.rows()))
                stages = wave.shape.stages
                numbers, shards = range(len(stages)), stages[0].shards
                frame = self._stages.through(frame, wave.shape, wave.header, numbers, shards)
                rows = rows_of(frame.toArrow().to_batches())
            self._ended.put(WaveDone(results_of(rows), time.monotonic() - began))
        except BaseException as error:
            self._ended.put(WaveFailed(translate(error, self._runtime)))


def table_of(rows: list[Row]) -> pa.Table:
    """Return rows in the form in which Spark takes them."""
    return pa.Table.from_batches([_batch(rows)], _SCHEMA)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([getattr(row, f.name) for row in rows], f.type) for f in _SCHEMA], schema=_SCHEMA
    )


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Read rows back."""
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        yield from map(Row, *columns)
