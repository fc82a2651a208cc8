"""Waves on Spark: one job a wave, one pass over the Python workers a stage.

What is done with the rows of a wave, or of a batch of bolts, is the same for all of them. So it is
described to Spark once, and what they do not have in common, their header, goes with the job, as a
property of it that every task can read:

- Where one stage is all, and the rows are few, they go the same way: the same RDD is computed again
  and again, without a plan. (One with a shuffle would find what the wave before has shuffled.)
- Else the rows are the leaf of a plan that is kept (`templates`).
- Where jobs have no properties of their own (Spark Connect has none, and without pinned threads
  they are not one's own), each wave is described, with the header in its functions.
"""

from __future__ import annotations

import base64
import logging
import queue
import secrets
import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import RDD, TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from waterspout import faults
from waterspout.spark.carried import carrying_outages
from waterspout.spark.failures import translate
from waterspout.spark.pool import DaemonPool
from waterspout.spark.session import SparkRuntime, is_connect
from waterspout.spark.tasks import plan_of
from waterspout.spark.templates import TableTemplate
from waterspout.spark.turns import quick_turns
from waterspout.topology._pickling import dumps
from waterspout.waves.bolts import LiveTasks, Worker
from waterspout.waves.engine import Wave, WaveDone, WaveEngine, WaveFailed
from waterspout.waves.frames import pack, unpack
from waterspout.waves.garbage import leave_alone
from waterspout.waves.over_waves import results_of
from waterspout.waves.shape import WaveShape
from waterspout.waves.shards import Row, ShardHeader, run_stage

__all__ = ["SparkWaves", "Stages", "collected"]

log = logging.getLogger(__name__)

_SAID = "waterspout.said"
"""The property of a job that says what is not the same for all: see `_Said`."""

_LONGEST = 32_000
"""How long it may be: Spark sends it to every task, and keeps it for its page."""

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
class _Said:
    """What is not the same in all waves, or phases of batches."""

    header: Mapping[str, Any]
    """What a header has instead of what was described."""

    plan: str | None
    """The kill points of a test."""

    rows: Sequence[Row] = ()
    """What the first stage gets, one for each of its tasks, where that comes with the job, too."""

    def as_text(self) -> str:
        return base64.b64encode(pack(self)).decode("ascii")

    @staticmethod
    def by_the_job() -> _Said:
        """Read what came with the job whose task this is."""
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(_SAID)
        assert text is not None, "a plan that was described once was run without its header"
        said: _Said = unpack(base64.b64decode(text))
        return said


@dataclass(frozen=True)
class _StageTask:
    """What a Python worker runs for one stage: rows in, rows out."""

    key: str
    described: bytes
    """The pickled shape and header, under a key: a worker reads them once."""

    stage: int
    said: _Said | None = None
    """None: that comes with the job."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the shards of this stage that are among the rows; pass the others on."""
        for row in self._run(self.said or _Said.by_the_job(), _rows_of(batches)):
            yield _batch([row])

    def of_partition(self, number: int, _: Iterable[Any]) -> Iterator[Row]:
        """Run what came with the job for a partition of an RDD."""
        said = _Said.by_the_job()
        return self._run(said, [said.rows[number]])

    def _run(self, said: _Said, rows: Iterable[Row]) -> Iterator[Row]:
        faults.install(None if said.plan is None else plan_of(said.plan))
        shape, header = self._description()
        context = TaskContext.get()
        worker = Worker(_live)
        if context is not None:
            worker = Worker(_live, str(context.taskAttemptId()), context.attemptNumber())
        header = replace(header, **said.header)
        with carrying_outages():
            yield from run_stage(shape, header, self.stage, rows, worker)

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

    def __init__(self, runtime: SparkRuntime, *changing: str) -> None:
        self._runtime = runtime
        self._changing = changing
        self._by_jobs = runtime.threads_have_properties
        # An event log keeps the properties of every job; what users' tuples hold is not for it.
        self._rows_by_jobs = self._by_jobs and not runtime.shows_properties
        self._described: dict[int, tuple[str, bytes]] = {}
        self._shapes: list[WaveShape] = []
        """Those of `_described`, so that no other one gets the id of one that is gone."""
        self._kept: dict[Hashable, RDD[Row]] = {}
        self._templates: dict[Hashable, TableTemplate | None] = {}
        self._targets: dict[int, Column] = {}
        """Where a row goes, by the number of shards; made once, by a dozen calls into the JVM."""

    def run(
        self,
        rows: list[Row],
        shape: WaveShape,
        header: ShardHeader,
        stages: Sequence[int],
        partitions: int,
    ) -> list[Row]:
        """Lead rows of the driver through some stages, and bring what comes of them here."""
        if self._rows_by_jobs and len(stages) == 1 and 0 < len(rows) <= partitions:
            text = replace(self._said(header), rows=rows).as_text()
            if len(text) <= _LONGEST:
                kept = self._kept_rdd(shape, header, stages[0], len(rows))
                with self._with_job(text):
                    return kept.collect()
        with self.led(rows, shape, header, stages, partitions) as frame:
            return list(collected(frame))

    @contextmanager
    def led(
        self,
        rows: list[Row],
        shape: WaveShape,
        header: ShardHeader,
        stages: Sequence[int],
        partitions: int,
    ) -> Iterator[DataFrame]:
        """Lead rows of the driver through some stages; what is computed is computed within.

        Each shard of the first stage has one row: none is moved, unless too many are together, in
        so many partitions.
        """
        table, text = _table_of(rows), self._said(header).as_text()
        frame = None
        if self._by_jobs and len(text) <= _LONGEST:
            frame = self._filled(table, shape, header, stages, partitions)
        if frame is None:
            frame = self._runtime.spark.createDataFrame(table)
            yield self.through(frame, shape, header, stages, partitions)
        else:
            with self._with_job(text):
                yield frame

    def through(
        self,
        frame: DataFrame,
        shape: WaveShape,
        header: ShardHeader,
        stages: Sequence[int],
        partitions: int,
    ) -> DataFrame:
        """Lead the rows of a frame through some stages, in a plan of its own."""
        return self._through(frame, shape, header, stages, partitions, self._said(header))

    @contextmanager
    def _with_job(self, text: str) -> Iterator[None]:
        """Send something with the jobs of this thread."""
        context = self._runtime.spark.sparkContext
        context.setLocalProperty(_SAID, text)
        try:
            yield
        finally:
            context.setLocalProperty(_SAID, None)  # type: ignore[arg-type]

    def _kept_rdd(
        self, shape: WaveShape, header: ShardHeader, stage: int, partitions: int
    ) -> RDD[Row]:
        key = id(shape), stage, partitions
        if key not in self._kept:
            task = _StageTask(*self._description(shape, header), stage)
            numbers = self._runtime.spark.sparkContext.parallelize(range(partitions), partitions)
            kept = numbers.mapPartitionsWithIndex(task.of_partition)
            with self._runtime.workers_of_plans():
                kept._jrdd  # noqa: B018  # it is described to the JVM
            self._kept[key] = kept
        return self._kept[key]

    def _filled(
        self,
        table: pa.Table,
        shape: WaveShape,
        header: ShardHeader,
        stages: Sequence[int],
        partitions: int,
    ) -> DataFrame | None:
        """Fill in the plan that is kept for such waves; None where that cannot be done."""
        # Rows of the first stage are moved or not: the steps are not the same.
        key = id(shape), tuple(stages), shape.stages[stages[0]].shards > partitions
        try:
            if key not in self._templates:
                self._templates[key] = TableTemplate(
                    self._runtime,
                    _SCHEMA,
                    lambda frame: self._through(frame, shape, header, stages, partitions, None),
                )
            template = self._templates[key]
            return None if template is None else template.filled(table)
        except Exception:  # it is another Spark than we know
            log.debug("waves like this one are described one by one", exc_info=True)
            self._templates[key] = None
            return None

    def _through(
        self,
        frame: DataFrame,
        shape: WaveShape,
        header: ShardHeader,
        stages: Sequence[int],
        partitions: int,
        said: _Said | None,
    ) -> DataFrame:
        key, described = self._description(shape, header)
        for turn, number in enumerate(stages):
            shards = shape.stages[number].shards
            if turn or shards > partitions:
                frame = frame.repartitionById(shards, self._target(shards))
            frame = frame.mapInArrow(_StageTask(key, described, number, said), _STRUCT)
        return frame

    def _description(self, shape: WaveShape, header: ShardHeader) -> tuple[str, bytes]:
        if id(shape) not in self._described:
            nothing: dict[str, Any] = dict.fromkeys(self._changing)
            common = replace(header, **nothing)
            self._shapes.append(shape)
            self._described[id(shape)] = (secrets.token_hex(8), dumps((shape, common)))
        return self._described[id(shape)]

    def _said(self, header: ShardHeader) -> _Said:
        plan = faults.current_plan()
        changes = {name: getattr(header, name) for name in self._changing}
        return _Said(changes, None if plan is None else plan.to_json())

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
        self._stages = Stages(runtime, "number", "attempt", "seed", "closing", "probe")
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
                stages = wave.shape.stages
                numbers, shards = range(len(stages)), stages[0].shards
                rows = self._stages.run(wave.rows(), wave.shape, wave.header, numbers, shards)
            self._ended.put(WaveDone(results_of(rows), time.monotonic() - began))
        except BaseException as error:
            self._ended.put(WaveFailed(translate(error, self._runtime)))


def collected(frame: DataFrame) -> Iterator[Row]:
    """Compute rows and bring them into the driver."""
    if is_connect(frame.sparkSession):
        return _rows_of(frame.toArrow().to_batches())
    # `toArrow` would ask for a schema, and for settings of types that are not among ours.
    return _rows_of(frame._collect_as_arrow())  # type: ignore[operator]


def _table_of(rows: list[Row]) -> pa.Table:
    """Return rows in the form in which Spark takes them."""
    return pa.Table.from_batches([_batch(rows)], _SCHEMA)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([getattr(row, f.name) for row in rows], f.type) for f in _SCHEMA], schema=_SCHEMA
    )


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Read rows back."""
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        yield from map(Row, *columns)
