"""Batches of a streaming query, counted into states under the heads of these states."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from waterspout import faults
from waterspout.config import Config
from waterspout.coordination.engine import CommitOrder
from waterspout.errors import TopologyError
from waterspout.schema import Schema
from waterspout.spark.checks import check_plan
from waterspout.spark.commit import CommitPhase
from waterspout.spark.compiler import Compiler
from waterspout.spark.session import SparkRuntime
from waterspout.spark.staging import Placement, Staging
from waterspout.spouts.base import BatchPlanner, BatchSpout, SpoutContext
from waterspout.spouts.reads import Read
from waterspout.state.arrivals import Attempt, QueryIdentity, decide
from waterspout.state.base import HeadedState
from waterspout.state.head import Head, Writer
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.trident.counting import Target
from waterspout.trident.runtime.states import open_state
from waterspout.trident.topology import TridentTopology

__all__ = ["SinkRun"]

log = logging.getLogger(__name__)


class SinkRun:
    """The live side of a sink, in the process that Spark calls with each batch."""

    def __init__(
        self,
        targets: tuple[Target, ...],
        name: str,
        starts_at: int,
        config: Config,
        first: DataFrame,
    ) -> None:
        self._runtime = SparkRuntime(first.sparkSession)
        query = _query_id(self._runtime)
        self._who = QueryIdentity(f"sink {name}", query, starts_at)
        fields = [(f.name, f.dataType.simpleString()) for f in first.schema.fields]
        schema = Schema(tuple(fields))
        self._targets = [
            _LiveTarget(target, name, schema, self._runtime, config) for target in targets
        ]

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Count a batch into every state that does not have it yet."""
        # All of them first: one that refuses keeps the others from being written.
        due = []
        for target in self._targets:
            head = target.read_head()
            attempt = decide(head, batch_id, self._who, state=target.title)
            if attempt is None:
                log.info("%s has batch %s already; it is not counted again", target.title, batch_id)
            else:
                due.append((target, attempt, head))
        if len(due) > 1:
            frame = frame.persist()
        try:
            for target, attempt, head in due:
                target.write(frame, attempt, target.writer(head, self._who.owner, self._who.query))
        finally:
            if len(due) > 1:
                frame.unpersist()


class _LiveTarget:
    """One state of a sink, with the little plan that counts into it."""

    def __init__(
        self, target: Target, name: str, schema: Schema, runtime: SparkRuntime, conf: Config
    ) -> None:
        topology = TridentTopology(name)
        stream = topology.new_stream("batch", _GivenBatches(schema))
        if target.keys:
            stream.group_by(target.keys).persistent_aggregate(target.factory, target.columns)
        else:
            stream.persistent_aggregate(target.factory, target.columns)
        self._plan = topology.plan(conf)
        check_plan(self._plan, conf)
        (self._update,) = self._plan.updates.values()
        spec = self._plan.states[self._update.state]
        self.title = getattr(spec.factory, "title", spec.factory.location() or spec.name)
        state = open_state(spec, conf, 0, None)
        if not isinstance(state, HeadedState) or not state.is_fenced:
            raise TopologyError(
                f"{self.title} keeps no head, so nobody can tell which batches it holds; "
                "exactly_once needs one of waterspout's states, or a FencedMap of your own"
            )
        self._state = state
        self._runtime = runtime
        self._compiler = Compiler(runtime, self._plan, conf)
        placement = Placement(conf, driver_only=spec.factory.driver_only)
        self._phase = CommitPhase(
            runtime, self._plan, conf, self._compiler, {self._update: placement}
        )
        self._writer: Writer | None = None

    def read_head(self) -> Head | None:
        """Return the head of the state."""
        return self._state.read_head()

    def writer(self, head: Head | None, owner: str, query: str) -> Writer:
        """Return as whom this process writes: after whoever wrote last, and before the next."""
        if self._writer is None:
            before = None if head is None else head.stamp.writer
            epoch = 1 if before is None else before.epoch + 1
            # An id that could not be asked for, then or now, is no reason to refuse.
            history = query if before is None else before.history
            self._writer = Writer(owner, epoch, history, uuid.uuid4().hex)
            self._state.enroll(self._writer)
            self._phase.enroll(self._writer)
        return self._writer

    def write(self, frame: DataFrame, attempt: Attempt, writer: Writer) -> None:
        """Aggregate the batch, claim the head, write, and settle."""
        name, txid = self._update.state, attempt.txid
        (node,) = self._update.parents
        source = self._plan.sources["batch"]
        staging = Staging([])
        try:
            counted = self._compiler.frame(
                node, {source: frame}, TransactionAttempt(txid, attempt.number)
            )
            results: dict[Any, Any] = {
                node: self._phase.stage(
                    node, [self._update], counted, staging, source_is_small=False
                )
            }
            faults.point("head.before", txid=txid, state=name)
            self._claim(attempt)
            faults.point("head.after", txid=txid, state=name)
            order = CommitOrder(
                TransactionAttempt(txid, attempt.number), attempt.resolved, lambda: None
            )
            self._phase.run(order, results, staging)
            faults.point("settle.before", txid=txid, state=name)
            self._state.settle(txid, attempt.number)
            faults.point("settle.after", txid=txid, state=name)
        finally:
            staging.release(self._runtime)

    def _claim(self, attempt: Attempt) -> None:
        self._state.claim(
            attempt.txid,
            attempt.number,
            committed_attempt=attempt.committed_attempt,
            resolved=attempt.resolved,
        )


class _GivenBatches(BatchSpout):
    """Stands in the plan for the batches that Spark hands over; nobody reads from it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @property
    def schema(self) -> Schema:
        return self._schema

    def open(self, context: SpoutContext) -> BatchPlanner:
        raise AssertionError("Spark plans these batches")

    def read(self, metadata: Any) -> Read:
        raise AssertionError("Spark reads these batches")

    def identity(self) -> Mapping[str, Any]:
        return {"spout": "foreachBatch"}


def _query_id(runtime: SparkRuntime) -> str:
    """Return the id that Spark keeps in the checkpoint; "" where it cannot be asked for."""
    if runtime.is_connect:
        return ""
    return runtime.spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
