"""From a core topology to a running one: check, start the engine, start the loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from waterspout.config import Config
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.recording import WaveRecorder
from waterspout.coordination.run import Run
from waterspout.coordination.store import CoordinationStore, refuse_changed_graph
from waterspout.coordination.wave_loop import WaveLoop, WaveParts
from waterspout.spark.preflight import coordination_store
from waterspout.spark.session import SparkRuntime
from waterspout.spark.starting import embedded_session
from waterspout.spark.supersteps import SparkWaves
from waterspout.topology.graph import Topology
from waterspout.waves.explain import explain

__all__ = ["prepare_core", "start_core"]


def prepare_core(topology: Topology, conf: Config) -> tuple[CoordinationStore, Path]:
    """Return the store of a topology and its folder, or raise what is wrong; writes nothing."""
    store = coordination_store(topology.name, conf)
    try:
        ledger = store.peek()
        if ledger is not None:
            refuse_changed_graph(ledger.fingerprint, topology.fingerprint(), topology.name)
        store.refuse_if_held()
    except BaseException:
        store.release()
        raise
    return store, conf.home_path().absolute() / topology.name


def start_core(topology: Topology, spark: Any, conf: Config) -> Run:
    """Check everything that can be checked, then run."""
    store, folder = prepare_core(topology, conf)
    try:
        runtime = SparkRuntime(spark if spark is not None else embedded_session())
        engine = SparkWaves(runtime, topology.name, cancel_wait_s=conf.cancel_wait_secs)
    except BaseException:
        store.release()
        raise
    letters = DeadLetters(folder, limit=conf.dead_letters_max)
    recorder = WaveRecorder(topology.name)
    loop = WaveLoop(WaveParts(topology, engine, store, letters, conf), time.monotonic, recorder)
    try:
        loop.start()
        return Run(
            topology.name,
            loop,
            recorder,
            store,
            conf,
            explain=lambda: explain(topology, conf, engine.workers),
            close=engine.close,
        )
    except BaseException:
        engine.close()
        raise
