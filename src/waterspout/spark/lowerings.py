"""What each kind of node becomes on Spark: DataFrame operations, or Python over Arrow batches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waterspout.errors import TopologyError
from waterspout.spark.joining import joined, merged, packed
from waterspout.spark.lowering import Building, lowers
from waterspout.spark.native import native_columns
from waterspout.spark.spreading import everywhere, never_empty, repartitioned
from waterspout.spark.tasks import AggregateTask, IsolatedTask, QueryTask, ReduceTask
from waterspout.state.head import Claim
from waterspout.trident.isolation.letters import ASIDE
from waterspout.trident.isolation.running import isolated_steps
from waterspout.trident.operations.adapters import SqlExpression
from waterspout.trident.operations.functions import Split
from waterspout.trident.plan.exchange import Deal
from waterspout.trident.plan.nodes import (
    Aggregate,
    Each,
    Isolated,
    Join,
    Keep,
    Mapped,
    Merge,
    MultiReduce,
    Project,
    Query,
    Repartition,
    Scope,
    SortedOut,
    Transform,
)
from waterspout.trident.runtime.aggregate import aggregate_step
from waterspout.trident.runtime.joins import reduce_step
from waterspout.trident.runtime.states import QueryStep

__all__ = ["asked_by_tasks"]


@lowers(Each, Mapped)
def _native(node: Each | Mapped, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    (parent,) = parents
    beside = () if isinstance(node, Each) else node.beside
    rest = ["*"] if isinstance(node, Each) else []
    out = node.out if isinstance(node, Each) else node.schema.without(beside)
    if isinstance(node.function, Split):
        pattern, name = re.escape(node.function.separator), out.names[0]
        words = F.explode(F.split(F.col(node.fields[0]), pattern, -1)).alias(name)
        frame = parent.select(*rest, words, *beside).where(F.col(name) != "")
    else:
        made = [_column(c).alias(n) for c, n in zip(node.operations, out.names, strict=True)]
        frame = parent.select(*rest, *made, *beside)
    if node not in building.casts:
        found = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
        building.casts[node] = tuple(n for n, kind in out if found[n] != kind)
    for name in building.casts[node]:
        frame = frame.withColumn(name, F.col(name).cast(str(out.type_of(name))))
    return frame


@lowers(Keep)
def _kept(node: Keep, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    predicate = _column(node.predicate)
    if building.plan.gives_everywhere(node):
        # If Spark found out that nothing comes through it would run no task, and each partition
        # is to give something.
        predicate = predicate | (F.spark_partition_id() < 0)
    return parents[0].where(predicate)


@lowers(Project)
def _projected(node: Project, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    return parents[0].select(*building.plan.kept[node].names)


@lowers(Transform)
def _transformed(node: Transform, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    frame = node.function(parents[0])
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


@lowers(Repartition)
def _dealt(node: Repartition, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    if building.exchange is None:
        return parents[0]
    return repartitioned(
        node,
        parents[0],
        building.exchange,
        building.setting(node),
        building.spark,
        every=building.plan.gives_everywhere(node),
    )


@lowers(Aggregate)
def _aggregated(node: Aggregate, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    (parent,), exchange = parents, building.exchange
    if node.is_native:
        grouped = parent.groupBy(*node.group) if node.group is not None else parent
        frame = grouped.agg(*native_columns(node))
        if exchange is None or exchange.deal is not Deal.BY_STATE:
            return frame
        # Spark finds that its own shuffle has done this already: there is only one.
        return frame.repartition(exchange.partitions or 1, *exchange.fields)
    rows = parent.select(*(node.inputs or parent.columns[:1]))
    step, setting, ddl = aggregate_step(node), building.setting(node), node.schema.ddl()
    whole = AggregateTask(setting, step, partial=False, combine=False)
    if node.scope is not Scope.BATCH:
        if setting.partitions == 1 and node.group is None:
            rows = never_empty(rows, building.spark)
        return rows.mapInArrow(whole, ddl)
    alone = replace(setting, partitions=1)
    if exchange is None:
        rows = never_empty(rows, building.spark) if node.group is None else rows.coalesce(1)
        return rows.mapInArrow(replace(whole, setting=alone), ddl)
    if step.partial is not None:
        here = building.setting(node.parents[0])
        partial = AggregateTask(here, step, partial=True, combine=False)
        rows = rows.mapInArrow(partial, step.partial.ddl())
        whole = AggregateTask(setting, step, partial=False, combine=True)
    if node.group is not None:
        number = () if exchange.partitions is None else (exchange.partitions,)
        return rows.repartition(*number, *exchange.fields).mapInArrow(whole, ddl)
    together = never_empty(rows, building.spark, shuffle=True)
    return together.mapInArrow(replace(whole, setting=alone), ddl)


@lowers(Isolated)
def _isolated(node: Isolated, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    rows, requests = parents
    if requests is not building.no_requests:
        empty = [F.lit(None).cast(f.dataType).alias(f.name) for f in rows.schema.fields]
        rows = rows.withColumn(ASIDE, F.lit(None).cast("string"))
        rows = rows.unionByName(requests.select(*empty, ASIDE))
        width = building.plan.width_of(node)
        rows = rows if width is None else rows.coalesce(width)
    task = IsolatedTask(building.setting(node), isolated_steps(node))
    return rows.mapInArrow(task, node.schema.ddl())


@lowers(SortedOut)
def _sorted_out(node: SortedOut, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    chosen = F.col(ASIDE).isNotNull() if node.aside else F.col(ASIDE).isNull()
    return parents[0].where(chosen).select(*node.schema.names)


@lowers(Merge)
def _merged(node: Merge, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    pairs = list(zip(node.parents, parents, strict=True))
    there = [pair for pair in pairs if pair[1] is not building.no_requests] or pairs[:1]
    return merged(replace(node, parents=tuple(p for p, _ in there)), [f for _, f in there])


@lowers(Join)
def _joined(node: Join, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    return joined(node, parents)


@lowers(MultiReduce)
def _reduced(node: MultiReduce, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    rows, exchange = packed(node, parents), building.exchange
    assert exchange is not None
    if exchange.deal is Deal.BY_FIELDS:
        keys = [f"_g{i}" for i in range(len(exchange.fields))]
        number = () if exchange.partitions is None else (exchange.partitions,)
        rows = rows.repartition(*number, *keys)
    elif exchange.deal is Deal.IN_ONE_TASK:
        rows = never_empty(rows, building.spark)
    else:
        rows = everywhere(rows, exchange.partitions or 1, building.spark)
    task = ReduceTask(building.setting(node), reduce_step(node))
    return rows.mapInArrow(task, node.schema.ddl())


@lowers(Query)
def _asked(node: Query, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    return asked_by_tasks(node, parents[0], building, None)


def asked_by_tasks(
    node: Query, parent: DataFrame, building: Building, claim: Claim | None
) -> DataFrame:
    """Return a parent's rows with a state's answers, asked by tasks.

    With a claim, the state is seen as that batch finds it.
    """
    step = QueryStep.of(node, building.plan.states[node.state])
    task = QueryTask(building.setting(node), step, claim)
    return parent.mapInArrow(task, node.schema.ddl())


def _column(operation: Any) -> Column:
    return F.expr(operation.text) if isinstance(operation, SqlExpression) else operation
