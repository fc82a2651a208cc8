"""The in-process engine: the same loop, coordinator, operations and states, without a JVM.

Nothing runs by itself. Phases are generators that stop between any two steps that a crash or
another batch could come between, and whoever drives the engine chooses which goes on. That
makes it deterministic: for unit tests of topologies, and for simulation of failures.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from waterspout import faults
from waterspout.arrow import arrow_schema
from waterspout.config import Config
from waterspout.coordination.engine import (
    CommitOrder,
    Committed,
    Processed,
)
from waterspout.errors import TopologyError
from waterspout.serde import encode_key
from waterspout.state.base import State
from waterspout.state.head import Writer
from waterspout.testing.stepping import SteppedEngine, Steps
from waterspout.testing.tables import read_table
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.ledger import Metadata
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.plan.nodes import Aggregate, NewValues, Node, Query, Update
from waterspout.trident.plan.plan import Phase, Plan
from waterspout.trident.runtime.aggregate import aggregate_step, run_aggregate
from waterspout.trident.runtime.rows import as_tuples, row_step, run_steps
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
                work.results[node] = read_table(read)
            else:
                work.results[node] = self._derive(node, work.results, attempt.txid, None)
        yield
        return Processed(attempt)

    def _commit(self, order: CommitOrder, work: _Work) -> Steps:
        ticket = CommitTicket(order.attempt, order.resolved, self._writer)
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
        if isinstance(node, NewValues):
            return table
        if isinstance(node, Query):
            return self._query(node, table, ticket)
        batches = table.combine_chunks().to_batches()
        if isinstance(node, Aggregate):
            step = aggregate_step(node)
            out = run_aggregate(step, batches, self._conf, self._one, txid)
            return pa.Table.from_batches(list(out), schema=arrow_schema(node.schema))
        row = row_step(node)
        if row is None or not _runs_in_python(row.operation):
            raise TopologyError(f"{node.title} is a Spark expression; run it on Spark")
        rows = run_steps([row], batches, self._conf, self._one)
        return pa.Table.from_batches(list(rows), schema=arrow_schema(node.schema))

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


def _runs_in_python(operation: Any) -> bool:
    return operation is None or not hasattr(operation, "text")


def _by_partition(node: Update, table: pa.Table, partitions: int) -> Iterator[tuple[int, pa.Table]]:
    keys = getattr(node.updating, "keys", getattr(node.updating, "fields", ()))
    owners = [
        zlib.crc32(encode_key(key.values).encode()) % partitions if keys else 0
        for key in as_tuples(table, keys)
    ]
    for part in range(partitions):
        rows = [row for row, owner in enumerate(owners) if owner == part]
        if rows:
            yield part, table.take(rows)
