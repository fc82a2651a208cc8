"""What each kind of node does in process, on Arrow tables. A stream has one partition here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._serde import encode_key
from waterspout.errors import TopologyError
from waterspout.spouts._reads import POSITION
from waterspout.state._head import Claim
from waterspout.testing._tables import rows_of
from waterspout.trident.isolation.letters import ASIDE, LetterRequest, Seen, read_aside, to_aside
from waterspout.trident.isolation.running import isolated_steps, run_isolated
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.contracts import OperationContext
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
    Route,
    Sessions,
    Sifted,
    SortedOut,
    StaticTable,
    Transform,
)
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.aggregate import run_aggregate
from waterspout.trident.runtime.joins import join_tables, pack_tables, run_multi_reduce
from waterspout.trident.runtime.routing import CustomRoute
from waterspout.trident.runtime.rows import as_tuples, row_step, run_steps
from waterspout.trident.runtime.states import open_state, run_query
from waterspout.trident.windowing.event_updater import as_numbers

__all__ = ["LocalBuilding", "LocalLowering", "local_lowering_of", "lowers_locally"]


@dataclass(frozen=True)
class LocalBuilding:
    """What a lowering may know: the plan, and the batch, with a claim if it commits."""

    plan: Plan
    conf: Config
    txid: int
    claim: Claim | None = None

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
    made = run_steps([step], _batches(parents[0]), building.conf, building.context)
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
        dealt = [route.dealt(batch, 0).select(names) for batch in _batches(table)]
        return pa.Table.from_batches(dealt, schema=arrow_schema(node.schema))
    return table


@lowers_locally(Aggregate)
def _aggregated(node: Aggregate, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    made = run_aggregate(node, _batches(parents[0]), building.conf, building.context, building.txid)
    return pa.Table.from_batches(list(made), schema=arrow_schema(node.schema))


@lowers_locally(Isolated)
def _isolated(node: Isolated, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    both = pa.concat_tables(parents, promote_options="default")
    made = run_isolated(isolated_steps(node), _batches(both), building.conf, building.context)
    return pa.Table.from_batches(list(made), schema=arrow_schema(node.schema))


@lowers_locally(Sifted)
def _sifted(node: Sifted, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    rows, requests = parents
    made = []
    for text in requests.column(ASIDE).to_pylist():
        asked = read_aside(text)
        if not isinstance(asked, LetterRequest) or asked.action != "replay":
            continue
        if asked.letter.failed_in == node.address:
            made += _read_again(node, asked.letter)
    return pa.concat_tables([rows, pa.Table.from_pylist(made, rows.schema)])


def _read_again(node: Sifted, letter: DeadLetter) -> list[dict[str, Any]]:
    assert letter.values is not None
    found, bad = rows_of(node.reader, letter.values[0])
    if not bad:
        names = node.reader.schema.names
        return [dict(zip(names, row, strict=True)) | {POSITION: letter.position} for row in found]
    now = time.time()
    again = replace(letter, id="", failures=letter.failures + 1, last_failed=now, asked=None)
    return [{ASIDE: to_aside(replace(again, txid=None, attempt=None))}]


@lowers_locally(SortedOut)
def _sorted_out(node: SortedOut, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    (table,) = parents
    beside = pc.is_valid(table.column(ASIDE))
    chosen = table.filter(beside if node.aside else pc.invert(beside))
    made = chosen.select(list(node.schema.names))
    before = node.parents[0]
    if node.aside and isinstance(before, Sifted):
        seen = to_aside(Seen({before.address: table.num_rows}))
        made = pa.concat_tables([made, pa.table({ASIDE: [seen]})])
    return made


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


@lowers_locally(Sessions)
def _sessions(node: Sessions, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    (rows,) = parents
    moments = as_numbers(rows.column(node.event_time)).to_pylist()
    keys = [encode_key(row.values) for row in as_tuples(rows, node.keys)]
    starts: list[int | None] = [None] * len(moments)
    last: dict[str, tuple[int, int]] = {}
    for row in sorted(
        (i for i, at in enumerate(moments) if at is not None), key=moments.__getitem__
    ):
        start, before = last.get(keys[row], (moments[row], moments[row]))
        if moments[row] - before >= node.gap:
            start = moments[row]
        starts[row], last[keys[row]] = start, (start, moments[row])
    return rows.append_column(node.schema.names[-1], pa.array(starts, pa.int64()))


@lowers_locally(LateRows)
def _late(node: LateRows, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    rows, spans = parents
    late: dict[str, list[tuple[Any, Any]]] = {}
    for span in as_tuples(spans, spans.column_names):
        *key, start, end = span.values
        late.setdefault(encode_key(key), []).append((start, end))
    moments = (row.values for row in as_tuples(rows, (*node.keys, node.event_time)))
    chosen = [
        any(_is_within(moment, span) for span in late.get(encode_key(key), ()))
        for *key, moment in moments
    ]
    return rows.filter(pa.array(chosen, pa.bool_()))


def _is_within(moment: Any, span: tuple[Any, Any]) -> bool:
    start, end = span
    if moment is None or start is None:
        return moment is None and start is None
    return bool(start <= moment < end)


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
    with closing(open_state(spec, building.conf, 0, None)) as state:
        answered = [
            run_query(node, spec, state, batch, claim, building.conf, 0)
            for batch in _batches(parents[0])
        ]
    return pa.Table.from_batches(answered, schema=arrow_schema(node.schema))


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return found
