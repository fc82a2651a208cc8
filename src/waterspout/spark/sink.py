"""The sink of `exactly_once`: each batch of a streaming query goes into states."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.coordination.commit_protocol import CommitProtocol, HeadKeeper
from waterspout.coordination.outages import STATES, Outages, Waits
from waterspout.coordination.preflight import check_pickling, checked_plan
from waterspout.errors import OutageError, TopologyError
from waterspout.spark.failures import translate
from waterspout.spark.session import SparkRuntime, is_connect
from waterspout.spark.staging import Staging
from waterspout.spark.steps import BatchRows, StepRunner
from waterspout.spouts._base import BatchPlanner, BatchSpout, SpoutContext
from waterspout.spouts._reads import Read
from waterspout.state._foreach_batch import QueryIdentity, beginnings, next_writer
from waterspout.state._head import Claim, Head, Writer
from waterspout.state._headed import HeadedState
from waterspout.trident._counting import Target
from waterspout.trident._topology import TridentTopology
from waterspout.trident.operations.row_updaters import RowUpdater
from waterspout.trident.runtime.states import open_state

__all__ = ["SinkRun", "active_connect_session", "query_id"]

log = logging.getLogger(__name__)


class SinkRun:
    """The live side of a sink, in the process that Spark calls with each batch."""

    def __init__(
        self,
        targets: tuple[Target, ...],
        name: str,
        who: QueryIdentity,
        config: Config,
        first: DataFrame,
    ) -> None:
        self._runtime = SparkRuntime(first.sparkSession)
        self._who = who
        self._config = config
        self.pause: Callable[[float], object] = time.sleep
        fields = [(f.name, f.dataType.simpleString()) for f in first.schema.fields]
        schema = Schema(tuple(fields))
        self._lease = uuid.uuid4().hex
        self._targets = [
            _LiveTarget(target, name, f"state{n}", schema, self._runtime, config)
            for n, target in enumerate(targets, start=1)
        ]

    @property
    def query(self) -> str | None:
        """The query whose batches this run takes."""
        return self._who.query

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Commit a batch to every state that does not have it yet; wait for a store that is away.

        Else Spark would end the query. A try that failed is like one of a query that was started
        again: the heads tell what the states have.
        """
        name = f"batch {batch_id} of foreachBatch"
        outages = Outages(self._config.outage_secs, self._config.retry_backoff)
        waits = Waits(name, outages, time.monotonic, lambda event: None)
        while True:
            try:
                self._take(frame, batch_id)
            except Exception as error:
                away = translate(error, self._runtime)
                if not isinstance(away, OutageError) or not self._goes_on(frame):
                    raise
            else:
                waits.answered(STATES)
                return
            self.pause(waits.met(STATES, away))

    def _goes_on(self, frame: DataFrame) -> bool:
        """Whether the query still runs, as far as that can be seen: nobody waits in vain."""
        if not self._who.query or is_connect(frame.sparkSession):
            return True
        with suppress(Exception):  # of Spark's own, and not for us
            # Not of the session: the one of a batch is a copy that knows no query.
            shared = frame.sparkSession._jsparkSession.sharedState()
            jvm: Any = frame.sparkSession.sparkContext._jvm
            key = jvm.java.util.UUID.fromString(self._who.query)
            query = shared.activeStreamingQueries().get(key)
            return query is not None and bool(query.isActive())
        return True

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        # All states are verified before the first is written: one that refuses stops the batch.
        verified = [
            target.verify(batch_id, replace(self._who, starts_at=first), self._lease)
            for target, first in zip(self._targets, self._first_batches(), strict=True)
        ]
        due = [start for start in verified if start is not None]
        # And all are claimed before: two that are one table under two addresses meet there.
        finish = [start() for start in due]
        if len(due) > 1:
            frame = frame.persist()
        try:
            for commit in finish:
                commit(frame)
        finally:
            if len(due) > 1:
                frame.unpersist()

    def _first_batches(self) -> list[int | None]:
        """Return with which batch each state begins, as far as the sink says so."""
        said = self._who.starts_at
        if said is None or len(self._targets) == 1:
            return [said] * len(self._targets)
        return beginnings([target.read_head() for target in self._targets], said)


class _LiveTarget:
    """One state of a sink, with the small plan that aggregates or writes into it."""

    def __init__(
        self,
        target: Target,
        name: str,
        known_as: str,
        schema: Schema,
        runtime: SparkRuntime,
        conf: Config,
    ) -> None:
        self._known_as = known_as
        topology = TridentTopology(name)
        stream = topology.new_stream("batch", _GivenBatches(schema))
        if isinstance(target.columns, RowUpdater):
            stream.partition_persist(target.factory, target.columns)
        elif target.keys:
            stream.group_by(target.keys).persistent_aggregate(target.factory, target.columns)
        else:
            stream.persistent_aggregate(target.factory, target.columns)
        self._plan = checked_plan(topology.plan(conf), conf)
        check_pickling(self._plan)
        (self._update,) = self._plan.updates.values()
        spec = self._plan.states[self._update.state]
        self.title = getattr(spec.factory, "title", spec.factory.location() or spec.name)
        state = open_state(spec, conf, 0, None)
        if not isinstance(state, HeadedState) or not state.is_fenced:
            raise TopologyError(
                f"{self.title} keeps no head, so nobody can tell which batches it holds. "
                "exactly_once needs one of waterspout's states, or a FencedMap of your own."
            )
        self._state = state
        self._runtime = runtime
        self._steps = StepRunner(runtime, self._plan, conf)
        self._writer: Writer | None = None

    def read_head(self) -> Head | None:
        """Return the head of the state, if it has one."""
        return self._state.read_head()

    def verify(
        self, batch_id: int, who: QueryIdentity, lease: str
    ) -> Callable[[], Callable[[DataFrame], None]] | None:
        """Return what claims the state and then returns what writes the batch; or refuse.

        None if the state has the batch.
        """
        keeper = HeadKeeper(who, batch_id)
        commits = CommitProtocol({self._known_as: self._state}, keeper)
        commits.verify(records=self._writer is None)
        claim = keeper.claim
        if claim is None:
            log.info("%s has batch %s already; it is not counted again", self.title, batch_id)
            return None
        if self._writer is None:
            self._writer = next_writer(keeper.head, who, lease)
        commits.enroll(self._writer)

        def start() -> Callable[[DataFrame], None]:
            begun = commits.start(claim.attempt)
            return lambda frame: self._finish(frame, commits, begun)

        return start

    def _finish(self, frame: DataFrame, commits: CommitProtocol, claim: Claim) -> None:
        """Write the batch that has claimed, then commit it."""
        batch = BatchRows(claim.attempt, Staging([]), rows={self._plan.sources["batch"]: frame})
        try:
            self._steps.process(batch, small=False)
            commits.finish(claim, lambda claim: self._write(batch, claim))
        finally:
            batch.staging.release(self._runtime)

    def _write(self, batch: BatchRows, claim: Claim) -> None:
        self._steps.commit(batch, claim)
        # The small plan has a name of its own for the state.
        claim.written[self._known_as] = claim.writing(self._update.state)


class _GivenBatches(BatchSpout):
    """The source of the plan: its batches are the DataFrames that Spark hands over."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @property
    def schema(self) -> Schema:
        return self._schema

    def open(self, context: SpoutContext) -> BatchPlanner:
        raise AssertionError("Spark plans the batches of foreachBatch")

    def read(self, metadata: Any) -> Read:
        raise AssertionError("Spark reads the batches of foreachBatch")

    def identity(self) -> Mapping[str, Any]:
        return {"spout": "foreachBatch"}


def query_id(frame: DataFrame, batch_id: int, home: Any) -> str | None:
    """Return the id that Spark keeps in the checkpoint of the query whose batch this is.

    Spark does not tell it to a sink on Connect. There it is looked for among the queries of
    `home`, the session in which the query was started: it has a trigger at work, and has not
    finished this batch. None if several are like that. "" if no query calls.
    """
    session = frame.sparkSession
    if not is_connect(session):
        return session.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
    queries = (home or session).streams.active
    here = [query.id for query in queries if _may_be_at(query, batch_id)]
    return here[0] if len(here) == 1 else None


def active_connect_session() -> Any:
    """Return the active session of Spark Connect, if there is one."""
    from pyspark.sql.connect.session import SparkSession

    return SparkSession.getActiveSession()


def _may_be_at(query: Any, batch_id: int) -> bool:
    done = query.lastProgress
    return query.status["isTriggerActive"] and (done is None or done["batchId"] < batch_id)
