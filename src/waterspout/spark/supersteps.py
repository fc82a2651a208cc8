"""Waves on Spark: one job a wave, one pass over the Python workers a stage."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

from waterspout import faults
from waterspout.spark.failures import translate
from waterspout.spark.pool import DaemonPool
from waterspout.spark.session import SparkRuntime
from waterspout.spark.tasks import plan_of
from waterspout.topology.pickling import dumps
from waterspout.waves.engine import Wave, WaveDone, WaveEngine, WaveFailed
from waterspout.waves.frames import unpack
from waterspout.waves.live import LiveTasks
from waterspout.waves.part import WaveHeader
from waterspout.waves.rows import Row, first_rows, results_of, run_stage
from waterspout.waves.shape import WaveShape

__all__ = ["ROWS_DDL", "SparkWaves", "rows_of", "table_of"]

_SCHEMA = pa.schema([("stage", pa.int32()), ("part", pa.int32()), ("data", pa.binary())])
ROWS_DDL = "stage int, part int, data binary"

# Bolts of this worker process, alive between waves; and descriptions it has read before.
_live = LiveTasks()
_read: dict[str, tuple[WaveShape, WaveHeader]] = {}


@dataclass(frozen=True)
class _StageTask:
    """What a Python worker runs for one stage: rows in, rows out."""

    key: str
    described: bytes
    """The pickled shape and header; everything that stays the same for a run and shape."""

    header: tuple[int, int, int, bool]
    stage: int
    plan: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the parts of this stage that are among the rows; pass the others on."""
        faults.install(None if self.plan is None else plan_of(self.plan))
        shape, header = self._description()
        context = TaskContext.get()
        token = "" if context is None else str(context.taskAttemptId())
        for row in run_stage(shape, header, self.stage, rows_of(batches), _live, token):
            yield _batch([row])

    def _description(self) -> tuple[WaveShape, WaveHeader]:
        found = _read.get(self.key)
        if found is None:
            if len(_read) > 16:
                _read.clear()
            found = _read[self.key] = unpack(self.described)
        shape, header = found
        number, attempt, seed, closing = self.header
        return shape, replace(header, number=number, attempt=attempt, seed=seed, closing=closing)


class SparkWaves(WaveEngine):
    """Runs waves in a thread of its own; one at a time."""

    def __init__(self, runtime: SparkRuntime, name: str, *, cancel_wait_s: float) -> None:
        self._runtime = runtime
        self._name = name
        self._cancel_wait_s = cancel_wait_s
        self._pool = DaemonPool(1, "waterspout-wave")
        self._ended: queue.SimpleQueue[WaveDone | WaveFailed | None] = queue.SimpleQueue()
        self._described: dict[int, tuple[str, bytes]] = {}
        self._running: Future[None] | None = None
        self._tag = ""
        self._lock = threading.Lock()

    @property
    def workers(self) -> int:
        """As many as compute at once; a shape for two where the session does not tell."""
        return self._runtime.cores or 2

    def start(self, wave: Wave) -> None:
        """Queue the wave's job."""
        self._tag = f"waterspout-{self._name}-wave-{wave.header.number}-{wave.header.attempt}"
        self._running = self._pool.submit(lambda: self._guard(wave, self._tag))

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        """Wait for the job, or to be woken."""
        try:
            return self._ended.get(timeout=wait_s) if wait_s > 0 else self._ended.get_nowait()
        except queue.Empty:
            return None

    def wake(self) -> None:
        """Let `poll` return."""
        self._ended.put(None)

    def cancel(self) -> None:
        """Cancel the job; its tasks may go on for a while, and nobody listens to them."""
        if self._running is not None and not self._running.cancel():
            self._runtime.cancel(self._tag)

    def close(self) -> None:
        """End the thread."""
        self._pool.close(self._cancel_wait_s)

    def _guard(self, wave: Wave, tag: str) -> None:
        began = time.monotonic()
        description = f"{self._name} wave {wave.header.number}"
        try:
            with self._runtime.tagged(tag, description, "waves"):
                rows = self._run(wave)
            self._ended.put(WaveDone(results_of(rows), time.monotonic() - began))
        except BaseException as error:
            self._ended.put(WaveFailed(translate(error, self._runtime)))

    def _run(self, wave: Wave) -> Iterator[Row]:
        frame = self._runtime.spark.createDataFrame(table_of(first_rows(wave)))
        key, described = self._description(wave)
        header = wave.header
        numbers = (header.number, header.attempt, header.seed, header.closing)
        plan = faults.current_plan()
        for number, stage in enumerate(wave.shape.stages):
            if number:
                target = F.pmod(F.col("part"), F.lit(stage.parts)).cast("int")
                frame = frame.repartitionById(stage.parts, target)
            task = _StageTask(
                key, described, numbers, number, None if plan is None else plan.to_json()
            )
            frame = frame.mapInArrow(task, ROWS_DDL)
        return rows_of(frame.toArrow().to_batches())

    def _description(self, wave: Wave) -> tuple[str, bytes]:
        """Pickle what stays the same once for each shape."""
        shape = id(wave.shape)
        if shape not in self._described:
            key = f"{wave.header.run}-{len(self._described)}"
            self._described[shape] = (key, dumps((wave.shape, wave.header)))
        return self._described[shape]


def table_of(rows: list[Row]) -> pa.Table:
    """Return rows in the form in which Spark takes them."""
    return pa.Table.from_batches([_batch(rows)], _SCHEMA)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.stage for row in rows], pa.int32()),
            pa.array([row.part for row in rows], pa.int32()),
            pa.array([row.data for row in rows], pa.binary()),
        ],
        schema=_SCHEMA,
    )


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Read rows back."""
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for stage, part, data in zip(*columns, strict=True):
            yield Row(stage, part, data)
