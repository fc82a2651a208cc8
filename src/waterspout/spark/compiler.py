"""From plan nodes to DataFrame operations, one function per kind of node."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waterspout import faults
from waterspout.arrow import arrow_schema, ddl_of
from waterspout.config import Config
from waterspout.errors import TopologyError
from waterspout.schema import Schema
from waterspout.spark.session import SparkRuntime
from waterspout.spark.tasks import (
    PARTITION,
    REAL,
    AggregateTask,
    QueryTask,
    RowsTask,
    TaskSetting,
)
from waterspout.spouts.reads import FilesRead, RangeRead, Read, RowsRead
from waterspout.trident.operations.adapters import SqlExpression
from waterspout.trident.operations.aggregators import Columns, Count, Max, Min, Sum
from waterspout.trident.operations.contracts import CombinerAggregator
from waterspout.trident.operations.functions import Split
from waterspout.trident.plan.nodes import (
    Aggregate,
    CombineInto,
    Each,
    Keep,
    Node,
    Project,
    Query,
    ReduceInto,
    Source,
    Transform,
    Update,
)
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.aggregate import AggregateStep, aggregate_step
from waterspout.trident.runtime.rows import row_step
from waterspout.trident.runtime.states import CommitTicket, QueryStep, open_state, run_query

__all__ = ["Compiler", "is_native"]

_TASK_BYTES = 32_000_000
"""A task never reads more than this because of `_share_of_cores`."""


def is_native(node: Node) -> bool:
    """Whether a node runs in the JVM, without a Python worker."""
    match node:
        case Each(function=operation) | Keep(predicate=operation):
            return isinstance(operation, (SqlExpression, Column)) or type(operation) is Split
        case Aggregate(aggregator=Columns() as columns):
            return all(type(part) in _NATIVE for _, part in columns.parts.values())
        case Aggregate(aggregator=aggregator):
            return type(aggregator) in _NATIVE
        case Query() | Update():
            return False
    return True


class Compiler:
    """Builds the DataFrames of one plan. Holds no state of any batch."""

    def __init__(self, runtime: SparkRuntime, plan: Plan, conf: Config) -> None:
        self._spark = runtime.spark
        self._plan = plan
        self._conf = conf
        self._cores = runtime.cores
        self._casts: dict[int, tuple[str, ...]] = {}

    def read(self, read: Read) -> DataFrame:
        """Return the rows of a described batch."""
        match read:
            case RowsRead(schema, rows):
                return self.from_table(_rows_table(schema, rows))
            case RangeRead(schema, start, end, epoch, rate):
                seconds = F.lit(epoch) + F.col("id") / F.lit(rate)
                return self._spark.range(start, end).select(
                    F.col("id").alias("value"), F.timestamp_seconds(seconds).alias("timestamp")
                )
            case FilesRead(schema, form, paths, _, options):
                if not paths:
                    return self.from_table(_rows_table(schema, []))
                reader = self._spark.read.format(form).schema(schema.ddl()).options(**options)
                # These are names, not patterns: a[1].txt is not a1.txt.
                names = [re.sub(r"([\\*?\[\]{}])", r"\\\1", path) for path in paths]
                return self._share_of_cores(reader.load(names).select(*schema.names), read)

    def _share_of_cores(self, frame: DataFrame, read: FilesRead) -> DataFrame:
        """Read a batch with as many tasks as are its share of the cores.

        With several batches in flight the cores are busy anyway, and fewer tasks per batch
        combine more before the shuffle and cost less.
        """
        if self._cores is None or self._conf.max_batches == 1:
            return frame
        share = -(-self._cores // self._conf.max_batches)
        return frame.coalesce(max(share, -(-read.size_bytes // _TASK_BYTES)))

    def from_table(self, table: pa.Table) -> DataFrame:
        """Return a table of the driver's as a DataFrame."""
        if table.num_rows == 0:
            # Spark Connect wants to be told the schema of nothing.
            return self._spark.createDataFrame([], ddl_of(table.schema).ddl())
        return self._spark.createDataFrame(table)

    def frame(self, node: Node, made: Mapping[Node, DataFrame], txid: int) -> DataFrame:
        """Return a node's DataFrame, from those that are made already."""
        if node in made:
            return made[node]
        chain = self._python_chain(node, made)
        if chain:
            parent = self._spread(chain[0], self.frame(chain[0].parents[0], made, txid))
            steps = tuple(step for step in map(row_step, chain) if step is not None)
            task = RowsTask(self.setting(txid, parent), steps)
            return parent.mapInArrow(task, node.schema.ddl())
        parent = self._spread(node, self.frame(node.parents[0], made, txid))
        match node:
            case Each():
                return self._native_each(node, parent)
            case Keep(predicate=predicate):
                return parent.where(_column(predicate))
            case Project(fields=fields):
                return parent.select(*fields)
            case Transform(function=function):
                return _checked(node, function(parent))
            case Aggregate():
                return self._aggregate(node, parent, txid)
            case Query() if self.is_asked_by_tasks(node):
                return self.query(node, parent, txid, None)
            case Query():
                return self._query_here(node, parent)
        raise AssertionError(f"{node.title} has no DataFrame of its own")

    def query(
        self, node: Query, parent: DataFrame, txid: int, ticket: CommitTicket | None
    ) -> DataFrame:
        """Return a parent's rows with a state's answers, asked by tasks."""
        step = QueryStep.of(node, self._plan.states[node.state])
        task = QueryTask(self.setting(txid, parent), step, ticket)
        return parent.mapInArrow(task, node.schema.ddl())

    def is_asked_by_tasks(self, node: Query) -> bool:
        """Whether executors reach the state of a query."""
        return not self._plan.states[node.state].factory.driver_only

    def _query_here(self, node: Query, parent: DataFrame) -> DataFrame:
        """Ask a state that only the driver reaches: the rows come here, and go back answered."""
        step = QueryStep.of(node, self._plan.states[node.state])
        rows = parent.toArrow().combine_chunks().to_batches()
        state = open_state(step.spec, self._conf, 0, None)
        try:
            answered = [run_query(step, state, batch, None, self._conf, 0) for batch in rows]
        finally:
            state.close()
        nothing = arrow_schema(node.schema).empty_table()
        return self.from_table(pa.Table.from_batches(answered) if answered else nothing)

    def with_partition(self, node: Update, frame: DataFrame) -> DataFrame:
        """Add the column that says which partition of the state each row goes to."""
        spec = self._plan.states[node.state]
        updating = node.updating
        if isinstance(updating, (CombineInto, ReduceInto)):
            keys: tuple[str, ...] = updating.keys
        else:
            # All will do, since any row may go anywhere; but maps have no hash.
            types = node.parents[0].schema
            keys = tuple(f for f in updating.fields if not _has_map(types.type_of(f)))
        if not keys or spec.partitions == 1:
            return frame.withColumn(PARTITION, F.lit(0))
        return frame.withColumn(PARTITION, F.pmod(F.hash(*keys), F.lit(spec.partitions)))

    def setting(self, txid: int, frame: DataFrame | None = None) -> TaskSetting:
        """Return what tasks over a frame must know."""
        plan = faults.current_plan()
        return TaskSetting(
            self._conf, txid, self._conf.state_partitions, None if plan is None else plan.to_json()
        )

    def _spread(self, node: Node, frame: DataFrame) -> DataFrame:
        hints, source = self._plan.hints, node.parents[0]
        hint = hints.get(node.number)
        if hint is None and isinstance(source, Source):
            hint = hints.get(source.number)
        return frame if hint is None else frame.repartition(hint)

    def _python_chain(self, node: Node, made: Mapping[Node, DataFrame]) -> list[Node]:
        """Return this node and those before it that fit into one visit to a Python worker."""
        chain: list[Node] = []
        while node not in made and row_step(node) is not None:
            if is_native(node) and not (chain and isinstance(node, Project)):
                break
            chain.insert(0, node)
            if self._plan.hints.get(node.number) or node.parents[0] in self._plan.shared:
                break
            node = node.parents[0]
        return chain

    def _native_each(self, node: Each, parent: DataFrame) -> DataFrame:
        if len(node.out) != 1:
            raise TopologyError(f"{node.title} is one expression, but has {len(node.out)} outputs")
        name, kind = node.out.fields[0]
        if isinstance(node.function, Split):
            pattern = re.escape(node.function.separator)
            words = F.split(F.col(node.fields[0]), pattern, -1)
            frame = parent.select("*", F.explode(words).alias(name)).where(F.col(name) != "")
        else:
            frame = parent.select("*", _column(node.function).alias(name))
        if node.number not in self._casts:
            found = frame.schema[name].dataType.simpleString()
            self._casts[node.number] = () if found == kind else (name,)
        for cast in self._casts[node.number]:
            frame = frame.withColumn(cast, F.col(cast).cast(str(kind)))
        return frame

    def _aggregate(self, node: Aggregate, parent: DataFrame, txid: int) -> DataFrame:
        native = _native_aggregates(node)
        if native is not None:
            columns = [
                column.cast(str(kind)).alias(name)
                for column, (name, kind) in zip(native, node.out.fields, strict=True)
            ]
            grouped = parent.groupBy(*node.group) if node.group is not None else parent
            return grouped.agg(*columns)
        wanted = [*(node.group or ()), *(f for f in node.fields if f not in (node.group or ()))]
        rows = parent.select(*wanted)
        step, setting = aggregate_step(node), self.setting(txid, parent)
        ddl = node.schema.ddl()
        if isinstance(node.aggregator, CombinerAggregator):
            partial = AggregateTask(setting, step, partial=True, combine=False)
            rows = rows.mapInArrow(partial, ddl)
            task = AggregateTask(setting, step, partial=False, combine=True)
        else:
            task = AggregateTask(setting, step, partial=False, combine=False)
        return self._brought_together(rows, step).mapInArrow(task, ddl)

    def _brought_together(self, rows: DataFrame, step: AggregateStep) -> DataFrame:
        if step.grouped:
            return rows.repartition(*step.group)
        # A task runs only where there are rows; one that is not real makes sure of it.
        empty = [F.lit(None).cast(f.dataType).alias(f.name) for f in rows.schema.fields]
        sentinel = self._spark.range(1).select(*empty, F.lit(False).alias(REAL))
        return rows.withColumn(REAL, F.lit(True)).union(sentinel).repartition(1)


def _native_aggregates(node: Aggregate) -> list[Column] | None:
    """Return a node's aggregates as Spark's own, if all of them have one."""
    if not is_native(node):
        return None
    if isinstance(node.aggregator, Columns):
        return [_NATIVE[type(part)](fields) for fields, part in node.aggregator.parts.values()]
    return [_NATIVE[type(node.aggregator)](node.fields)]


_NATIVE: dict[type, Callable[[Sequence[str]], Column]] = {
    Count: lambda fields: F.count(F.lit(1)),
    Sum: lambda fields: F.coalesce(F.sum(F.col(fields[0])), F.lit(0)),
    Min: lambda fields: F.min(F.col(fields[0])),
    Max: lambda fields: F.max(F.col(fields[0])),
}


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


def _rows_table(schema: Schema, rows: Any) -> pa.Table:
    arrow = arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow)
