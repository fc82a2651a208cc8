"""Carries out the steps of a schedule on Spark, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.spark.compiler import Compiler
from waterspout.spark.lowerings import asked_by_tasks
from waterspout.spark.prepared import PreparedPlans
from waterspout.spark.session import SparkRuntime
from waterspout.spark.spreading import batches_by_partition
from waterspout.spark.staging import Collected, Kept, Placement, Staging, chunks_of, keep
from waterspout.spark.tasks import LATE_ROWS, REAL, WRITTEN, UpdateTask, real_rows
from waterspout.spouts._reads import FilesRead, Read
from waterspout.state._base import State
from waterspout.state._head import Claim
from waterspout.state._witnesses import Written
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.isolation.letters import ASIDE, LETTER_MARK
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.nodes import (
    LATE,
    NewValues,
    Node,
    Query,
    Source,
    Update,
    UpdateWith,
)
from waterspout.trident.plan.plan import Plan, StateSpec
from waterspout.trident.plan.schedule import (
    AskState,
    By,
    CollectRows,
    Derive,
    DropRows,
    Facts,
    KeepRows,
    PassOn,
    ReadSource,
    Schedule,
    SelectHere,
    Step,
    WriteState,
    schedule,
)
from waterspout.trident.runtime.routing import PARTITION
from waterspout.trident.runtime.states import (
    new_values,
    open_state,
    publish_rows,
    run_query,
    run_update,
)

__all__ = ["BatchRows", "StepRunner"]

Rows = Collected | Kept | DataFrame
"""A node's rows: in the driver, on the executors, or described and not computed yet."""


@dataclass(slots=True)
class BatchRows:
    """One attempt at a batch: what it reads, and the rows that its steps have made so far."""

    attempt: TransactionAttempt
    staging: Staging
    reads: Mapping[Source, Read] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    rows: dict[Node, Rows] = field(default_factory=dict)
    inputs: dict[Update, Collected | Kept] = field(default_factory=dict)
    """What updates will write, each row with the partition of the state that it goes to."""

    moves: dict[Node, tuple[Exchange, ...]] = field(default_factory=dict)
    """How rows of the driver move if they are needed on the executors."""

    clean: set[Node] = field(default_factory=set)
    """Nodes that have put no row aside in this batch."""

    claim: Claim | None = None
    wrote: Callable[[str], object] = lambda state: None
    """Is told the name of each state when all of it is written."""

    def left_for_commit(self, plan: Plan) -> int:
        """Return how many rows the processing phase has computed for the commit phase."""
        found = [self.rows[node] for node in plan.staged if node in self.rows]
        rows = {id(one): one.rows for one in found if isinstance(one, (Collected, Kept))}
        return sum((rows | {id(one): one.rows for one in self.inputs.values()}).values())


class StepRunner:
    """Runs the phases of a plan's batches. Several may process at once; one commits."""

    def __init__(self, runtime: SparkRuntime, plan: Plan, conf: Config) -> None:
        self._plan = plan
        self._conf = conf
        self._compiler = Compiler(runtime, plan, conf)
        self._plans = PreparedPlans(runtime, conf)
        self._shuffle_partitions = runtime.shuffle_partitions
        self._placements = {name: _placement(plan.states[name], conf) for name in plan.updates}
        self._schedules: dict[Facts, Schedule] = {}
        self._states: dict[tuple[str, int], State] = {}
        self._run: dict[type[Step], Callable[[Any, BatchRows], None]] = {
            ReadSource: self._read,
            Derive: self._derive,
            PassOn: self._pass_on,
            KeepRows: self._keep,
            CollectRows: self._collect,
            DropRows: self._drop,
            SelectHere: self._select,
            AskState: self._ask,
            WriteState: self._write_and_tell,
        }

    def process(
        self, batch: BatchRows, *, small: bool, tiny: bool = False, requests: bool = False
    ) -> None:
        """Run the processing phase. `small`, `tiny`: so is what it reads, as far as is known."""
        collected = {n for n, p in self._placements.items() if p.collects(source_is_small=small)}
        batch.facts = Facts(frozenset(collected), requests, self._shuffle_partitions, tiny)
        steps = self._schedule(batch.facts).processing
        key = self._plans.key(batch.facts, steps, batch.reads)
        if key is None:
            self._steps(steps, batch)
        else:
            self._process_alike(key, steps, batch)

    def commit(self, batch: BatchRows, claim: Claim) -> dict[str, int]:
        """Run the commit phase; return how many rows went into each state."""
        batch.claim = claim
        self._steps(self._commit_steps(batch), batch)
        return {update.state: found.rows for update, found in batch.inputs.items()}

    def commits_here(self, batch: BatchRows) -> bool:
        """Whether the commit phase only writes, from the driver: Spark has nothing to do in it."""
        return all(
            isinstance(step, WriteState) and step.by is By.DRIVER and step.node in batch.inputs
            for step in self._commit_steps(batch)
        )

    def _commit_steps(self, batch: BatchRows) -> Sequence[Step]:
        # Inputs that the commit phase computes go where the batches before say it is best.
        ready = {update.state for update in batch.inputs}
        collected = {n for n, p in self._placements.items() if p.collects(source_is_small=True)}
        chosen = (batch.facts.collected & ready) | (collected - ready)
        facts = Facts(frozenset(chosen), batch.facts.requests, self._shuffle_partitions)
        return self._schedule(facts).commit

    def _process_alike(self, key: Hashable, steps: Sequence[Step], batch: BatchRows) -> None:
        """Run the processing phase of a batch that differs from others only in its files."""
        (read,), (*described, last) = batch.reads.values(), steps
        filled = self._plans.filled(key, read)
        if filled is None:
            self._steps(described, batch)
            frame = self._to_compute(last, batch)
            rowless = BatchRows(batch.attempt, Staging([]), batch.reads, batch.facts)
            self._plans.remember(key, frame, lambda: self._over_nothing(steps, rowless))
        else:
            frame = filled.frame
        batch.rows[last.node] = frame
        if isinstance(last, CollectRows):
            table = frame.toArrow() if filled is None else filled.to_arrow()
            self._collected(last, frame, table, batch)
        else:
            assert isinstance(last, KeepRows)
            self._kept(last, frame, batch)

    def _over_nothing(self, steps: Sequence[Step], batch: BatchRows) -> DataFrame:
        """Return what steps compute, from a source without rows."""
        (source,), (*described, last) = batch.reads, steps
        nothing = self._compiler.from_table(arrow_schema(source.schema).empty_table())
        batch.rows[source] = nothing
        self._steps(described, batch)
        return self._to_compute(last, batch)

    def close(self) -> None:
        """Close the driver's connections to the states."""
        for state in self._states.values():
            state.close()
        self._states.clear()

    def _schedule(self, facts: Facts) -> Schedule:
        if facts not in self._schedules:
            self._schedules[facts] = schedule(self._plan, self._conf, facts)
        return self._schedules[facts]

    def _steps(self, steps: Sequence[Step], batch: BatchRows) -> None:
        for step in steps:
            if not step.only_aside or any(node not in batch.clean for node in step.only_aside):
                self._run[type(step)](step, batch)
            elif isinstance(step, CollectRows):
                batch.inputs[step.update] = Collected(_NOTHING_ASIDE.empty_table())
            elif isinstance(step, KeepRows):  # there is nothing to sort out: nobody reads it twice
                batch.clean.add(step.node)

    def _read(self, step: ReadSource, batch: BatchRows) -> None:
        if step.is_empty:
            batch.clean.add(step.node)
        if step.node not in batch.rows:  # Spark hands over the batches of foreachBatch
            read = batch.reads[step.node]
            if isinstance(read, FilesRead) and not (read.too_long or batch.facts.requests):
                batch.clean.add(step.node)
            batch.rows[step.node] = self._compiler.read(step, read, batch.attempt)

    def _derive(self, step: Derive, batch: BatchRows) -> None:
        parents = {node: self._moved(node, batch) for node in step.nodes[0].parents}
        batch.rows[step.node] = self._compiler.derived(step, parents, batch.attempt)

    def _pass_on(self, step: PassOn, batch: BatchRows) -> None:
        batch.rows[step.node] = _passed_on(step.node, batch.rows[step.node.parents[0]])
        batch.moves[step.node] = step.exchanges

    def _to_compute(self, step: Step, batch: BatchRows) -> DataFrame:
        """Return the frame that a step computes."""
        frame = self._frame(batch.rows[step.node])
        update = step.update if isinstance(step, (CollectRows, KeepRows)) else None
        if update is None or (isinstance(step, CollectRows) and self._goes_to_one(update)):
            return frame
        return self._compiler.with_partition(update, frame)

    def _goes_to_one(self, update: Update) -> bool:
        """Whether all rows go to one partition, so that the number need not be computed."""
        return self._plan.states[update.state].partitions == 1 and not update.every_batch

    def _keep(self, step: KeepRows, batch: BatchRows) -> None:
        self._kept(step, self._to_compute(step, batch), batch)

    def _kept(self, step: KeepRows, frame: DataFrame, batch: BatchRows) -> None:
        if step.update is None:
            mark = F.col(ASIDE).startswith(LETTER_MARK) if step.counts_aside else None
            batch.rows[step.node] = kept = keep(frame, batch.staging, mark=mark)
            if mark is not None and kept.marked == 0:
                batch.clean.add(step.node)
            return
        by_state = [e.partitions for e in step.exchanges if e.deal is Deal.BY_STATE]
        found = keep(frame, batch.staging, partitions=by_state[0] if by_state else None)
        self._prepared(step.update, found, batch)

    def _collect(self, step: CollectRows, batch: BatchRows) -> None:
        frame = self._to_compute(step, batch)
        self._collected(step, frame, frame.toArrow(), batch)

    def _collected(
        self, step: CollectRows, frame: DataFrame, table: pa.Table, batch: BatchRows
    ) -> None:
        found = Collected(_in_one(table) if self._goes_to_one(step.update) else table)
        self._prepared(step.update, found, batch)
        batch.staging.computed.append(frame)

    def _prepared(self, update: Update, found: Collected | Kept, batch: BatchRows) -> None:
        batch.inputs[update] = found
        self._placements[update.state].learn(found.rows)
        source = update.parents[0]
        if isinstance(batch.rows[source], DataFrame):
            batch.rows[source] = found  # it is computed now: whoever reads it reads this

    def _drop(self, step: DropRows, batch: BatchRows) -> None:
        self._frame(batch.rows[step.node]).write.format("noop").mode("overwrite").save()

    def _select(self, step: SelectHere, batch: BatchRows) -> None:
        table = self._table(batch.rows[step.node.parents[0]])
        names = list(self._plan.kept[step.node].names)
        batch.rows[step.node] = Collected(table.select(names))

    def _ask(self, step: AskState, batch: BatchRows) -> None:
        node, spec = step.node, self._plan.states[step.node.state]
        source = node.parents[0]
        # A state that is only read has batches of its own, which ours say nothing about.
        seen_by = None if spec.static else batch.claim
        if step.by is By.TASKS:
            building = self._compiler.building(batch.attempt, step.exchanges)
            frame = asked_by_tasks(node, self._moved(source, batch), building, seen_by)
            batch.rows[node] = keep(frame, batch.staging)
            return
        if step.comes_back:
            frame = self._compiler.numbered(self._moved(source, batch))
            table = frame.toArrow()
            batch.staging.computed.append(frame)
        else:
            table = self._table(batch.rows[source])
        answered = [
            self._answered(node, partition, rows, seen_by, claim=batch.claim)
            for partition, rows in batches_by_partition(spec, table)
        ]
        answers = pa.Table.from_batches(answered) if answered else _nothing(node)
        if step.comes_back:
            width = step.exchanges[0].partitions or 1
            batch.rows[node] = self._compiler.back(node, answers, width)
        else:
            batch.rows[node] = Collected(answers)

    def _answered(
        self,
        node: Query,
        partition: int,
        rows: pa.RecordBatch,
        seen_by: Claim | None,
        *,
        claim: Claim | None,
    ) -> pa.RecordBatch:
        spec = self._plan.states[node.state]
        with ExitStack() as opened:
            if claim is not None:  # one thread commits; it has a connection for the whole run
                state = self._state(spec, partition, claim)
            else:
                state = opened.enter_context(closing(open_state(spec, self._conf, partition, None)))
            return run_query(node, spec, state, rows, seen_by, self._conf, partition)

    def _write_and_tell(self, step: WriteState, batch: BatchRows) -> None:
        self._write(step, batch)
        assert batch.claim is not None
        node, claim = step.node, batch.claim
        publish_rows(lambda: self._state(self._plan.states[node.state], 0, claim), node, claim)
        batch.wrote(step.node.state)

    def _write(self, step: WriteState, batch: BatchRows) -> None:
        node, spec = step.node, self._plan.states[step.node.state]
        assert batch.claim is not None
        if step.one_partition:
            table = self._table(batch.rows[node.parents[0]])
            self._prepared(node, Collected(_in_one(table)), batch)
        claim, wanted = batch.claim, bool(self._plan.children[node])
        writing = claim.writing(node.state)
        found = batch.inputs[node]
        if isinstance(found, Kept) and step.by is By.TASKS:
            setting = self._compiler.building(batch.attempt).setting()
            task = UpdateTask(setting, node.alone(), spec, claim, wanted)
            written = found.frame.mapInArrow(task, task.schema.ddl())
            # Computed here, once: whoever reads the new values must not write again.
            window, late = task.window, 0
            if wanted:
                added, real = (LATE_ROWS, REAL) if window else (None, None)
                kept = keep(written, batch.staging, told=WRITTEN, added=added, real=real)
                texts, late, frame = kept.told, kept.added, kept.frame.drop(WRITTEN)
                if window:
                    frame = frame.where(F.col(REAL)).drop(REAL, LATE_ROWS)
                batch.rows[node] = replace(kept, frame=frame)
            else:
                told = written.toArrow()
                texts = told.column(WRITTEN).to_pylist()
                late = sum(told.column(LATE_ROWS).to_pylist()) if window else 0
                batch.rows[node] = Collected(_nothing(node))
            if window:
                claim.add_late(window, late)
            if wanted and isinstance(node.updating, UpdateWith):
                # It may have written where it gave nothing, and so told nothing.
                claim.written.pop(node.state)
            else:
                writing.add(Written.from_texts(texts))
            return
        tables = (
            [found.table]
            if isinstance(found, Collected)
            else chunks_of(found, self._conf.collect_max_rows, node.chunk_keys)
        )
        new: list[pa.Table] = []
        for table in tables:
            for partition, rows in _by_partition(table, spec.partitions):
                state = self._state(spec, partition, claim)
                made = run_update(
                    node, spec, state, rows, claim, self._conf, partition, want_new=wanted
                )
                new += [] if made is None else [made]
        batch.rows[node] = Collected(pa.concat_tables(new) if new else _nothing(node))

    def _moved(self, node: Node, batch: BatchRows) -> DataFrame:
        """Return a node's rows as a frame, on the partitions of its group."""
        found = batch.rows[node]
        frame = self._frame(found)
        if isinstance(found, Collected) and self._plan.width_of(node) == 1:
            return frame.coalesce(1)
        return self._compiler.behind(frame, batch.moves.get(node, ()))

    def _frame(self, found: Rows) -> DataFrame:
        """Return rows, wherever they are, as a DataFrame of the node's own fields."""
        if isinstance(found, Collected):
            return self._compiler.from_table(_own_fields(found.table))
        frame = found.frame if isinstance(found, Kept) else found
        if REAL in frame.columns:
            frame = frame.where(F.col(REAL)).drop(REAL)
        return frame.drop(PARTITION) if PARTITION in frame.columns else frame

    def _table(self, found: Rows) -> pa.Table:
        """Return rows, wherever they are, as a table in the driver."""
        if isinstance(found, Collected):
            return _own_fields(found.table)
        return self._frame(found).toArrow()

    def _state(self, spec: StateSpec, partition: int, claim: Claim) -> State:
        """Return the driver's live state of a partition; one connection for the whole run."""
        at = spec.name, partition
        if at not in self._states:
            self._states[at] = open_state(spec, self._conf, partition, claim.writer)
        return self._states[at]


_NOTHING_ASIDE = arrow_schema(Schema(((ASIDE, "string"), (PARTITION, "int"))))


def _placement(spec: StateSpec, conf: Config) -> Placement:
    # What the topology keeps for itself is small, whatever is chosen for the others.
    chosen = conf.replace(commit_in="driver") if spec.hidden else conf
    return Placement(chosen, driver_only=spec.factory.driver_only)


def _by_partition(table: pa.Table, partitions: int) -> Iterator[tuple[int, pa.Table]]:
    if partitions == 1:
        yield 0, real_rows(table)
        return
    column = table.column(PARTITION)
    for partition in range(partitions):
        rows = table.filter(pc.equal(column, partition))
        if rows.num_rows:
            yield partition, real_rows(rows)


def _in_one(table: pa.Table) -> pa.Table:
    """Add the number of the partition, where a state has only one."""
    zeros = pa.repeat(pa.scalar(0, pa.int32()), table.num_rows)
    return table.append_column(PARTITION, zeros)


def _own_fields(table: pa.Table) -> pa.Table:
    table = real_rows(table)
    return table.drop_columns([PARTITION]) if PARTITION in table.column_names else table


def _passed_on(node: NewValues, found: Rows) -> Rows:
    """Return what a stream has of an update's new values, where they are."""
    if isinstance(found, Collected):
        return Collected(new_values(node, found.table))
    if node.late is None:
        return found
    frame = found.frame if isinstance(found, Kept) else found
    frame = frame.where(F.col(LATE) == node.late).select(*node.schema.names)
    return replace(found, frame=frame) if isinstance(found, Kept) else frame


def _nothing(node: Node) -> pa.Table:
    return arrow_schema(node.schema).empty_table()
