"""Requests that need Spark: one job for all that wait."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout.spark.compiler import Compiler
from waterspout.spark.dry_run import dry_compile
from waterspout.spark.failures import translate
from waterspout.spark.lowerings import Building, lowers
from waterspout.spark.reads import from_table
from waterspout.spark.session import SparkRuntime
from waterspout.spark.staging import Collected, Staging
from waterspout.spark.steps import BatchRows, StepRunner
from waterspout.state._head import Claim
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.drpc.nodes import REQUEST, Completed, DrpcSource, TransformEach
from waterspout.trident.drpc.rewriting import RequestPlan, by_request
from waterspout.trident.drpc.running import (
    InDriver,
    Patience,
    RequestFailure,
    RequestRunner,
    pausing,
)
from waterspout.trident.drpc.streams import why_spark
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.nodes import Query, Transform
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.schedule import DropRows
from waterspout.trident.runtime.states import open_state, run_query

__all__ = ["OnSpark", "request_runners"]

_THERE = "_waterspout_there"
_NOTHING = "_waterspout_nothing"


def request_runners(plan: Plan, conf: Config, runtime: SparkRuntime) -> list[RequestRunner]:
    """Return what runs the functions of a plan; a bad expression in one of them shows now."""
    found: list[RequestRunner] = []
    for stream in plan.calls:
        call = by_request(stream, plan)
        if why_spark(stream, plan.hints) is None:
            found.append(InDriver(call, conf))
        else:
            dry_compile(call.plan, conf, runtime)
            found.append(OnSpark(call, conf, runtime))
    return found


class OnSpark:
    """Runs requests as Spark jobs, all that are given at once in one."""

    def __init__(self, call: RequestPlan, conf: Config, runtime: SparkRuntime) -> None:
        self.call = call
        self._conf = conf
        self._runtime = runtime

    def run(self, args: Sequence[str], patience: Patience) -> pa.Table | RequestFailure:
        """Run the job; cancel it when nobody waits any more."""
        runtime, call = self._runtime, self.call
        tag = f"waterspout-{call.plan.name}-drpc-{uuid.uuid4().hex}"
        staging, left = Staging([]), min(patience.seconds_left, threading.TIMEOUT_MAX)
        alarm = threading.Timer(max(left, 0.0), runtime.cancel, [tag])
        alarm.daemon = True
        alarm.start()
        try:
            with runtime.tagged(tag, f"{call.plan.name} drpc {call.function}", "drpc"):
                batch = BatchRows(TransactionAttempt(0, 0), staging)
                return _RequestSteps(runtime, call, self._conf, tuple(args), patience).answer(batch)
        except Exception as error:
            if patience.seconds_left <= 0:
                return RequestFailure(TimeoutError("the Spark job was not done in time"))
            translated = translate(error, runtime)
            operation = getattr(translated, "operation", None)
            known = translated if isinstance(translated, Exception) else error
            return RequestFailure(known, operation)
        finally:
            alarm.cancel()
            staging.release(runtime)


class _RequestSteps(StepRunner):
    """Carries out the steps for some requests."""

    def __init__(
        self,
        runtime: SparkRuntime,
        call: RequestPlan,
        conf: Config,
        args: tuple[str, ...],
        patience: Patience,
    ) -> None:
        super().__init__(runtime, call.plan, conf)
        self._call = call
        self._patience = patience
        self._compiler = Compiler(runtime, call.plan, conf, args, patience.seconds_left)

    def answer(self, batch: BatchRows) -> pa.Table:
        """Return the rows of the answers."""
        self.process(batch, small=True)
        found = batch.rows[self._call.result]
        assert isinstance(found, Collected)
        return found.table

    def _drop(self, step: DropRows, batch: BatchRows) -> None:
        if step.node is self._call.result:
            table = self._table(batch.rows[step.node])
            batch.rows[step.node] = Collected(table)
        else:
            super()._drop(step, batch)

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
        pause = None if spec.static else pausing(self._patience.deadline)
        with ExitStack() as opened:
            state = opened.enter_context(
                closing(open_state(spec, self._conf, partition, None, pause))
            )
            return run_query(node, spec, state, rows, None, self._conf, partition)


@lowers(DrpcSource)
def _requests(node: DrpcSource, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    columns: list[list[Any]] = [list(range(len(building.args))), list(building.args)]
    return from_table(building.spark, pa.table(columns, schema=arrow_schema(node.schema)))


@lowers(TransformEach)
def _transformed(
    node: TransformEach, parents: Sequence[DataFrame], building: Building
) -> DataFrame:
    """Call the function for each request: it may aggregate, and must not see another's rows."""
    (rows,) = parents
    own = node.schema.without([REQUEST])
    alone = Transform(number=node.number, schema=own, name=node.title, function=node.function)
    made = []
    # Without requests it is called once all the same: what does not fit shows then.
    for request in range(max(len(building.args), 1)):
        given = rows.where(F.col(REQUEST) == request).drop(REQUEST)
        frame = lowers.of(alone)(alone, [given], building)
        made.append(frame.select(F.lit(request).cast("int").alias(REQUEST), *own.names))
    return reduce(DataFrame.union, made)


@lowers(Completed)
def _completed(node: Completed, parents: Sequence[DataFrame], building: Building) -> DataFrame:
    (there,), names = parents, [name for name in node.schema.names if name != REQUEST]
    nothing = _for_nothing(node, building)
    row = F.struct(*names)
    given = nothing.agg(F.collect_list(row).alias(_NOTHING))
    numbers = building.spark.range(len(building.args))
    requests = numbers.select(F.col("id").cast("int").alias(REQUEST))
    joined = requests.join(there.withColumn(_THERE, F.lit(True)), REQUEST, "left")
    rows = F.when(F.col(_THERE).isNull(), F.col(_NOTHING)).otherwise(F.array(row))
    return joined.crossJoin(F.broadcast(given)).select(REQUEST, F.inline(rows))


def _for_nothing(node: Completed, building: Building) -> DataFrame:
    """Return what an aggregation gives for a batch without rows, as one of a plan of its own."""
    before = tuple(
        DrpcSource(number=-number, schema=parent.schema, function="")
        for number, parent in enumerate(node.of.parents, 1)
    )
    alone = replace(node.of, parents=before)
    # On one partition, which runs though it is empty.
    ones = dict.fromkeys([alone.number, *(one.number for one in before)], 1)
    plan = replace(building.plan, nodes=(*before, alone), hints=ones)
    moves = (Exchange(alone, Deal.IN_ONE_TASK, 1),) if len(before) > 1 else ()
    empty = [from_table(building.spark, arrow_schema(one.schema).empty_table()) for one in before]
    return lowers.of(alone)(alone, empty, replace(building, plan=plan, exchanges=moves))
