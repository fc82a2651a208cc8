"""What Spark's Python workers run: small picklable callables for `mapInArrow`."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from waterspout import faults
from waterspout.config import Config
from waterspout.errors import FailedException
from waterspout.schema import Schema
from waterspout.state.head import Claim
from waterspout.trident.isolation.running import IsolatedStep, run_isolated
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.runtime.aggregate import AggregateStep, combine_partials, run_aggregate
from waterspout.trident.runtime.joins import ReduceStep, run_multi_reduce
from waterspout.trident.runtime.routing import PARTITION, CustomRoute
from waterspout.trident.runtime.rows import RowStep, run_steps
from waterspout.trident.runtime.states import (
    QueryStep,
    UpdateStep,
    asked_partition,
    open_state,
    run_query,
    run_update,
)

__all__ = [
    "FAILED_MARK",
    "REAL",
    "AggregateTask",
    "IsolatedTask",
    "QueryTask",
    "ReduceTask",
    "RouteTask",
    "RowsTask",
    "StripTask",
    "TaskSetting",
    "UpdateTask",
    "plan_of",
    "real_rows",
]

REAL = "_waterspout_real"
"""False in the one row that keeps a partition from being empty."""

FAILED_MARK = "waterspout-failed:"
"""Marks, in the text that Spark passes on, an error that asks for a replay."""


_YOUNG = 50_000
"""How many objects a worker makes before its garbage collector looks through them.

The tuples of a batch are made by the ten thousand and all die with it: to look through them
every 700, as is usual, took as long as the functions that made them.
"""


@dataclass(frozen=True)
class TaskSetting:
    """What every task must know."""

    conf: Config
    txid: int
    partitions: int | None
    plan: str | None = None
    attempt_id: int = 0

    def enter(self) -> OperationContext:
        """Take over the driver's kill points; say which partition this is."""
        faults.install(None if self.plan is None else plan_of(self.plan))
        context = TaskContext.get()
        if context is None:
            return OperationContext(0, self.partitions)
        if 0 < gc.get_threshold()[0] < _YOUNG:
            gc.set_threshold(_YOUNG)
        return OperationContext(context.partitionId(), self.partitions)


_plans: dict[str, faults.FaultPlan] = {}


def plan_of(text: str) -> faults.FaultPlan:
    """Return the plan that was shipped as text."""
    # One plan per text, so that its counters live as long as the worker.
    return _plans.setdefault(text, faults.FaultPlan.from_json(text))


@contextmanager
def _marking() -> Iterator[None]:
    """Mark what user code raised to fail the batch, so that the driver can tell it."""
    try:
        yield
    except FailedException as error:
        raise FailedException(f"{FAILED_MARK} {error}") from error


def _marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _marking():
        yield from batches


@dataclass(frozen=True)
class RowsTask:
    """A chain of functions and filters."""

    setting: TaskSetting
    steps: tuple[RowStep, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the chain over a partition."""
        context = self.setting.enter()
        faults.point("processing", txid=self.setting.txid, partition=context.partition_index)
        return _marked(run_steps(self.steps, batches, self.setting.conf, context))


@dataclass(frozen=True)
class IsolatedTask:
    """A chain that puts bad rows aside."""

    setting: TaskSetting
    steps: tuple[IsolatedStep, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the chain over a partition."""
        context = self.setting.enter()
        faults.point("processing", txid=self.setting.txid, partition=context.partition_index)
        return _marked(run_isolated(self.steps, batches, self.setting.conf, context))


@dataclass(frozen=True)
class AggregateTask:
    """A Python aggregator: over tuples, or over the partial results of a combiner."""

    setting: TaskSetting
    step: AggregateStep
    partial: bool
    combine: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Aggregate a partition."""
        context = self.setting.enter()
        conf, step = self.setting.conf, self.step
        real = (real_rows(batch) for batch in batches)
        if self.combine:
            return _marked(combine_partials(step, real, conf, context))
        txid = self.setting.txid
        return _marked(run_aggregate(step, real, conf, context, txid, partial=self.partial))


@dataclass(frozen=True)
class ReduceTask:
    """A multi-reducer over packed rows."""

    setting: TaskSetting
    step: ReduceStep

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reduce a partition."""
        context = self.setting.enter()
        real = (real_rows(batch) for batch in batches)
        return _marked(run_multi_reduce(self.step, real, self.setting.conf, context))


@dataclass(frozen=True)
class RouteTask:
    """A custom grouping: each row once for every partition that it chooses."""

    setting: TaskSetting
    grouping: Any
    partitions: int
    title: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add to each row the partition that it goes to."""
        context = self.setting.enter()
        route = CustomRoute(self.grouping, self.partitions, self.title)
        return _marked(route.dealt(batch, context.partition_index) for batch in batches)


@dataclass(frozen=True)
class StripTask:
    """Takes out the rows that are not real, behind Spark's back: the partition stays."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Leave the real rows."""
        return (real_rows(batch) for batch in batches)


@dataclass(frozen=True)
class QueryTask:
    """A query of a state that executors reach."""

    setting: TaskSetting
    step: QueryStep
    claim: Claim | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answer a partition, whole."""
        context = self.setting.enter()
        partition = asked_partition(self.step.spec, context.partition_index)
        with closing(open_state(self.step.spec, self.setting.conf, partition, None)) as state:
            for batch in _whole(batches):
                with _marking():
                    yield run_query(
                        self.step, state, batch, self.claim, self.setting.conf, partition
                    )


@dataclass(frozen=True)
class UpdateTask:
    """The writes of one partition in a commit phase."""

    setting: TaskSetting
    step: UpdateStep
    claim: Claim

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a partition and give its new values, if anyone wants them."""
        self.setting.enter()
        conf = self.setting.conf
        for batch in _whole(batches):
            table = pa.Table.from_batches([batch])
            # As a rule there is one; adaptive execution may give a task several small ones.
            for partition in sorted(pc.unique(table.column(PARTITION)).to_pylist()):
                rows = real_rows(table.filter(pc.equal(table.column(PARTITION), partition)))
                opened = open_state(self.step.spec, conf, partition, self.claim.writer)
                with closing(opened) as state, _marking():
                    new = run_update(self.step, state, rows, self.claim, conf, partition)
                if new is not None:
                    yield from new.to_batches()

    @property
    def schema(self) -> Schema:
        """The new values; one column that stays empty where nobody wants them."""
        return self.step.schema if self.step.want_new else Schema((("nothing", "boolean"),))


def _whole(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return a partition as one batch; no batch for no rows."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return []
    whole: list[pa.RecordBatch] = pa.Table.from_batches(found).combine_chunks().to_batches()
    return whole


def real_rows(rows: Any) -> Any:
    """Return a batch or table without the rows that are not real, if it may have some."""
    if REAL not in rows.schema.names:
        return rows
    kept = rows.filter(rows.column(REAL))
    return kept.select([name for name in rows.schema.names if name != REAL])
