"""The commit phase: states are queried and updated in plan order, in the driver or by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from waterspout.arrow import arrow_schema
from waterspout.config import Config
from waterspout.coordination.engine import CommitOrder
from waterspout.spark.compiler import Compiler
from waterspout.spark.session import SparkRuntime
from waterspout.spark.spreading import batches_by_partition
from waterspout.spark.staging import Collected, Kept, Placement, Staging, chunks_of, keep
from waterspout.spark.tasks import UpdateTask, real_rows
from waterspout.state.base import State
from waterspout.state.head import Writer
from waterspout.trident.plan.costs import is_projected_in_driver, waits_for_reader
from waterspout.trident.plan.nodes import NewValues, Node, Query, Update
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.routing import PARTITION
from waterspout.trident.runtime.states import (
    CommitTicket,
    QueryStep,
    UpdateStep,
    open_state,
    run_query,
    run_update,
)

__all__ = ["CommitPhase"]

Result = Collected | Kept | DataFrame


class CommitPhase:
    """Carries out the commit phases of a plan, one at a time, on one thread."""

    def __init__(
        self,
        runtime: SparkRuntime,
        plan: Plan,
        conf: Config,
        compiler: Compiler,
        placements: Mapping[Node, Placement],
    ) -> None:
        self._runtime = runtime
        self._plan = plan
        self._conf = conf
        self._compiler = compiler
        self._placements = placements
        self._writer: Writer | None = None
        self._states: dict[tuple[str, int], State] = {}

    def enroll(self, writer: Writer) -> None:
        """Write as this writer."""
        self._writer = writer

    def stage(
        self,
        node: Node,
        readers: list[Node],
        frame: DataFrame,
        staging: Staging,
        *,
        source_is_small: bool,
    ) -> Collected | Kept:
        """Compute the rows that `readers` will need and put them where these work best."""
        update = readers[0]
        if len(readers) == 1 and isinstance(update, Update):
            placement = self._placements[update]
            frame = self._compiler.with_partition(update, frame)
            if placement.collects(source_is_small=source_is_small):
                staged: Collected | Kept = Collected(frame.toArrow())
            else:
                spec = self._plan.states[update.state]
                parts = None if spec.factory.driver_only else spec.partitions
                staged = keep(frame, staging, partitions=parts)
            placement.learn(staged.rows)
            return staged
        return keep(frame, staging)

    def run(self, order: CommitOrder, results: dict[Node, Result], staging: Staging) -> int:
        """Run every node of the commit phase; return how many rows went into states."""
        ticket = CommitTicket(order.attempt, order.resolved, self._writer, order.batch_time)
        written = 0
        for node in self._plan.commit_order:
            if isinstance(node, NewValues):
                results[node] = results[node.parents[0]]
                continue
            if isinstance(node, Update):
                staged = self._as_input(node, results[node.parents[0]], staging)
                written += staged.rows
                results[node] = self._update(node, staged, ticket, staging)
            elif isinstance(node, Query):
                results[node] = self._query(node, results[node.parents[0]], ticket, staging)
            elif not waits_for_reader(self._plan, node):
                source = results.get(node.parents[0])
                if isinstance(source, Collected) and is_projected_in_driver(self._plan, node):
                    table = source.table.select(list(self._plan.kept[node].names))
                    results[node] = Collected(table)
                else:
                    results[node] = self._derive(node, results, ticket, staging)
        return written

    def close(self) -> None:
        """Close the driver's connections to the states."""
        for state in self._states.values():
            state.close()
        self._states.clear()

    # --- updates -----------------------------------------------------------------------------

    def _as_input(self, node: Update, source: Result, staging: Staging) -> Collected | Kept:
        """Return an update's input with its partition column."""
        if isinstance(source, (Collected, Kept)):
            columns = (
                source.table.column_names if isinstance(source, Collected) else source.frame.columns
            )
            if PARTITION in columns:
                return source
        if isinstance(source, Collected) and self._writes_here(node):
            self._placements[node].learn(source.rows)
            zeros = pa.repeat(pa.scalar(0, pa.int32()), source.rows)
            return Collected(source.table.append_column(PARTITION, zeros))
        frame = self.frame_of(source)
        return self.stage(node.parents[0], [node], frame, staging, source_is_small=True)

    def _writes_here(self, node: Update) -> bool:
        """Whether rows that are in the driver need no job to find the state's one partition."""
        alone = self._plan.states[node.state].partitions == 1
        return alone and self._placements[node].collects(source_is_small=True)

    def _update(
        self, node: Update, staged: Collected | Kept, ticket: CommitTicket, staging: Staging
    ) -> Result:
        wanted = bool(self._plan.children[node])
        spec = self._plan.states[node.state]
        step = UpdateStep.of(node, spec, want_new=wanted)
        if isinstance(staged, Kept) and not spec.factory.driver_only:
            return self._update_by_tasks(step, staged, ticket, staging)
        tables = (
            [staged.table]
            if isinstance(staged, Collected)
            else chunks_of(staged, self._conf.collect_max_rows, getattr(node.updating, "keys", ()))
        )
        new = [
            made
            for table in tables
            for part, rows in _by_partition(table, spec.partitions)
            if (made := self._update_here(step, rows, ticket, part)) is not None
        ]
        return Collected(pa.concat_tables(new) if new else _nothing(node))

    def _update_here(
        self, step: UpdateStep, rows: pa.Table, ticket: CommitTicket, part: int
    ) -> pa.Table | None:
        state = self._state(step.spec.name, part)
        return run_update(step, state, rows, ticket, self._conf, part)

    def _update_by_tasks(
        self, step: UpdateStep, staged: Kept, ticket: CommitTicket, staging: Staging
    ) -> Result:
        task = UpdateTask(self._compiler.setting(ticket.attempt), step, ticket)
        written = staged.frame.mapInArrow(task, task.schema.ddl())
        if step.want_new:
            # Computed here, once: whoever reads the new values must not write again.
            return keep(written, staging)
        return Collected(written.toArrow())

    # --- queries and the rest ----------------------------------------------------------------

    def _query(self, node: Query, source: Result, ticket: CommitTicket, staging: Staging) -> Result:
        spec = self._plan.states[node.state]
        # A state that is only read has batches of its own, which ours say nothing about.
        seen_by = None if spec.static else ticket
        if isinstance(source, Kept) and not spec.factory.driver_only:
            rows = self._placed(node.parents[0], source)
            frame = self._compiler.query(node, rows, ticket.attempt, seen_by)
            # Asked now: after the update that follows, the answers would be others.
            return keep(frame, staging)
        width = self._plan.width_of(node)
        if width is None or width == 1:
            table = _without_partition(self._table_of(source))
        else:
            rows = self._placed(node.parents[0], source)
            table = self._compiler.numbered(node, rows).toArrow()
        step = QueryStep.of(node, spec)
        answered = [
            run_query(step, self._state(spec.name, part), batch, seen_by, self._conf, part)
            for part, batch in batches_by_partition(spec, table)
        ]
        answers = pa.Table.from_batches(answered) if answered else _nothing(node)
        if width is None or width == 1:
            return Collected(answers)
        return self._compiler.back(node, answers)

    def _derive(
        self, node: Node, results: dict[Node, Result], ticket: CommitTicket, staging: Staging
    ) -> Result:
        made = self._made_before(node, results)
        derived = self._compiler.frame(node, made, ticket.attempt)
        readers = self._plan.children[node]
        if not readers:
            derived.write.format("noop").mode("overwrite").save()
        elif len(readers) > 1:
            return keep(derived, staging)
        return derived

    def _made_before(self, node: Node, results: Mapping[Node, Result]) -> dict[Node, DataFrame]:
        """Return the frames that a node, and those that waited for it, are made of."""
        made: dict[Node, DataFrame] = {}
        todo = list(node.parents)
        while todo:
            parent = todo.pop()
            if parent not in results:
                todo += parent.parents
                continue
            made[parent] = self._placed(parent, results[parent])
        return made

    def _placed(self, node: Node, source: Result) -> DataFrame:
        """Return a node's rows on the partitions of its group."""
        frame = self.frame_of(source)
        # What was computed from a frame is on its partitions; other rows are not yet.
        if isinstance(node, NewValues):
            return self._compiler.placed(node, frame)
        if isinstance(node, Query) and self._plan.width_of(node) == 1:
            return frame.coalesce(1)
        return frame

    def frame_of(self, source: Result) -> DataFrame:
        """Return rows, wherever they are, as a DataFrame of the node's own fields."""
        if isinstance(source, Collected):
            return self._compiler.from_table(_without_partition(source.table))
        frame = source.frame if isinstance(source, Kept) else source
        return frame.drop(PARTITION) if PARTITION in frame.columns else frame

    def _table_of(self, source: Result) -> pa.Table:
        if isinstance(source, Collected):
            return source.table
        return (source.frame if isinstance(source, Kept) else source).toArrow()

    def _state(self, name: str, part: int) -> State:
        """Return the driver's live state of a partition; one connection for the whole run."""
        if (name, part) not in self._states:
            self._states[name, part] = open_state(
                self._plan.states[name], self._conf, part, self._writer
            )
        return self._states[name, part]


def _by_partition(table: pa.Table, partitions: int) -> Iterator[tuple[int, pa.Table]]:
    if partitions == 1:
        yield 0, real_rows(table)
        return
    column = table.column(PARTITION)
    for part in range(partitions):
        rows = table.filter(pc.equal(column, part))
        if rows.num_rows:
            yield part, real_rows(rows)


def _without_partition(table: pa.Table) -> pa.Table:
    return table.drop_columns([PARTITION]) if PARTITION in table.column_names else table


def _nothing(node: Node) -> pa.Table:
    return arrow_schema(node.schema).empty_table()
