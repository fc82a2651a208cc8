"""The in-process engine: the same loop, coordinator, operations and states, without a JVM.

Nothing runs by itself. Phases are generators that stop between any two steps that a crash or
another batch could come between, and whoever drives the engine chooses which goes on. That
makes it deterministic: for unit tests of topologies, and for simulation of failures.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pyarrow as pa

from waterspout import faults
from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout._serde import encode_key, encode_value
from waterspout.coordination.engine import Committed, Processed, Wrote
from waterspout.spouts._base import read_of
from waterspout.spouts._reads import POSITION
from waterspout.state._base import State
from waterspout.state._head import Claim
from waterspout.testing._lowerings import LocalBuilding, local_lowering_of
from waterspout.testing._stepping import SteppedEngine, Steps
from waterspout.testing._tables import read_table
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Metadata
from waterspout.trident.plan.nodes import Node, Sifted, Source, Update
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.schedule import (
    AskState,
    Derive,
    Facts,
    PassOn,
    ReadSource,
    SelectHere,
    Step,
    WriteState,
    schedule,
)
from waterspout.trident.runtime.rows import as_tuples
from waterspout.trident.runtime.states import new_values, open_state, publish_rows, run_update

__all__ = ["InProcessEngine", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """Raised at a kill point in place of SIGKILL: nobody may catch it but the simulation."""


_Tables = dict[Node, pa.Table]


class InProcessEngine(SteppedEngine[_Tables]):
    """Runs a plan's phases step by step, when told to."""

    def __init__(self, plan: Plan, conf: Config) -> None:
        super().__init__()
        self._plan = plan
        self._conf = conf
        # All rows are in this process, and so are requests for dead letters, if there are any.
        self._schedule = schedule(plan, conf, Facts(frozenset(plan.updates), requests=True))

    def start_processing(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        tables = self._work[attempt] = {}
        self.start(attempt, self._process(attempt, metadata, tables))

    def start_commit(self, claim: Claim, move_heads: Callable[[], None]) -> None:
        tables = self._work[claim.attempt]
        self.start(claim.attempt, self._commit(claim, move_heads, tables))

    def _process(self, attempt: TransactionAttempt, metadata: Metadata, tables: _Tables) -> Steps:
        yield
        began = time.monotonic()
        building = LocalBuilding(self._plan, self._conf, attempt.txid)
        for step in self._schedule.processing:
            if isinstance(step, ReadSource):
                faults.point("processing", txid=attempt.txid, node=step.node.number)
                tables[step.node] = self._read(step.node, attempt, metadata)
            else:
                self._compute(step, tables, building, processing=True)
        yield
        given = [node for node in self._plan.sources.values() if not node.hidden]
        inputs = {node.spout_id: tables[node].num_rows for node in given if node in tables}
        return Processed(
            attempt,
            processing_s=time.monotonic() - began,
            input_rows=sum(inputs.values()),
            inputs=inputs,
        )

    def _commit(self, claim: Claim, move_heads: Callable[[], None], tables: _Tables) -> Steps:
        building = LocalBuilding(self._plan, self._conf, claim.attempt.txid, claim)
        yield
        began = time.monotonic()
        move_heads()
        yield
        written: dict[str, int] = {}
        for step in self._schedule.commit:
            if isinstance(step, WriteState):
                made: list[pa.Table] = []
                rows = tables[step.node.parents[0]]
                written[step.node.state] = rows.num_rows
                for new in self._write(step.node, rows, claim):
                    made += [] if new is None else [new]
                    yield
                self._publish(step.node, claim)
                nothing = arrow_schema(step.node.schema).empty_table()
                tables[step.node] = pa.concat_tables(made) if made else nothing
                self.report(Wrote(claim.attempt, step.node.state))
            else:
                self._compute(step, tables, building)
        took = time.monotonic() - began
        return Committed(claim.attempt, commit_s=took, written=written, late_rows=claim.late_rows)

    def _read(self, node: Source, attempt: TransactionAttempt, metadata: Metadata) -> pa.Table:
        read = read_of(node.spout, node.spout_id, metadata)
        wanted = POSITION in node.schema.names and POSITION not in read.schema.names
        tasks = self._plan.hints.get(node.number)
        sifted = [child for child in self._plan.children[node] if isinstance(child, Sifted)]
        address = sifted[0].address if sifted else ""
        return read_table(
            read, self._conf, attempt, tasks=tasks, with_position=wanted, address=address
        )

    def _compute(
        self, step: Step, tables: _Tables, building: LocalBuilding, *, processing: bool = False
    ) -> None:
        """Do what a step says of its nodes; rows are kept where they are made, in any case."""
        match step:
            case PassOn():
                tables[step.node] = new_values(step.node, tables[step.node.parents[0]])
            case Derive() | SelectHere() | AskState():
                for node in step.nodes if isinstance(step, Derive) else (step.node,):
                    if processing:
                        faults.point("processing", txid=building.txid, node=node.number)
                    parents = [tables[parent] for parent in node.parents]
                    tables[node] = local_lowering_of(node)(node, parents, building)

    def _write(self, node: Update, table: pa.Table, claim: Claim) -> Iterator[pa.Table | None]:
        spec = self._plan.states[node.state]
        wanted = bool(self._plan.children[node])
        claim.writing(node.state)
        for partition, rows in _by_partition(node, table, spec.partitions):
            with closing(open_state(spec, self._conf, partition, claim.writer)) as state:
                yield run_update(
                    node, spec, state, rows, claim, self._conf, partition, want_new=wanted
                )

    def _publish(self, node: Update, claim: Claim) -> None:
        with ExitStack() as opened:

            def state() -> State:
                spec = self._plan.states[node.state]
                return opened.enter_context(closing(open_state(spec, self._conf, 0, claim.writer)))

            publish_rows(state, node, claim)


def _by_partition(node: Update, table: pa.Table, partitions: int) -> Iterator[tuple[int, pa.Table]]:
    keys = node.keys
    fields = getattr(node.updating, "fields", ()) if keys is None else keys
    # What is no key may be a struct, which has a text as a value only.
    text = encode_value if keys is None else encode_key
    owners = [
        zlib.crc32(text(list(row)).encode()) % partitions if fields else 0
        for row in as_tuples(table, fields)
    ]
    for partition in range(partitions):
        rows = [row for row, owner in enumerate(owners) if owner == partition]
        if rows or node.every_batch:
            yield partition, table.take(pa.array(rows, pa.int64()))
