"""From a transactional topology to a running one: check, start the engine, start the loop."""

from __future__ import annotations

import time
from typing import Any

from waterspout.config import Config
from waterspout.coordination.loop import BatchLoop, Parts
from waterspout.coordination.recording import BatchRecorder
from waterspout.coordination.run import Run
from waterspout.spark.batch_bolts import BatchBoltEngine
from waterspout.spark.core_run import prepare_core
from waterspout.spark.session import SparkRuntime
from waterspout.spark.starting import embedded_session
from waterspout.spouts.emitters import EmittedSpout
from waterspout.transactional.builder import TransactionalTopology
from waterspout.transactional.explain import explain

__all__ = ["start_transactional"]

_PENDING = "topology.max.spout.pending"


def start_transactional(topology: TransactionalTopology, spark: Any, conf: Config) -> Run:
    """Check everything that can be checked, then run."""
    # Said of the spout alone, it is still the number of batches: there is one spout.
    pending = topology.components[topology.spout_id].configuration.get(_PENDING)
    if pending is not None:
        conf = conf.replace(max_spout_pending=pending)
    store, folder = prepare_core(topology, conf)
    try:
        runtime = SparkRuntime(spark if spark is not None else embedded_session())
        engine = BatchBoltEngine(runtime, topology, conf)
    except BaseException:
        store.release()
        raise
    spout_id = topology.spout_id
    spec = topology.components[spout_id]
    context = topology.context(topology.tasks[spout_id][0])
    parts = Parts(
        topology=topology.name,
        fingerprint=topology.fingerprint(),
        spouts={spout_id: EmittedSpout(spec.component, context, spec.configuration)},
        states={},
        store=store,
        engine=engine,
        config=conf,
        folder=folder,
    )
    recorder = BatchRecorder(topology.name)
    loop = BatchLoop(parts, time.monotonic, recorder)
    try:
        loop.start()
        return Run(
            topology.name,
            loop,
            recorder,
            store,
            conf,
            explain=lambda: explain(topology, conf, runtime.cores or 2),
            close=engine.close,
        )
    except BaseException:
        engine.close()
        raise
