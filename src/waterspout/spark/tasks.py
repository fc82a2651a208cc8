"""What Spark's Python workers run: small picklable callables for `mapInArrow`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from waterspout import faults
from waterspout.config import Config
from waterspout.errors import FailedException
from waterspout.schema import Schema
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.runtime.aggregate import AggregateStep, combine_partials, run_aggregate
from waterspout.trident.runtime.rows import RowStep, run_steps
from waterspout.trident.runtime.states import (
    CommitTicket,
    QueryStep,
    UpdateStep,
    open_state,
    run_query,
    run_update,
)

__all__ = [
    "FAILED_MARK",
    "PARTITION",
    "REAL",
    "AggregateTask",
    "QueryTask",
    "RowsTask",
    "TaskSetting",
    "UpdateTask",
    "plan_of",
]

PARTITION = "_partition"
"""The column that says which partition of the state a row belongs to."""

REAL = "_real"
"""False in the one row that keeps a partition from being empty."""

FAILED_MARK = "waterspout-failed:"
"""Marks, in the text that Spark passes on, an error that asks for a replay."""


@dataclass(frozen=True)
class TaskSetting:
    """What every task must know."""

    conf: Config
    txid: int
    partitions: int
    plan: str | None = None

    def enter(self) -> OperationContext:
        """Take over the driver's kill points; say which partition this is."""
        faults.install(None if self.plan is None else plan_of(self.plan))
        context = TaskContext.get()
        return OperationContext(context.partitionId() if context else 0, self.partitions)


_plans: dict[str, faults.FaultPlan] = {}


def plan_of(text: str) -> faults.FaultPlan:
    """Return the plan that was shipped as text."""
    # One plan per text, so that its counters live as long as the worker.
    return _plans.setdefault(text, faults.FaultPlan.from_json(text))


def _marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Mark what user code raised to fail the batch, so that the driver can tell it."""
    try:
        yield from batches
    except FailedException as error:
        raise FailedException(f"{FAILED_MARK} {error}") from error


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
        real = (_without_sentinel(batch) for batch in batches)
        if self.combine:
            return _marked(combine_partials(step, real, conf, context))
        txid = self.setting.txid
        return _marked(run_aggregate(step, real, conf, context, txid, partial=self.partial))


@dataclass(frozen=True)
class QueryTask:
    """A query of a state that executors reach."""

    setting: TaskSetting
    step: QueryStep
    ticket: CommitTicket | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answer a partition, whole."""
        context = self.setting.enter()
        part = context.partition_index
        state = open_state(self.step.spec, self.setting.conf, part, None)
        try:
            for batch in _whole(batches):
                yield from _marked(
                    iter([run_query(self.step, state, batch, self.ticket, self.setting.conf, part)])
                )
        finally:
            state.close()


@dataclass(frozen=True)
class UpdateTask:
    """The writes of one partition in a commit phase."""

    setting: TaskSetting
    step: UpdateStep
    ticket: CommitTicket

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a partition and give its new values, if anyone wants them."""
        self.setting.enter()
        conf = self.setting.conf
        for batch in _whole(batches):
            table = pa.Table.from_batches([batch])
            part = table.column(PARTITION)[0].as_py()
            state = open_state(self.step.spec, conf, part, self.ticket.writer)
            try:
                new = _marked_call(
                    lambda: run_update(self.step, state, table, self.ticket, conf, part)  # noqa: B023
                )
            finally:
                state.close()
            if new is not None:
                yield from new.to_batches()

    @property
    def schema(self) -> Schema:
        """The new values; one column that stays empty where nobody wants them."""
        return self.step.schema if self.step.want_new else Schema((("nothing", "boolean"),))


def _marked_call(call: Any) -> Any:
    try:
        return call()
    except FailedException as error:
        raise FailedException(f"{FAILED_MARK} {error}") from error


def _whole(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return a partition as one batch; no batch for no rows."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return []
    whole: list[pa.RecordBatch] = pa.Table.from_batches(found).combine_chunks().to_batches()
    return whole


def _without_sentinel(batch: pa.RecordBatch) -> pa.RecordBatch:
    if REAL not in batch.schema.names:
        return batch
    kept = batch.filter(batch.column(REAL))
    return kept.select([name for name in batch.schema.names if name != REAL])
