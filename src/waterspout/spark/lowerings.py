"""What each kind of node becomes on Spark: DataFrame operations, or Python over Arrow batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from waterspout._arrow import arrow_type
from waterspout._config import Config
from waterspout._fitting import widens
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.spark.kafka_reads import read_values_again
from waterspout.spark.native import native_columns, summed_column
from waterspout.spark.reads import from_table
from waterspout.spark.records import read_again
from waterspout.spark.session import is_connect
from waterspout.spark.spreading import everywhere, never_empty, repartitioned
from waterspout.spark.tasks import PartitionTask, TaskSetting, ask
from waterspout.spouts._reads import KafkaRead
from waterspout.state._head import Claim
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.isolation.letters import ASIDE, LetterRequest, read_aside
from waterspout.trident.isolation.running import isolated_steps, run_isolated
from waterspout.trident.operations.adapters import SqlExpression
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.functions import PaneStart, Split
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.lowering import Lowerings
from waterspout.trident.plan.nodes import (
    Aggregate,
    Each,
    Isolated,
    Join,
    Keep,
    LateRows,
    Mapped,
    Merge,
    MultiReduce,
    Node,
    Project,
    Query,
    Repartition,
    Scope,
    Sessions,
    Sifted,
    SortedOut,
    StaticTable,
    Transform,
)
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.aggregate import combine_partials, partial_schema, run_aggregate
from waterspout.trident.runtime.group_counts import COUNTED
from waterspout.trident.runtime.joins import STREAM, packed_name, packed_schema, run_multi_reduce

__all__ = ["Building", "Lowering", "asked_by_tasks", "lowers"]


T = TypeVar("T")

_JOINS = {
    (True, True): "inner",
    (True, False): "left",
    (False, True): "right",
    (False, False): "full",
}


@dataclass(frozen=True)
class Building:
    """What a lowering may know: the plan, the attempt, and how the node's rows are to move."""

    spark: SparkSession
    plan: Plan
    conf: Config
    attempt: TransactionAttempt
    exchanges: tuple[Exchange, ...] = ()
    no_requests: DataFrame | None = None
    """Stands for the requests of all batches in which nobody asks for a dead letter."""

    known: dict[tuple[str, Node], Any] = field(default_factory=dict)
    """What is the same in every batch: see `once`."""

    args: tuple[str, ...] = ()
    """The requests, on a DRPC stream."""

    patience_s: float | None = None
    """How long a reader waits for a batch that is being committed; None: it does not."""

    adds_up: bool = False
    """The groups of the count that is built come with their numbers: see `Derive`."""

    @property
    def exchange(self) -> Exchange | None:
        """How rows move on their way into the node; None: they stay where they are."""
        return next((one for one in self.exchanges if not one.behind), None)

    def once(self, what: str, node: Node, make: Callable[[], T]) -> T:
        """Return what is made of a node, made for the first batch.

        To make a column takes a call into the JVM for each part of it.
        """
        if (what, node) not in self.known:
            self.known[what, node] = make()
        found: T = self.known[what, node]
        return found

    def setting(self, node: Node | None = None) -> TaskSetting:
        """Return what tasks of a node must know."""
        width = None if node is None else self.plan.width_of(node)
        return TaskSetting.now(self.conf, self.attempt.txid, width)


Lowering = Callable[[Any, Sequence[DataFrame], Building], DataFrame]
"""From a node and the frames of its parents to the node's own frame."""

lowers: Lowerings[Lowering] = Lowerings("on Spark")
"""Registers what nodes of some kinds become on Spark."""


@lowers(Each, Mapped)
def _native(node: Each | Mapped, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    (parent,) = parents
    beside = () if isinstance(node, Each) else node.beside
    rest = ["*"] if isinstance(node, Each) else []
    out = node.out if isinstance(node, Each) else node.schema.without(beside)
    made = building.once("columns", node, lambda: _made(node, out))
    frame = parent.select(*rest, *made, *beside)
    if isinstance(node.operation, Split):
        frame = frame.where(building.once("word", node, lambda: F.col(out.names[0]) != ""))
    return _fitted(node, frame, out, building)


def _made(node: Each | Mapped, out: Schema) -> list[Column]:
    """Return the columns that a node adds."""
    if isinstance(node.operation, Split):
        pattern = re.escape(node.operation.separator)
        return [F.explode(F.split(F.col(node.fields[0]), pattern, -1)).alias(out.names[0])]
    if isinstance(node.operation, PaneStart):
        kind = str(node.parents[0].schema.type_of(node.fields[0]))
        return [_pane_start(node.operation, F.col(node.fields[0]), kind).alias(out.names[0])]
    return [_column(c).alias(n) for c, n in zip(node.operations, out.names, strict=True)]


@lowers(Keep)
def _kept(node: Keep, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    def predicate() -> Column:
        chosen = _column(node.operation)
        # If Spark found out that nothing comes through it would run no task, and each partition
        # is to give something.
        every = building.plan.gives_everywhere(node)
        return chosen | (F.spark_partition_id() < 0) if every else chosen

    return parents[0].where(building.once("columns", node, predicate))


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
    # Each time: what the function makes may depend on what it finds.
    widened = _widened(node, frame, node.schema)
    wanted = [
        F.col(name).cast(str(kind)).alias(name) if name in widened else F.col(name)
        for name, kind in node.schema
    ]
    return frame.select(*wanted)


def _fitted(node: Node, frame: DataFrame, out: Schema, building: Building) -> DataFrame:
    """Return a frame whose columns have the types that the stream says; looked at once."""
    casts = building.once("casts", node, partial(_widened, node, frame, out))
    for name in casts:
        frame = frame.withColumn(name, F.col(name).cast(str(out.type_of(name))))
    return frame


def _widened(node: Node, frame: DataFrame, out: Schema) -> tuple[str, ...]:
    """Return the columns that need another type; refuse one that could lose something by it."""
    found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    other = tuple(name for name, kind in out if found[name] != kind)
    for name in other:
        given, declared = found[name], str(out.type_of(name))
        if not _fits(given, declared):
            raise TopologyError(
                f"{node.title} gives {name} as {given}, but it is declared as {declared}, which "
                f'does not hold every {given}; write out="{name} {given}", or cast it yourself '
                f"where it is made"
            )
    return other


def _fits(given: str, declared: str) -> bool:
    try:
        return widens(arrow_type(given), arrow_type(declared))
    except TopologyError:  # a type that only Spark knows
        return False


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
        if building.adds_up:
            columns = building.once("sums", node, lambda: [summed_column(node, COUNTED)])
        else:
            columns = building.once("columns", node, lambda: native_columns(node))
        frame = grouped.agg(*columns)
        given = [f for one in node.aggregations if is_expression(one.aggregator) for f in one.out]
        frame = _fitted(node, frame, Schema(tuple(given)), building) if given else frame
        if exchange is None or exchange.deal is not Deal.BY_STATE:
            return frame
        # Spark finds that its own shuffle has done this already: there is only one.
        return frame.repartition(exchange.partitions or 1, *exchange.fields)
    rows = parent.select(*(node.inputs or parent.columns[:1]))
    alone, setting, ddl = node.alone(), building.setting(node), node.schema.ddl()
    run = partial(run_aggregate, alone, batch_id=setting.txid)
    whole = PartitionTask(setting, run, title=node.title)
    if node.scope is not Scope.BATCH:
        if setting.partitions == 1 and node.group is None:
            rows = never_empty(rows, building.spark)
        return rows.mapInArrow(whole, ddl)
    in_one = replace(setting, partitions=1)
    if exchange is None:
        rows = never_empty(rows, building.spark) if node.group is None else rows.coalesce(1)
        return rows.mapInArrow(replace(whole, setting=in_one), ddl)
    if node.combines:
        here = building.setting(node.parents[0])
        first = PartitionTask(here, partial(run, partial=True), title=node.title)
        rows = rows.mapInArrow(first, partial_schema(node).ddl())
        whole = PartitionTask(setting, partial(combine_partials, alone), title=node.title)
    if node.group is not None:
        number = () if exchange.partitions is None else (exchange.partitions,)
        return rows.repartition(*number, *exchange.fields).mapInArrow(whole, ddl)
    together = never_empty(rows, building.spark, shuffle=True)
    return together.mapInArrow(replace(whole, setting=in_one), ddl)


@lowers(Isolated)
def _isolated(node: Isolated, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    rows, requests = parents
    if requests is not building.no_requests:
        empty = [F.lit(None).cast(f.dataType).alias(f.name) for f in rows.schema.fields]
        rows = rows.withColumn(ASIDE, F.lit(None).cast("string"))
        rows = rows.unionByName(requests.select(*empty, ASIDE))
        width = building.plan.width_of(node)
        rows = rows if width is None else rows.coalesce(width)
    run = partial(run_isolated, isolated_steps(node))
    task = PartitionTask(building.setting(node), run, kill_point=True)
    return rows.mapInArrow(task, node.schema.ddl())


@lowers(Sifted)
def _sifted(node: Sifted, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    rows, requests = parents
    if requests is building.no_requests:
        return rows
    asked = [read_aside(row[0]) for row in requests.select(ASIDE).collect()]
    letters = [
        one.letter
        for one in asked
        if isinstance(one, LetterRequest)
        and one.action == "replay"
        and one.letter.failed_in == node.address
    ]
    if isinstance(node.reader, KafkaRead):
        return rows.union(read_values_again(building.spark, node.reader, node, letters, rows))
    return rows.union(read_again(building.spark, node, letters, rows))


@lowers(SortedOut)
def _sorted_out(node: SortedOut, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    (parent,), before = parents, node.parents[0]
    chosen = F.col(ASIDE).isNotNull() if node.aside else F.col(ASIDE).isNull()
    made = parent.where(chosen).select(*node.schema.names)
    if node.aside and isinstance(before, Sifted):
        # The rows are computed and kept: to count them is quick.
        rows = F.create_map(F.lit(before.address), F.count(F.lit(1)))
        seen = F.struct(F.struct(rows.alias("rows")).alias("seen"))
        made = made.union(parent.agg(F.to_json(seen).alias(ASIDE)))
    return made


@lowers(Merge)
def _merged(node: Merge, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    pairs = list(zip(node.parents, parents, strict=True))
    there = [pair for pair in pairs if pair[1] is not building.no_requests] or pairs[:1]
    names = node.schema.names
    sides = [frame.select(*parent.schema.names).toDF(*names) for parent, frame in there]
    return reduce(DataFrame.union, sides)


@lowers(StaticTable)
def _static(node: StaticTable, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    given = node.table
    if not isinstance(given, pa.Table):
        frame: DataFrame = given.select(*node.schema.names)
        return frame
    if is_connect(building.spark):  # the server may forget rows that it was sent
        return _sent(node, building.spark)
    return building.once("table", node, lambda: _sent(node, building.spark))


def _sent(node: StaticTable, spark: SparkSession) -> DataFrame:
    return from_table(spark, node.table).select(*node.schema.names)


@lowers(Join)
def _joined(node: Join, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    """Join frames one after the other; nulls are equal to each other, as in a grouping.

    Where a table is known to have no null there, plain equality gives the same rows. Spark then
    looks up the key itself, and not the pair of it and whether it is null.
    """
    made: DataFrame | None = None
    must = False
    for number, frame in enumerate(parents):
        side = _renamed(node, number, frame)
        if isinstance(node.parents[number], StaticTable):
            side = F.broadcast(side)
        wanted = not node.optional[number]
        if made is None:
            made, must = _as_left(node, side), wanted
            continue
        keys = range(len(node.keys[0]))
        same = reduce(Column.__and__, [_equal(node, number, i) for i in keys])
        made = made.join(side, same, _JOINS[must, wanted])
        if not must:
            # Where the left side is never missing its keys stay as they are: Spark then knows
            # that the rows lie right for the next join.
            for i in keys:
                made = made.withColumn(f"_k{i}", F.coalesce(F.col(f"_k{i}"), F.col(f"_r{i}")))
        made = made.drop(*(f"_r{i}" for i in keys))
        must = must or wanted
    assert made is not None
    first = node.once if node.preserve else len(node.keys[0])
    names = [f"_k{i}" for i in range(first)]
    for number, parent in enumerate(node.parents):
        for column, name in enumerate(parent.schema.names):
            if name not in node.keys[number][:first]:
                names.append(_own(number, column))
    pairs = zip(names, node.schema.names, strict=True)
    return made.select(*(F.col(made_name).alias(name) for made_name, name in pairs))


def _equal(node: Join, number: int, place: int) -> Column:
    ours, theirs = F.col(f"_k{place}"), F.col(f"_r{place}")
    parent = node.parents[number]
    is_plain = isinstance(parent, StaticTable) and node.keys[number][place] in parent.filled
    return ours == theirs if is_plain else ours.eqNullSafe(theirs)


@lowers(Sessions)
def _sessions(node: Sessions, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    (parent,) = parents
    kind = str(node.parents[0].schema.type_of(node.event_time))
    moment = _as_number(F.col(node.event_time), kind)
    in_order = Window.partitionBy(*node.keys).orderBy(F.col(node.event_time))
    before = F.lag(moment).over(in_order)
    begins = F.when(before.isNull() | (moment - before >= node.gap), moment)
    start = F.last(begins, ignorenulls=True).over(
        in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return parent.select("*", F.when(moment.isNotNull(), start).alias(node.schema.names[-1]))


@lowers(LateRows)
def _late(node: LateRows, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    rows, spans = parents
    names = [f"_l{i}" for i in range(len(spans.columns))]
    spans = F.broadcast(spans.toDF(*names))
    *keys, start, end = (F.col(name) for name in names)
    moment = F.col(node.event_time)
    within = (moment >= start) & (moment < end) | (moment.isNull() & start.isNull())
    same = [F.col(name).eqNullSafe(key) for name, key in zip(node.keys, keys, strict=True)]
    return rows.join(spans, reduce(Column.__and__, same, within), "left_semi")


@lowers(MultiReduce)
def _reduced(node: MultiReduce, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    rows, exchange = _packed(node, parents), building.exchange
    assert exchange is not None
    if exchange.deal is Deal.BY_FIELDS:
        keys = [f"_g{i}" for i in range(len(exchange.fields))]
        number = () if exchange.partitions is None else (exchange.partitions,)
        rows = rows.repartition(*number, *keys)
    elif exchange.deal is Deal.IN_ONE_TASK:
        rows = never_empty(rows, building.spark)
    else:
        rows = everywhere(rows, exchange.partitions or 1, building.spark)
    run = partial(run_multi_reduce, node.alone())
    task = PartitionTask(building.setting(node), run, title=node.title)
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
    spec = building.plan.states[node.state]
    waits = None if spec.static else building.patience_s
    run = partial(ask, node.alone(), spec, claim, patience_s=waits)
    task = PartitionTask(building.setting(node), run, title=node.title)
    return parent.mapInArrow(task, node.schema.ddl())


def _pane_start(operation: PaneStart, moment: Column, kind: str) -> Column:
    number = _as_number(moment, kind)
    return number - F.pmod(number, F.lit(operation.size).cast("bigint"))


def _as_number(moment: Column, kind: str) -> Column:
    return F.unix_micros(moment) if kind == "timestamp" else moment


def _column(operation: Any) -> Column:
    return F.expr(operation.text) if isinstance(operation, SqlExpression) else operation


def _packed(node: MultiReduce, frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames as rows with columns for each of them."""
    schema = packed_schema(node)
    sides = []
    for number, frame in enumerate(frames):
        sources = {STREAM: F.lit(number)}
        if node.groups is not None:
            sources |= {f"_g{i}": F.col(name) for i, name in enumerate(node.groups[number])}
        for i, name in enumerate(node.fields[number]):
            sources[packed_name(number, i)] = F.col(name)
        nothing = F.lit(None)
        sides.append(
            frame.select(
                *(sources.get(name, nothing).cast(str(kind)).alias(name) for name, kind in schema)
            )
        )
    return reduce(DataFrame.union, sides)


def _renamed(node: Join, number: int, frame: DataFrame) -> DataFrame:
    """Give keys and fields names that no other side has."""
    keys = [F.col(name).alias(f"_r{i}") for i, name in enumerate(node.keys[number])]
    names = node.parents[number].schema.names
    fields = [F.col(name).alias(_own(number, i)) for i, name in enumerate(names)]
    return frame.select(*keys, *fields)


def _as_left(node: Join, side: DataFrame) -> DataFrame:
    for i in range(len(node.keys[0])):
        side = side.withColumnRenamed(f"_r{i}", f"_k{i}")
    return side


def _own(number: int, column: int) -> str:
    return f"_j{number}_{column}"
