"""The in-process engine: the same loop, coordinator, operations and states, without a JVM.

Nothing runs by itself. Phases are generators that stop between any two steps that a crash or
another batch could come between, and whoever drives the engine chooses which goes on. That
makes it deterministic: for unit tests of topologies, and for simulation of failures.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from waterspout import faults
from waterspout.arrow import arrow_schema
from waterspout.config import Config
from waterspout.coordination.engine import (
    CommitOrder,
    Committed,
    Processed,
)
from waterspout.errors import TopologyError
from waterspout.serde import encode_key, encode_value
from waterspout.spouts.reads import POSITION
from waterspout.state.base import State
from waterspout.state.head import Writer
from waterspout.testing.stepping import SteppedEngine, Steps
from waterspout.testing.tables import read_table
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.ledger import Metadata
from waterspout.trident.isolation.letters import ASIDE
from waterspout.trident.isolation.running import isolated_steps, run_isolated
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.plan.nodes import (
    Aggregate,
    Isolated,
    Join,
    Merge,
    MultiReduce,
    NewValues,
    Node,
    Query,
    Repartition,
    Route,
    SortedOut,
    Update,
)
from waterspout.trident.plan.plan import Phase, Plan
from waterspout.trident.runtime.aggregate import aggregate_step, run_aggregate
from waterspout.trident.runtime.routing import CustomRoute
from waterspout.trident.runtime.rows import as_tuples, row_step, run_steps
from waterspout.trident.runtime.several import (
    join_tables,
    pack_tables,
    reduce_step,
    run_multi_reduce,
)
from waterspout.trident.runtime.states import (
    CommitTicket,
    QueryStep,
    UpdateStep,
    open_state,
    run_query,
    run_update,
)

__all__ = ["InProcessEngine", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """Raised at a kill point in place of SIGKILL: nobody may catch it but the simulation."""


@dataclass(slots=True)
class _Work:
    results: dict[Node, pa.Table] = field(default_factory=dict)


class InProcessEngine(SteppedEngine):
    """Runs a plan's phases step by step, when told to."""

    def __init__(self, plan: Plan, conf: Config) -> None:
        super().__init__()
        self._plan = plan
        self._conf = conf
        self._writer: Writer | None = None
        self._work: dict[TransactionAttempt, _Work] = {}
        self._one = OperationContext(0, 1)

    def enroll(self, writer: Writer) -> None:
        """Write to the states as this writer."""
        self._writer = writer

    def start_processing(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        work = self._work[attempt] = _Work()
        self.start(attempt, self._process(attempt, metadata, work))

    def start_commit(self, order: CommitOrder) -> None:
        work = self._work[order.attempt]
        self.start(order.attempt, self._commit(order, work))

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._work.pop(attempt, None)
        super().cancel(attempt)

    def release(self, attempt: TransactionAttempt) -> None:
        self._work.pop(attempt)

    # --- phases ------------------------------------------------------------------------------

    def _process(self, attempt: TransactionAttempt, metadata: Metadata, work: _Work) -> Steps:
        yield
        for node in self._plan.nodes:
            if self._plan.phases[node] is not Phase.PROCESSING:
                continue
            faults.point("processing", txid=attempt.txid, node=node.number)
            if node in self._plan.sources.values():
                spout_id = getattr(node, "spout_id", "")
                read = self._plan.sources[spout_id].spout.read(metadata[spout_id])
                tasks = self._plan.hints.get(node.number)
                place = POSITION in node.schema.names and POSITION not in read.schema.names
                work.results[node] = read_table(
                    read, self._conf, attempt, tasks=tasks, with_position=place
                )
            else:
                work.results[node] = self._derive(node, work.results, attempt.txid, None)
        yield
        return Processed(attempt)

    def _commit(self, order: CommitOrder, work: _Work) -> Steps:
        ticket = CommitTicket(order.attempt, order.resolved, self._writer, order.batch_time)
        yield
        order.claim()
        yield
        for node in self._plan.commit_order:
            if isinstance(node, Update):
                made: list[pa.Table] = []
                for new in self._update(node, work.results[node.parents[0]], ticket):
                    made += [] if new is None else [new]
                    yield
                nothing = arrow_schema(node.schema).empty_table()
                work.results[node] = pa.concat_tables(made) if made else nothing
            else:
                work.results[node] = self._derive(node, work.results, order.attempt.txid, ticket)
        return Committed(order.attempt)

    def _update(
        self, node: Update, table: pa.Table, ticket: CommitTicket
    ) -> Iterator[pa.Table | None]:
        spec = self._plan.states[node.state]
        step = UpdateStep.of(node, spec, want_new=bool(self._plan.children[node]))
        for part, rows in _by_partition(node, table, spec.partitions):
            state = open_state(spec, self._conf, part, ticket.writer)
            try:
                yield run_update(step, state, rows, ticket, self._conf, part)
            finally:
                state.close()

    def _derive(
        self, node: Node, made: dict[Node, pa.Table], txid: int, ticket: CommitTicket | None
    ) -> pa.Table:
        table = made[node.parents[0]]
        match node:
            case NewValues():
                return table
            case Query():
                return self._query(node, table, ticket)
            case Repartition():
                return self._repartitioned(node, table)
            case Isolated():
                return self._isolated(node, made)
            case SortedOut(aside=aside):
                beside = pc.is_valid(table.column(ASIDE))
                chosen = table.filter(beside if aside else pc.invert(beside))
                return chosen.select(list(node.schema.names))
            case Merge():
                names = list(node.schema.names)
                return pa.concat_tables([made[p].rename_columns(names) for p in node.parents])
            case Join():
                return join_tables(node, [made[parent] for parent in node.parents])
            case MultiReduce():
                packed = pack_tables(node, [made[parent] for parent in node.parents])
                out = run_multi_reduce(reduce_step(node), packed, self._conf, self._one)
                return pa.Table.from_batches(list(out), schema=arrow_schema(node.schema))
            case Aggregate() if any(is_expression(part.aggregator) for part in node.parts):
                raise TopologyError(f"{node.title} is a Spark expression; run it on Spark")
        batches = table.combine_chunks().to_batches()
        if isinstance(node, Aggregate):
            step = aggregate_step(node)
            out = run_aggregate(step, batches, self._conf, self._one, txid)
            return pa.Table.from_batches(list(out), schema=arrow_schema(node.schema))
        row = row_step(node)
        if row is None or is_expression(row.operation):
            raise TopologyError(f"{node.title} is a Spark expression; run it on Spark")
        rows = run_steps([row], batches, self._conf, self._one)
        return pa.Table.from_batches(list(rows), schema=arrow_schema(node.schema))

    def _isolated(self, node: Isolated, made: dict[Node, pa.Table]) -> pa.Table:
        rows, requests = (made[parent] for parent in node.parents)
        both = pa.concat_tables([rows, requests], promote_options="default")
        out = run_isolated(
            isolated_steps(node), both.combine_chunks().to_batches(), self._conf, self._one
        )
        return pa.Table.from_batches(list(out), schema=arrow_schema(node.schema))

    def _repartitioned(self, node: Repartition, table: pa.Table) -> pa.Table:
        """Return the same rows; all partitions of a stream are one here."""
        width = self._plan.width_of(node) or 1
        if node.route is Route.BROADCAST:
            return pa.concat_tables([table] * width)
        if node.route is Route.CUSTOM:
            route = CustomRoute(node.grouping, width, node.title)
            dealt = [route.dealt(batch, 0) for batch in table.combine_chunks().to_batches()]
            names = list(node.schema.names)
            return pa.Table.from_batches(
                [batch.select(names) for batch in dealt], schema=arrow_schema(node.schema)
            )
        return table

    def _query(self, node: Query, table: pa.Table, ticket: CommitTicket | None) -> pa.Table:
        step = QueryStep.of(node, self._plan.states[node.state])
        ticket = None if step.spec.static else ticket  # it has batches of its own
        state: State = open_state(step.spec, self._conf, 0, None)
        try:
            answered = [
                run_query(step, state, batch, ticket, self._conf, 0)
                for batch in table.combine_chunks().to_batches()
            ]
        finally:
            state.close()
        return pa.Table.from_batches(answered, schema=arrow_schema(node.schema))


def _by_partition(node: Update, table: pa.Table, partitions: int) -> Iterator[tuple[int, pa.Table]]:
    keys = getattr(node.updating, "keys", None)
    fields = getattr(node.updating, "fields", ()) if keys is None else keys
    # What is no key may be a struct, which has a text as a value only.
    text = encode_value if keys is None else encode_key
    owners = [
        zlib.crc32(text(list(row)).encode()) % partitions if fields else 0
        for row in as_tuples(table, fields)
    ]
    for part in range(partitions):
        rows = [row for row, owner in enumerate(owners) if owner == part]
        if rows or getattr(node.updating, "every_batch", False):
            yield part, table.take(pa.array(rows, pa.int64()))
