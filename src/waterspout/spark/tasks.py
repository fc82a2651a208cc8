"""What Spark's Python workers run: small picklable callables for `mapInArrow`."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from waterspout import faults
from waterspout._arrow import arrow_schema
from waterspout._causes import naming
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import FailedException
from waterspout.spark.carried import carrying_outages
from waterspout.spark.tries import one_try
from waterspout.state._head import Claim
from waterspout.trident.drpc.running import pausing
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.plan.nodes import Query, Update, UpdateWith
from waterspout.trident.plan.plan import StateSpec
from waterspout.trident.runtime.routing import PARTITION, CustomRoute
from waterspout.trident.runtime.states import open_state, run_query, run_update
from waterspout.waves.garbage import leave_alone

__all__ = [
    "LATE_ROWS",
    "REAL",
    "WRITTEN",
    "PartitionTask",
    "TaskSetting",
    "UpdateTask",
    "ask",
    "only_real",
    "plan_of",
    "real_rows",
    "route",
]

WRITTEN = "_waterspout_written"
"""What a task has written, as text, beside the first of the new values that it gives."""

LATE_ROWS = "_waterspout_late_rows"
"""How many rows a task has found to be too late for their windows, beside what it has written."""

REAL = "_waterspout_real"
"""False in the one row that keeps a partition from being empty."""

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

    @classmethod
    def now(cls, conf: Config, txid: int, partitions: int | None) -> TaskSetting:
        """Return a setting with the kill points of this moment."""
        plan = faults.current_plan()
        return cls(conf, txid, partitions, None if plan is None else plan.to_json())

    def enter(self) -> OperationContext:
        """Take over the driver's kill points; say which partition this is."""
        faults.install(None if self.plan is None else plan_of(self.plan))
        context = TaskContext.get()
        if context is None:
            return OperationContext(0, self.partitions)
        leave_alone()
        if 0 < gc.get_threshold()[0] < _YOUNG:
            gc.set_threshold(_YOUNG)
        return OperationContext(context.partitionId(), self.partitions)


_plans: dict[str, faults.FaultPlan] = {}


def plan_of(text: str) -> faults.FaultPlan:
    """Return the plan that was shipped as text."""
    # One plan per text, so that its counters live as long as the worker.
    return _plans.setdefault(text, faults.FaultPlan.from_json(text))


@dataclass(frozen=True)
class PartitionTask:
    """Runs a function over the batches of a partition."""

    setting: TaskSetting
    run: Callable[[Iterable[pa.RecordBatch], Config, OperationContext], Iterable[pa.RecordBatch]]
    kill_point: bool = False
    """Whether a test can have the worker killed as it begins."""

    title: str = ""
    """What `explain()` calls the one operation that runs here; "" where there may be several."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the function the rows that are real."""
        context = self.setting.enter()
        with one_try(), carrying_outages():
            if self.kill_point:
                at = context.partition_index
                faults.point("processing", txid=self.setting.txid, partition=at)
            with naming(self.title) if self.title else nullcontext():
                yield from self.run(only_real(batches), self.setting.conf, context)


def only_real(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take out the rows that are not real, behind Spark's back: the partition stays."""
    return map(real_rows, batches)


def route(
    grouping: Any,
    partitions: int,
    title: str,
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Return each row once for every partition that a custom grouping chooses, with its number."""
    chosen = CustomRoute(grouping, partitions, title)
    return (chosen.dealt(batch, context.partition_index) for batch in batches)


def ask(
    node: Query,
    spec: StateSpec,
    claim: Claim | None,
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
    *,
    patience_s: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Answer the queries of a partition, whole, from a state that executors reach.

    With patience, a reader waits so long for a batch that is being committed, if it must.
    """
    partition = context.partition_index % spec.partitions
    pause = None if patience_s is None else pausing(time.monotonic() + patience_s)
    with closing(open_state(spec, conf, partition, None, pause)) as state:
        for batch in _whole(batches):
            yield run_query(node, spec, state, batch, claim, conf, partition)


@dataclass(frozen=True)
class UpdateTask:
    """The writes of one partition in a commit phase."""

    setting: TaskSetting
    node: Update
    spec: StateSpec
    claim: Claim
    want_new: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a partition and give its new values, if anyone wants them."""
        self.setting.enter()
        with one_try(), carrying_outages():
            self._refuse_second_try()
            for batch in _whole(batches):
                table = pa.Table.from_batches([batch])
                # As a rule there is one; adaptive execution may give a task several small ones.
                for partition in sorted(pc.unique(table.column(PARTITION)).to_pylist()):
                    rows = real_rows(table.filter(pc.equal(table.column(PARTITION), partition)))
                    yield from self._write(partition, rows).to_batches()

    def _refuse_second_try(self) -> None:
        """Refuse to write other keys beside those that a lost try at this task has written.

        Both would bear the name of this attempt, so that nothing could tell them apart.
        """
        context = TaskContext.get()
        assert context is not None, "a commit by tasks runs in tasks"
        varies = [o for o in self.node.operations if getattr(o, "deterministic", True) is False]
        if isinstance(self.node.updating, UpdateWith) and varies and context.attemptNumber():
            raise FailedException(
                f"{self.node.title} is declared not deterministic, and Spark runs its task again "
                "in the commit phase: a new attempt takes back what it may have written"
            )

    def _write(self, partition: int, rows: pa.Table) -> pa.Table:
        spec, conf = self.spec, self.setting.conf
        claim = replace(self.claim, written={})
        with closing(open_state(spec, conf, partition, claim.writer)) as state:
            new = run_update(
                self.node, spec, state, rows, claim, conf, partition, want_new=self.want_new
            )
        text = claim.writing(self.node.state).to_text()
        late = sum(claim.late_rows.values())
        if not self.want_new:
            told = pa.table({WRITTEN: pa.array([text], pa.string())})
            return told.append_column(LATE_ROWS, _first(late, 1)) if self.window else told
        if new is None:
            new = arrow_schema(self.node.schema).empty_table()
        size = new.num_rows
        if self.window:
            # Where no window has closed there is no row to tell it beside: one that is not real.
            blank = [] if size or not late else [None]
            nothing = {field.name: pa.array(blank, field.type) for field in new.schema}
            new = pa.concat_tables([new, pa.table(nothing, schema=new.schema)])
            new = new.append_column(LATE_ROWS, _first(late, new.num_rows))
            new = new.append_column(REAL, pa.array([True] * size + [False] * len(blank)))
        texts = [text, *[None] * (new.num_rows - 1)][: new.num_rows]
        return new.append_column(WRITTEN, pa.array(texts, pa.string()))

    @property
    def window(self) -> str | None:
        """The windows of event time that it writes, for which rows may be too late."""
        found = [each for each in self.node.operations if getattr(each, "counts_late", False)]
        return str(getattr(found[0], "label", self.node.title)) if found else None

    @property
    def schema(self) -> Schema:
        """The new values, if anyone wants them, what was written, and what was too late."""
        new = self.node.schema.fields if self.want_new else ()
        if not self.window:
            return Schema((*new, (WRITTEN, "string")))
        if not self.want_new:
            return Schema(((WRITTEN, "string"), (LATE_ROWS, "bigint")))
        return Schema((*new, (LATE_ROWS, "bigint"), (REAL, "boolean"), (WRITTEN, "string")))


def _first(value: int, rows: int) -> pa.Array:
    """Return a column with a number in its first row."""
    return pa.array([value, *[None] * (rows - 1)][:rows], pa.int64())


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
