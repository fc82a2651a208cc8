"""Which partition a tuple is on: repartitionings as DataFrame operations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from waterspout.spark.tasks import REAL, PartitionTask, TaskSetting, only_real, route
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.nodes import Repartition, Route
from waterspout.trident.plan.plan import Shape, StateSpec
from waterspout.trident.runtime.routing import PARTITION

__all__ = [
    "batches_by_partition",
    "dealt",
    "everywhere",
    "never_empty",
    "repartitioned",
    "spread",
    "with_unreal",
]


def spread(frame: DataFrame, n: int | None) -> DataFrame:
    """Return a frame over `n` partitions, its rows anywhere; one of them keeps their order."""
    if n is None:
        return frame
    return frame.coalesce(1) if n == 1 else frame.repartition(n)


def batches_by_partition(spec: StateSpec, rows: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Return rows that ask a state, each batch with the partition of the state that it asks.

    A map answers the same on each partition, so that one batch will do.
    """
    if spec.shape is not Shape.OWN or spec.partitions == 1:
        split = [(0, rows)]
    else:
        column = rows.column(PARTITION)
        split = [(i, rows.filter(pc.equal(column, i))) for i in range(spec.partitions)]
    for partition, found in split:
        for batch in found.combine_chunks().to_batches():
            yield partition, batch


def never_empty(frame: DataFrame, spark: SparkSession, *, shuffle: bool = False) -> DataFrame:
    """Bring all rows to one partition, with one more that is not real.

    Where Spark finds nothing it runs no task; an aggregator must run all the same. Without a
    shuffle all that comes before runs in one task, too.
    """
    rows = with_unreal(frame, spark, 1).drop(PARTITION)
    return rows.repartition(1) if shuffle else rows.coalesce(1)


def repartitioned(
    node: Repartition,
    frame: DataFrame,
    exchange: Exchange,
    setting: TaskSetting,
    spark: SparkSession,
    *,
    every: bool,
) -> DataFrame:
    """Return a frame with its rows on the partitions that a node says.

    `every`: a task is to run for each partition, also if there are no rows.
    """
    if exchange.deal is Deal.IN_ONE_TASK:
        return frame.coalesce(1)
    if setting.partitions is None and exchange.deal is Deal.BY_FIELDS:
        return frame.repartition(*exchange.fields)
    n = exchange.partitions or 1
    if setting.partitions is None:
        return frame.repartition(n)
    return dealt(_with_partition(node, frame, n, setting), n, spark, every=every)


def everywhere(frame: DataFrame, n: int, spark: SparkSession) -> DataFrame:
    """Deal rows out evenly; a task runs for each partition, also if there are no rows."""
    return dealt(frame.withColumn(PARTITION, _in_turn(n)), n, spark, every=True)


def dealt(frame: DataFrame, n: int, spark: SparkSession, *, every: bool) -> DataFrame:
    """Bring each row to the partition that its last column says, and take that column away.

    `every`: a task is to run for each partition, also if there are no rows.
    """
    fields = [field for field in frame.schema.fields if field.name != PARTITION]
    if not every:
        there = frame.repartitionById(n, F.col(PARTITION))
        return there.select(*(field.name for field in fields))
    real = with_unreal(frame, spark, n)
    there = real.repartitionById(n, F.col(PARTITION)).drop(PARTITION)
    schema = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in fields)
    return there.mapInArrow(only_real, schema)


def _with_partition(node: Repartition, frame: DataFrame, n: int, setting: TaskSetting) -> DataFrame:
    """Add the column that says to which partition each row goes."""
    if node.route is Route.CUSTOM:
        fields = [f"`{f.name}` {f.dataType.simpleString()}" for f in frame.schema.fields]
        task = PartitionTask(setting, partial(route, node.grouping, n, node.title))
        return frame.mapInArrow(task, ", ".join([*fields, f"`{PARTITION}` int"]))
    return frame.withColumn(PARTITION, _partition(node, n, setting.txid))


def _partition(node: Repartition, n: int, txid: int) -> Column:
    match node.route:
        case Route.BY_FIELDS:
            return F.pmod(F.hash(*node.fields), F.lit(n))
        case Route.GLOBAL:
            return F.lit(0)
        case Route.BATCH_GLOBAL:
            return F.lit(txid % n)
        case Route.BROADCAST:
            return F.explode(F.sequence(F.lit(0), F.lit(n - 1)))
    return _in_turn(n)


def _in_turn(n: int) -> Column:
    # Each task deals its rows out in turn, and begins with another partition than the others.
    turn = F.monotonically_increasing_id() + F.spark_partition_id()
    return F.pmod(turn, F.lit(n)).cast("int")


def with_unreal(frame: DataFrame, spark: SparkSession, n: int) -> DataFrame:
    """Add to each of `n` partitions a row that is not real."""
    empty = [
        F.lit(None).cast(f.dataType).alias(f.name)
        for f in frame.schema.fields
        if f.name != PARTITION
    ]
    if PARTITION not in frame.columns:
        frame = frame.withColumn(PARTITION, F.lit(0))
    unreal = spark.range(0, n, 1, numPartitions=1).select(
        *empty, F.col("id").cast("int").alias(PARTITION), F.lit(False).alias(REAL)
    )
    return frame.withColumn(REAL, F.lit(True)).unionByName(unreal)
