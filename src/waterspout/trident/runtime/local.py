"""What each kind of node does in this process, on Arrow tables. A stream has one partition here.

The runner of DRPC requests in the driver and the in-process engine of the test kit share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout.errors import TopologyError
from waterspout.state._head import Claim
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.plan.lowering import Lowerings
from waterspout.trident.plan.nodes import (
    Aggregate,
    Each,
    Join,
    Keep,
    Mapped,
    Merge,
    MultiReduce,
    Node,
    Project,
    Query,
    Repartition,
    Route,
    StaticTable,
    Transform,
)
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.aggregate import run_aggregate
from waterspout.trident.runtime.joins import join_tables, pack_tables, run_multi_reduce
from waterspout.trident.runtime.routing import CustomRoute
from waterspout.trident.runtime.rows import row_step, run_steps
from waterspout.trident.runtime.states import open_state, run_query

__all__ = ["LocalBuilding", "LocalLowering", "batches_of", "local_lowering_of", "lowers_locally"]


@dataclass(frozen=True)
class LocalBuilding:
    """What a lowering may know: the plan, and the batch, with a claim if it commits."""

    plan: Plan
    conf: Config
    txid: int
    claim: Claim | None = None
    args: tuple[str, ...] = ()
    """The requests, on a DRPC stream; their txid is 0."""

    pause: Callable[[str], None] | None = None
    """How a reader waits for a batch that is being committed; None: it does not."""

    @property
    def context(self) -> OperationContext:
        """The one partition that there is."""
        return OperationContext(0, 1)


LocalLowering = Callable[[Any, Sequence[pa.Table], LocalBuilding], pa.Table]
"""From a node and the tables of its parents to the node's own table."""

lowers_locally: Lowerings[LocalLowering] = Lowerings("in process")
"""Registers what nodes of some kinds do in process."""


def local_lowering_of(node: Node) -> LocalLowering:
    """Return the function that makes a node's table."""
    if isinstance(node, Transform) or any(map(is_expression, node.operations)):
        raise TopologyError(f"{node.title} is a Spark expression; run it on Spark")
    return lowers_locally.of(node)


@lowers_locally(Each, Mapped, Keep, Project)
def _rows(node: Node, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    step = row_step(node)
    assert step is not None
    made = run_steps([step], batches_of(parents[0]), building.conf, building.context)
    return pa.Table.from_batches(list(made), schema=arrow_schema(node.schema))


@lowers_locally(Repartition)
def _repartitioned(
    node: Repartition, parents: Sequence[pa.Table], building: LocalBuilding
) -> pa.Table:
    (table,), width = parents, building.plan.width_of(node) or 1
    if node.route is Route.BROADCAST:
        return pa.concat_tables([table] * width)
    if node.route is Route.CUSTOM:
        route = CustomRoute(node.grouping, width, node.title)
        names = list(node.schema.names)
        dealt = [route.dealt(batch, 0).select(names) for batch in batches_of(table)]
        return pa.Table.from_batches(dealt, schema=arrow_schema(node.schema))
    return table


@lowers_locally(Aggregate)
def _aggregated(node: Aggregate, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    made = run_aggregate(
        node, batches_of(parents[0]), building.conf, building.context, building.txid
    )
    return pa.Table.from_batches(list(made), schema=arrow_schema(node.schema))


@lowers_locally(Merge)
def _merged(node: Merge, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    names = list(node.schema.names)
    return pa.concat_tables([table.rename_columns(names) for table in parents])


@lowers_locally(StaticTable)
def _static(node: StaticTable, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    table = node.table if isinstance(node.table, pa.Table) else node.table.toArrow()
    return table.select(list(node.schema.names)).cast(arrow_schema(node.schema))


@lowers_locally(Join)
def _joined(node: Join, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    return join_tables(node, parents)


@lowers_locally(MultiReduce)
def _reduced(node: MultiReduce, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    packed = pack_tables(node, parents)
    made = run_multi_reduce(node, packed, building.conf, building.context)
    return pa.Table.from_batches(list(made), schema=arrow_schema(node.schema))


@lowers_locally(Query)
def _asked(node: Query, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    spec = building.plan.states[node.state]
    # A state that is only read has batches of its own, which ours say nothing about.
    claim = None if spec.static else building.claim
    pause = None if spec.static else building.pause
    with closing(open_state(spec, building.conf, 0, None, pause)) as state:
        answered = [
            run_query(node, spec, state, batch, claim, building.conf, 0)
            for batch in batches_of(parents[0])
        ]
    return pa.Table.from_batches(answered, schema=arrow_schema(node.schema))


def batches_of(table: pa.Table) -> list[pa.RecordBatch]:
    """Return a table as one batch; none if it has no rows."""
    found: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return found
