"""From a Trident topology to a running one: check, compile once, start the loop."""

from __future__ import annotations

import time
from typing import Any

from waterspout.config import Config
from waterspout.coordination.batch_clock import clock_for
from waterspout.coordination.loop import BatchLoop, Parts
from waterspout.coordination.recording import BatchRecorder
from waterspout.coordination.run import Run
from waterspout.spark.checks import dry_compile
from waterspout.spark.engine import SparkEngine
from waterspout.spark.preflight import Prepared, prepare
from waterspout.spark.session import SparkRuntime
from waterspout.spark.starting import embedded_session
from waterspout.trident.plan.explain import explain
from waterspout.trident.topology import TridentTopology
from waterspout.trident.windowing.build import windows_by_time

__all__ = ["start_trident"]


def start_trident(topology: TridentTopology, spark: Any, conf: Config) -> Run:
    """Check everything that can be checked, then run."""
    prepared = prepare(topology, conf)
    try:
        runtime = SparkRuntime(spark if spark is not None else embedded_session())
        dry_compile(prepared.plan, conf, runtime)
        return _start(prepared, runtime, conf)
    except BaseException:
        prepared.close()
        raise


def _start(prepared: Prepared, runtime: SparkRuntime, conf: Config) -> Run:
    plan = prepared.plan
    engine = SparkEngine(runtime, plan, conf)
    parts = Parts(
        topology=plan.name,
        fingerprint=plan.fingerprint(),
        spouts={spout_id: node.spout for spout_id, node in plan.sources.items()},
        states=prepared.states,
        store=prepared.store,
        engine=engine,
        config=conf,
        folder=prepared.folder,
        clock=clock_for(windows_by_time(plan)),
    )

    def close() -> None:
        engine.close()
        prepared.close()

    recorder = BatchRecorder(plan.name)
    loop = BatchLoop(parts, time.monotonic, recorder)
    try:
        loop.start()
        engine.enroll(loop.writer)
        return Run(
            plan.name,
            loop,
            recorder,
            prepared.store,
            conf,
            explain=lambda: explain(plan, conf),
            close=close,
        )
    except BaseException:
        engine.close()
        raise
