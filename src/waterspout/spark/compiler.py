"""From the steps of a schedule to DataFrames. Nothing runs here; lowerings do the work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.spark.lowerings import Building, lowers
from waterspout.spark.reads import from_table, read_frame
from waterspout.spark.session import SparkRuntime
from waterspout.spark.spreading import dealt, everywhere, spread, with_unreal
from waterspout.spark.tasks import PartitionTask
from waterspout.spouts._reads import POSITION, Read
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.isolation.letters import ASIDE
from waterspout.trident.plan.exchange import Exchange
from waterspout.trident.plan.nodes import Node, Query, Sifted, Update, UpdateWith
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.schedule import Derive, ReadSource
from waterspout.trident.runtime.group_counts import counted_schema, run_counted
from waterspout.trident.runtime.routing import PARTITION
from waterspout.trident.runtime.rows import row_step, run_steps

__all__ = ["Compiler"]


class Compiler:
    """Builds the DataFrames of one plan. Holds no state of any batch."""

    def __init__(
        self,
        runtime: SparkRuntime,
        plan: Plan,
        conf: Config,
        args: tuple[str, ...] = (),
        patience_s: float | None = None,
    ) -> None:
        self._requests = args, patience_s
        self._runtime = runtime
        self._spark = runtime.spark
        self._plan = plan
        self._conf = conf
        self._known: dict[tuple[str, Node], Any] = {}

    def read(self, step: ReadSource, read: Read, attempt: TransactionAttempt) -> DataFrame:
        """Return the rows that a spout has described, with their positions if these are wanted."""
        if step.is_empty:
            return self.no_requests
        node = step.node
        wanted = POSITION in node.schema.names and POSITION not in read.schema.names
        tasks = self._plan.width_of(node)
        sifted = [child for child in self._plan.children[node] if isinstance(child, Sifted)]
        frame = read_frame(
            self._runtime,
            read,
            self._conf,
            attempt=attempt,
            tasks=tasks,
            with_position=wanted,
            address=sifted[0].address if sifted else "",
            wanted=self._plan.kept[node].names,
        )
        return self.behind(frame, step.exchanges)

    def from_table(self, table: pa.Table) -> DataFrame:
        """Return a table of the driver's as a DataFrame."""
        return from_table(self._spark, table)

    def derived(
        self, step: Derive, made: Mapping[Node, DataFrame], attempt: TransactionAttempt
    ) -> DataFrame:
        """Return the rows of a step's node, from the frames of its parents."""
        node = step.node
        if step.chain:
            before = step.chain[0].parents[0]
            parent = self._only_read(before, made[before])
            steps = [row_step(one, self._plan.kept[one]) for one in step.chain]
            run: Any = partial(run_steps, [one for one in steps if one is not None])
            out = self._plan.kept[node]
            if step.counts is not None:
                keys = step.counts.group or ()
                run, out = partial(run_counted, run, keys), counted_schema(node.schema, keys)
            task = PartitionTask(self.building(attempt).setting(node), run, kill_point=True)
            return parent.mapInArrow(task, out.ddl())
        parents = [made[parent] for parent in node.parents]
        building = replace(self.building(attempt, step.exchanges), adds_up=step.adds_up)
        return self.behind(lowers.of(node)(node, parents, building), step.exchanges)

    def building(
        self, attempt: TransactionAttempt, exchanges: tuple[Exchange, ...] = ()
    ) -> Building:
        """Return what lowerings may know."""
        has_letters = any(source.hidden for source in self._plan.sources.values())
        nothing = self.no_requests if has_letters else None
        return Building(
            self._spark,
            self._plan,
            self._conf,
            attempt,
            exchanges,
            nothing,
            self._known,
            *self._requests,
        )

    def behind(self, frame: DataFrame, exchanges: tuple[Exchange, ...]) -> DataFrame:
        """Bring rows onto the partitions that a node's group is to have."""
        for exchange in exchanges:
            if not exchange.behind:
                continue
            width = exchange.partitions or 1
            if width > 1 and self._plan.gives_everywhere(exchange.node):
                frame = everywhere(frame, width, self._spark)
            else:
                frame = spread(frame, width)
        return frame

    def numbered(self, frame: DataFrame) -> DataFrame:
        """Note which partition each row is on, before rows come to the driver."""
        return frame.withColumn(PARTITION, F.spark_partition_id())

    def back(self, node: Query, table: pa.Table, width: int) -> DataFrame:
        """Bring answered rows back to the partitions that they were on."""
        if PARTITION not in table.column_names:  # no rows
            table = table.append_column(PARTITION, pa.nulls(table.num_rows, pa.int32()))
        frame = self.from_table(table).select(*node.schema.names, PARTITION)
        return dealt(frame, width, self._spark, every=self._plan.gives_everywhere(node))

    def with_partition(self, node: Update, frame: DataFrame) -> DataFrame:
        """Add the column that says which partition of the state each row goes to."""
        numbered = self._with_partition(node, frame)
        if node.every_batch:
            return with_unreal(numbered, self._spark, self._plan.states[node.state].partitions)
        return numbered

    def _with_partition(self, node: Update, frame: DataFrame) -> DataFrame:
        spec = self._plan.states[node.state]
        updating = node.updating
        if spec.partitions == 1:
            return frame.withColumn(PARTITION, F.lit(0))
        if node.keys is not None:
            by = F.hash(*node.keys) if node.keys else F.lit(0)
        elif self._plan.width_of(node) == spec.partitions and not spec.factory.pins_batches:
            by = F.spark_partition_id()  # the stream's partitions are those of the state
        else:
            assert isinstance(updating, UpdateWith)
            # All will do, since any row may go anywhere; but maps have no hash. To a state that
            # pins its batches the same rows go in each attempt, wherever they lie.
            types = node.parents[0].schema
            by = F.hash(*(f for f in updating.fields if not _has_map(types.type_of(f))))
        return frame.withColumn(PARTITION, F.pmod(by, F.lit(spec.partitions)))

    def _only_read(self, node: Node, frame: DataFrame) -> DataFrame:
        """Leave out fields that nobody reads: Spark does not see which of them Python wants."""
        kept = self._plan.kept[node].names
        return frame if len(kept) == len(node.schema) else frame.select(*kept)

    @cached_property
    def no_requests(self) -> DataFrame:
        """Stands for all batches in which nobody asks for a dead letter."""
        return self.from_table(arrow_schema(Schema(((ASIDE, "string"),))).empty_table())


def _has_map(kind: str | None) -> bool:
    return kind is not None and re.search(r"\b(map|variant)\b", kind, re.I) is not None
