"""From plan nodes to DataFrame operations, one function per kind of node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waterspout import faults
from waterspout.arrow import arrow_schema
from waterspout.config import Config
from waterspout.errors import TopologyError
from waterspout.schema import Schema
from waterspout.spark.joining import joined, merged, packed
from waterspout.spark.native import native_columns
from waterspout.spark.reads import from_table, read_frame
from waterspout.spark.session import SparkRuntime
from waterspout.spark.spreading import (
    batches_by_partition,
    dealt,
    never_empty,
    repartitioned,
    spread,
    with_unreal,
)
from waterspout.spark.tasks import (
    AggregateTask,
    IsolatedTask,
    QueryTask,
    ReduceTask,
    RowsTask,
    TaskSetting,
)
from waterspout.spouts.reads import Read
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.trident.isolation.letters import ASIDE
from waterspout.trident.isolation.running import isolated_steps
from waterspout.trident.operations.adapters import SqlExpression
from waterspout.trident.operations.functions import Split
from waterspout.trident.plan.chains import python_chain
from waterspout.trident.plan.native import is_native
from waterspout.trident.plan.nodes import (
    Aggregate,
    CombineInto,
    Each,
    Isolated,
    Join,
    Keep,
    Mapped,
    Merge,
    MultiReduce,
    Node,
    Project,
    Query,
    ReduceInto,
    Repartition,
    Route,
    Scope,
    SortedOut,
    Transform,
    Update,
    UpdateWith,
)
from waterspout.trident.plan.partitions import root_of
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.shuffles import lies_in_one
from waterspout.trident.runtime.aggregate import aggregate_step
from waterspout.trident.runtime.routing import PARTITION
from waterspout.trident.runtime.rows import row_step
from waterspout.trident.runtime.several import reduce_step
from waterspout.trident.runtime.states import CommitTicket, QueryStep, open_state, run_query

__all__ = ["Compiler"]


class Compiler:
    """Builds the DataFrames of one plan. Holds no state of any batch."""

    def __init__(self, runtime: SparkRuntime, plan: Plan, conf: Config) -> None:
        self._runtime = runtime
        self._spark = runtime.spark
        self._plan = plan
        self._conf = conf
        self._casts: dict[int, tuple[str, ...]] = {}

    def read(
        self,
        read: Read,
        attempt: TransactionAttempt,
        *,
        tasks: int | None = None,
        with_position: bool = False,
    ) -> DataFrame:
        """Return the rows of a described batch; see `read_frame`."""
        return read_frame(
            self._runtime,
            read,
            self._conf,
            attempt=attempt,
            tasks=tasks,
            with_position=with_position,
        )

    def from_table(self, table: pa.Table) -> DataFrame:
        """Return a table of the driver's as a DataFrame."""
        return from_table(self._spark, table)

    def frame(
        self, node: Node, made: Mapping[Node, DataFrame], attempt: TransactionAttempt
    ) -> DataFrame:
        """Return a node's DataFrame, from those that are made already."""
        if node in made:
            return made[node]
        chain = python_chain(self._plan, node, made)
        if chain:
            before = chain[0].parents[0]
            parent = self._only_read(before, self.frame(before, made, attempt))
            steps = tuple(row_step(one, self._plan.kept[one]) for one in chain)
            task = RowsTask(self.setting(attempt, node), tuple(s for s in steps if s is not None))
            return parent.mapInArrow(task, self._plan.kept[node].ddl())
        parents = [self.frame(parent, made, attempt) for parent in node.parents]
        return self.placed(node, self._built(node, parents, attempt))

    def _built(
        self, node: Node, parents: Sequence[DataFrame], attempt: TransactionAttempt
    ) -> DataFrame:
        parent = parents[0]
        match node:
            case Each() | Mapped():
                return self._native(node, parent)
            case Keep(predicate=predicate):
                return parent.where(self._unfolded(node, _column(predicate)))
            case Project():
                return parent.select(*self._plan.kept[node].names)
            case Transform(function=function):
                return _checked(node, function(parent))
            case Repartition():
                setting = self.setting(attempt, node)
                return repartitioned(
                    node, parent, self._plan.width_of(node), setting, self._spark,
                    before=self._plan.width_of(node.parents[0]), every=node in self._aggregated,
                )  # fmt: skip
            case Aggregate():
                return self._aggregate(node, parent, attempt)
            case Isolated():
                return self._isolated(node, parents, attempt)
            case SortedOut(aside=aside):
                chosen = F.col(ASIDE).isNotNull() if aside else F.col(ASIDE).isNull()
                return parent.where(chosen).select(*node.schema.names)
            case Merge():
                return self._merged(node, parents)
            case Join():
                return joined(node, parents)
            case MultiReduce():
                return self._multi_reduce(node, parents, attempt)
            case Query() if self.is_asked_by_tasks(node):
                return self.query(node, parent, attempt, None)
            case Query():
                return self._query_here(node, parent)
        raise AssertionError(f"{node.title} has no DataFrame of its own")

    def placed(self, node: Node, frame: DataFrame) -> DataFrame:
        """Spread the frame of a group's first node over the partitions of the group."""
        moves = isinstance(node, (Repartition, MultiReduce))
        if moves or node not in self._plan.widths:
            return frame
        width = self._plan.widths[node]
        if width is None or width == 1 or node not in self._aggregated:
            return spread(frame, width)
        return self._everywhere(node, frame, width)

    def _everywhere(self, node: Node, frame: DataFrame, width: int) -> DataFrame:
        """Deal rows out evenly; a task runs for each partition, also if there are no rows."""
        shuffle = Repartition(
            number=node.number, schema=node.schema, parents=(node,), route=Route.SHUFFLE
        )
        setting = self.setting(TransactionAttempt(1, 0), node)
        return repartitioned(shuffle, frame, width, setting, self._spark, before=None, every=True)

    def _unfolded(self, node: Node, predicate: Column) -> Column:
        """Keep Spark from finding out that a filter lets nothing through, where that would show.

        It would run no task then, and each partition is to give something.
        """
        if root_of(node) not in self._aggregated:
            return predicate
        return predicate | (F.spark_partition_id() < 0)

    def numbered(self, node: Query, parent: DataFrame) -> DataFrame:
        """Note which partition each row is on, if that matters, before rows come to the driver."""
        width = self._plan.width_of(node)
        if width is None or width == 1:
            return parent
        return parent.withColumn(PARTITION, F.spark_partition_id())

    def back(self, node: Query, table: pa.Table) -> DataFrame:
        """Bring answered rows back to the partitions that they were on."""
        width = self._plan.width_of(node)
        if width is None or width == 1:
            return spread(self.from_table(table), width)
        if PARTITION not in table.column_names:  # no rows
            table = table.append_column(PARTITION, pa.nulls(table.num_rows, pa.int32()))
        frame = self.from_table(table).select(*node.schema.names, PARTITION)
        return dealt(frame, width, self._spark, every=root_of(node) in self._aggregated)

    @cached_property
    def _aggregated(self) -> set[Node]:
        """First nodes of groups in which each partition gives something, an empty one too."""
        return {
            root_of(node)
            for node in self._plan.nodes
            if isinstance(node, Aggregate) and node.scope is Scope.PARTITION
        }

    def query(
        self,
        node: Query,
        parent: DataFrame,
        attempt: TransactionAttempt,
        ticket: CommitTicket | None,
    ) -> DataFrame:
        """Return a parent's rows with a state's answers, asked by tasks."""
        step = QueryStep.of(node, self._plan.states[node.state])
        task = QueryTask(self.setting(attempt, node), step, ticket)
        return parent.mapInArrow(task, node.schema.ddl())

    def is_asked_by_tasks(self, node: Query) -> bool:
        """Whether executors reach the state of a query."""
        return not self._plan.states[node.state].factory.driver_only

    def _query_here(self, node: Query, parent: DataFrame) -> DataFrame:
        """Ask a state that only the driver reaches: the rows come here, and go back answered."""
        step = QueryStep.of(node, self._plan.states[node.state])
        answered = []
        for part, batch in batches_by_partition(step.spec, self.numbered(node, parent).toArrow()):
            state = open_state(step.spec, self._conf, part, None)
            try:
                answered.append(run_query(step, state, batch, None, self._conf, part))
            finally:
                state.close()
        nothing = arrow_schema(node.schema).empty_table()
        return self.back(node, pa.Table.from_batches(answered) if answered else nothing)

    def with_partition(self, node: Update, frame: DataFrame) -> DataFrame:
        """Add the column that says which partition of the state each row goes to."""
        placed = self._with_partition(node, frame)
        if isinstance(node.updating, UpdateWith) and node.updating.every_batch:
            parts = self._plan.states[node.state].partitions
            return with_unreal(placed, self._spark, parts)
        return placed

    def _with_partition(self, node: Update, frame: DataFrame) -> DataFrame:
        spec = self._plan.states[node.state]
        updating = node.updating
        if spec.partitions == 1:
            return frame.withColumn(PARTITION, F.lit(0))
        if isinstance(updating, (CombineInto, ReduceInto)):
            by = F.hash(*updating.keys) if updating.keys else F.lit(0)
        elif self._plan.width_of(node) == spec.partitions:
            by = F.spark_partition_id()  # the stream's partitions are those of the state
        else:
            # All will do, since any row may go anywhere; but maps have no hash.
            types = node.parents[0].schema
            by = F.hash(*(f for f in updating.fields if not _has_map(types.type_of(f))))
        return frame.withColumn(PARTITION, F.pmod(by, F.lit(spec.partitions)))

    def setting(self, attempt: TransactionAttempt, node: Node | None = None) -> TaskSetting:
        """Return what tasks of a node must know."""
        plan = faults.current_plan()
        width = None if node is None else self._plan.width_of(node)
        return TaskSetting(
            self._conf,
            attempt.txid,
            width,
            None if plan is None else plan.to_json(),
            attempt.attempt_id,
        )

    def _only_read(self, node: Node, frame: DataFrame) -> DataFrame:
        """Leave out fields that nobody reads: Spark does not see which of them Python wants."""
        kept = self._plan.kept[node].names
        return frame if len(kept) == len(node.schema) else frame.select(*kept)

    def _merged(self, node: Merge, parents: Sequence[DataFrame]) -> DataFrame:
        pairs = list(zip(node.parents, parents, strict=True))
        there = [pair for pair in pairs if pair[1] is not self.no_requests] or pairs[:1]
        return merged(replace(node, parents=tuple(p for p, _ in there)), [f for _, f in there])

    @cached_property
    def no_requests(self) -> DataFrame:
        """Stands for all batches in which nobody asks for a dead letter."""
        return self.from_table(arrow_schema(Schema(((ASIDE, "string"),))).empty_table())

    def _isolated(
        self, node: Isolated, parents: Sequence[DataFrame], attempt: TransactionAttempt
    ) -> DataFrame:
        rows, requests = parents
        if requests is not self.no_requests:
            empty = [F.lit(None).cast(f.dataType).alias(f.name) for f in rows.schema.fields]
            rows = rows.withColumn(ASIDE, F.lit(None).cast("string"))
            rows = rows.unionByName(requests.select(*empty, ASIDE))
            width = self._plan.width_of(node)
            rows = rows if width is None else rows.coalesce(width)
        task = IsolatedTask(self.setting(attempt, node), isolated_steps(node))
        return rows.mapInArrow(task, node.schema.ddl())

    def _native(self, node: Each | Mapped, parent: DataFrame) -> DataFrame:
        beside = () if isinstance(node, Each) else node.beside
        rest = ["*"] if isinstance(node, Each) else []
        out = node.out if isinstance(node, Each) else node.schema.without(beside)
        if isinstance(node.function, Split):
            pattern, name = re.escape(node.function.separator), out.names[0]
            words = F.explode(F.split(F.col(node.fields[0]), pattern, -1)).alias(name)
            frame = parent.select(*rest, words, *beside).where(F.col(name) != "")
        else:
            given = node.function
            columns = given if isinstance(given, (list, tuple)) else [given]
            made = [_column(c).alias(n) for c, n in zip(columns, out.names, strict=True)]
            frame = parent.select(*rest, *made, *beside)
        if node.number not in self._casts:
            found = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
            self._casts[node.number] = tuple(n for n, kind in out if found[n] != kind)
        for name in self._casts[node.number]:
            frame = frame.withColumn(name, F.col(name).cast(str(out.type_of(name))))
        return frame

    def _aggregate(
        self, node: Aggregate, parent: DataFrame, attempt: TransactionAttempt
    ) -> DataFrame:
        if is_native(node):
            grouped = parent.groupBy(*node.group) if node.group is not None else parent
            return grouped.agg(*native_columns(node))
        rows = parent.select(*(node.inputs or parent.columns[:1]))
        step, setting, ddl = aggregate_step(node), self.setting(attempt, node), node.schema.ddl()
        whole = AggregateTask(setting, step, partial=False, combine=False)
        if node.scope is not Scope.BATCH:
            if self._plan.width_of(node) == 1 and node.group is None:
                rows = never_empty(rows, self._spark)
            return rows.mapInArrow(whole, ddl)
        alone = replace(setting, partitions=1)
        if lies_in_one(self._plan, node.parents[0]):
            rows = never_empty(rows, self._spark) if node.group is None else rows.coalesce(1)
            return rows.mapInArrow(replace(whole, setting=alone), ddl)
        if step.partial is not None:
            here = self.setting(attempt, node.parents[0])
            partial = AggregateTask(here, step, partial=True, combine=False)
            rows = rows.mapInArrow(partial, step.partial.ddl())
            whole = AggregateTask(setting, step, partial=False, combine=True)
        if node.group is not None:
            return rows.repartition(*node.group).mapInArrow(whole, ddl)
        together = never_empty(rows, self._spark, shuffle=True)
        return together.mapInArrow(replace(whole, setting=alone), ddl)

    def _multi_reduce(
        self, node: MultiReduce, parents: Sequence[DataFrame], attempt: TransactionAttempt
    ) -> DataFrame:
        rows, width = packed(node, parents), self._plan.width_of(node)
        if node.groups is not None:
            keys = [f"_g{i}" for i in range(len(node.groups[0]))]
            rows = rows.repartition(*keys) if width is None else rows.repartition(width, *keys)
        elif width is None or width == 1:
            rows = never_empty(rows, self._spark)
        else:
            rows = self._everywhere(node, rows, width)
        task = ReduceTask(self.setting(attempt, node), reduce_step(node))
        return rows.mapInArrow(task, node.schema.ddl())


def _has_map(kind: str | None) -> bool:
    return kind is not None and re.search(r"\b(map|variant)\b", kind, re.I) is not None


def _column(operation: Any) -> Column:
    return F.expr(operation.text) if isinstance(operation, SqlExpression) else operation


def _checked(node: Transform, frame: Any) -> DataFrame:
    if not isinstance(frame, DataFrame):
        raise TopologyError(f"{node.title} must return a DataFrame; it gave {frame!r}")
    missing = [name for name in node.schema.names if name not in frame.columns]
    if missing:
        raise TopologyError(
            f"{node.title} is declared to give {node.schema}, but {', '.join(missing)} is missing "
            f'(it gave {", ".join(frame.columns)}); write out="..." as it really is'
        )
    wanted = [F.col(name).cast(str(kind)).alias(name) for name, kind in node.schema]
    return frame.select(*wanted)
