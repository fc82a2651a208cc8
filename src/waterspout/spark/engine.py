"""The engine on Spark: phases as jobs on threads of a bounded pool."""

from __future__ import annotations

import time
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waterspout.arrow import arrow_schema
from waterspout.config import Config
from waterspout.coordination.engine import CommitOrder, Committed, Processed
from waterspout.schema import Schema
from waterspout.spark.commit import CommitPhase
from waterspout.spark.compiler import Compiler
from waterspout.spark.phases import PhaseEngine, Work
from waterspout.spark.session import SparkRuntime
from waterspout.spark.staging import Collected, Kept, Placement, keep
from waterspout.spouts.reads import POSITION, RowsRead
from waterspout.state.head import Writer
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.ledger import Metadata
from waterspout.trident.isolation.letters import ASIDE, LETTER_MARK
from waterspout.trident.plan.costs import is_answered_in_driver
from waterspout.trident.plan.nodes import Isolated, Node, SortedOut, Update
from waterspout.trident.plan.plan import Phase, Plan, StateSpec
from waterspout.trident.runtime.routing import PARTITION

__all__ = ["SparkEngine"]


class SparkEngine(PhaseEngine):
    """Runs the phases of a plan's batches; several process at once, one commits."""

    def __init__(self, runtime: SparkRuntime, plan: Plan, conf: Config) -> None:
        super().__init__(runtime, plan.name, conf)
        self._plan = plan
        self._compiler = Compiler(runtime, plan, conf)
        self._placements: dict[Node, Placement] = {
            node: _placement(plan.states[node.state], conf)
            for node in plan.nodes
            if isinstance(node, Update)
        }
        self._commit_phase = CommitPhase(runtime, plan, conf, self._compiler, self._placements)

    def enroll(self, writer: Writer) -> None:
        """Write to the states as this writer."""
        self._commit_phase.enroll(writer)

    def close(self) -> None:
        """Wait for the threads and close the states."""
        super().close()
        self._commit_phase.close()

    def process(self, attempt: TransactionAttempt, metadata: Metadata, work: Work) -> Processed:
        began = time.monotonic()
        made: dict[Node, DataFrame] = {}
        small = True
        for spout_id, source in self._plan.sources.items():
            read = source.spout.read(metadata[spout_id])
            small = small and read.is_small
            tasks = self._plan.width_of(source)
            if source.hidden and isinstance(read, RowsRead) and not read.rows:
                made[source] = self._compiler.no_requests
                continue
            place = POSITION in source.schema.names and POSITION not in read.schema.names
            frame = self._compiler.read(read, attempt, tasks=tasks, with_position=place)
            made[source] = self._compiler.placed(source, frame)
        quiet: set[Node] = {
            node for node, frame in made.items() if frame is self._compiler.no_requests
        }
        for node in self._plan.nodes:
            if node in self._plan.shared and node not in self._plan.staged:
                self._share(node, made, attempt, work, quiet)
        for node in self._plan.staged:
            if self._is_quiet(node, quiet):
                work.results[node] = Collected(self._nothing_aside)
            else:
                self._stage(node, made, attempt, work, small)
        rows = sum(r.rows for r in work.results.values() if isinstance(r, (Collected, Kept)))
        return Processed(attempt, processing_s=time.monotonic() - began, staged_rows=rows)

    def _share(
        self,
        node: Node,
        made: dict[Node, DataFrame],
        attempt: TransactionAttempt,
        work: Work,
        quiet: set[Node],
    ) -> None:
        """Compute a node that several read; one that has put nothing aside is quiet."""
        if self._plan.phases[node] is not Phase.PROCESSING or node in quiet:
            return
        frame = self._compiler.frame(node, made, attempt)
        if is_answered_in_driver(self._plan, node):
            made[node] = frame  # the rows came through the driver: there is nothing to compute
            return
        mark = F.col(ASIDE).startswith(LETTER_MARK) if isinstance(node, Isolated) else None
        kept = keep(frame, work.staging, mark=mark)
        made[node] = kept.frame
        if mark is not None and kept.marked == 0:
            quiet.add(node)

    def _is_quiet(self, node: Node, quiet: set[Node]) -> bool:
        """Whether a node brings together what was put aside, and there is nothing of it."""
        (reader, *more) = self._plan.children[node] or [node]
        letters = isinstance(reader, Update) and self._plan.states[reader.state].hidden
        if more or not letters:
            return False
        found = [p.parents[0] if isinstance(p, SortedOut) else p for p in node.parents]
        return all(one in quiet for one in found)

    @cached_property
    def _nothing_aside(self) -> pa.Table:
        return arrow_schema(Schema(((ASIDE, "string"), (PARTITION, "int")))).empty_table()

    def _stage(
        self,
        node: Node,
        made: dict[Node, DataFrame],
        attempt: TransactionAttempt,
        work: Work,
        small: bool,
    ) -> None:
        frame = self._compiler.frame(node, made, attempt)
        late = [c for c in self._plan.children[node] if self._plan.phases[c] is Phase.COMMIT]
        if not late:
            frame.write.format("noop").mode("overwrite").save()
            return
        staged = self._commit_phase.stage(node, late, frame, work.staging, source_is_small=small)
        work.results[node] = staged
        if len(late) < len(self._plan.children[node]):
            # What follows in this phase reads what was staged: a batch is computed once.
            made[node] = self._commit_phase.frame_of(staged)

    def commit(self, order: CommitOrder, work: Work) -> Committed:
        began = time.monotonic()
        order.claim()
        written = self._commit_phase.run(order, work.results, work.staging)
        return Committed(order.attempt, commit_s=time.monotonic() - began, written_rows=written)


def _placement(spec: StateSpec, conf: Config) -> Placement:
    # What the topology keeps for itself is small, whatever is chosen for the others.
    chosen = conf.replace(commit_in="driver") if spec.hidden else conf
    return Placement(chosen, driver_only=spec.factory.driver_only)
