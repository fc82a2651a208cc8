"""From a topology to a run on Spark: check, start the engine, start the loop.

The three kinds of topologies differ in what is checked, in their engine, and in their loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._safe_repr import with_article
from waterspout.coordination.batch_clock import clock_for
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.factory import coordination_store, make_way
from waterspout.coordination.graph_changes import NOTHING_CHANGED, Comparison
from waterspout.coordination.loop import BatchLoop, BatchSetup
from waterspout.coordination.preflight import prepare
from waterspout.coordination.progress import BatchTotals, WaveTotals
from waterspout.coordination.recording import Recorder
from waterspout.coordination.run import Run
from waterspout.coordination.store import CoordinationStore, refuse_changed_graph
from waterspout.coordination.transactions import explain as explain_transactions
from waterspout.coordination.transactions import prepare_batches
from waterspout.coordination.wave_loop import WaveLoop, WaveSetup
from waterspout.errors import ConfigError, TopologyError
from waterspout.spark.batch_bolts import BatchBoltEngine
from waterspout.spark.dry_run import dry_compile
from waterspout.spark.engine import SparkEngine
from waterspout.spark.requests import request_runners
from waterspout.spark.session import SparkRuntime, is_connect
from waterspout.spark.starting import embedded_session
from waterspout.spark.supersteps import SparkWaves
from waterspout.spark.workers import require_workers
from waterspout.spouts._emitters import EmittedSpout
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology
from waterspout.trident.drpc.running import RequestRunner
from waterspout.trident.isolation.rewriting import count_letters_of, letters_of
from waterspout.trident.plan.explain import explain as explain_plan
from waterspout.trident.plan.explain import refuse_weak
from waterspout.trident.windowing.build import windows_by_time
from waterspout.waves.explain import explain as explain_waves

__all__ = ["Attend", "prepare_bolts", "start"]

# Makes a session at the last moment: no JVM is started for a topology that is refused.
_Session = Callable[[], SparkRuntime]

Attend = Callable[[Run], object]
"""Is called with a run before its first step."""

_PENDING = "topology.max.spout.pending"


def start(
    topology: Topology | TridentTopology,
    spark: SparkSession | None,
    conf: Config,
    attend: Attend | None = None,
) -> Run:
    """Check everything that can be checked, then run; without a session on one of our own.

    `attend` is called with the run before its first step; what it raises ends the start.
    """

    def session() -> SparkRuntime:
        if spark is not None and not (isinstance(spark, SparkSession) or is_connect(spark)):
            raise ConfigError(
                f"a topology runs on a SparkSession, not on {with_article(type(spark).__name__)}; "
                "without one it runs on an embedded local Spark"
            )
        runtime = SparkRuntime(embedded_session() if spark is None else spark)
        require_workers(runtime)
        return runtime

    make_way(topology.name, conf)
    with ExitStack() as opened:
        match topology:
            case TridentTopology():
                return _trident(topology, conf, opened, session, attend)
            case TransactionalTopology():
                return _transactional(topology, conf, opened, session, attend)
            case Topology():
                return _core(topology, conf, opened, session, attend)
            case _:
                raise TopologyError(f"submit takes a topology, not {type(topology).__name__}")


def _launch(
    loop: BatchLoop | WaveLoop,
    setup: BatchSetup | WaveSetup,
    opened: ExitStack,
    explain: Callable[[], str],
    attend: Attend | None,
    letters: Callable[[], list[DeadLetter]] = list,
    letter_count: Callable[[], int] = int,
    runners: Sequence[RequestRunner] = (),
) -> Run:
    """Start a loop, and the run that drives it and closes what was opened for it."""
    totals = WaveTotals() if isinstance(loop, WaveLoop) else BatchTotals()
    recorder = Recorder(loop.name, totals)
    loop.events.subscribe(recorder)
    loop.start()
    close = opened.pop_all().close
    return Run(
        loop,
        recorder,
        setup.store,
        setup.config,
        explain=explain,
        close=close,
        letters=letters,
        letter_count=letter_count,
        attend=attend,
        runners=runners,
    )


def prepare_bolts(topology: Topology, conf: Config) -> tuple[CoordinationStore, Path, Comparison]:
    """Return the store of a topology of bolts, its folder and its changes, or raise what is wrong.

    Writes nothing.
    """
    store = coordination_store(topology.name, conf)
    changes = NOTHING_CHANGED
    try:
        ledger = store.peek()
        if ledger is not None:
            changes = refuse_changed_graph(ledger, topology.fingerprint(), conf.retire)
        store.refuse_if_held()
    except BaseException:
        store.release()
        raise
    return store, conf.home_path().absolute() / topology.name, changes


def _core(
    topology: Topology,
    conf: Config,
    opened: ExitStack,
    session: _Session,
    attend: Attend | None,
) -> Run:
    store, folder, changes = prepare_bolts(topology, conf)
    opened.callback(store.release)
    engine = SparkWaves(session(), topology.name, cancel_wait_s=conf.cancel_wait_secs)
    opened.callback(engine.close)
    letters = DeadLetters(folder, limit=conf.dead_letters_max)

    def read_letters() -> list[DeadLetter]:
        with closing(DeadLetters(folder)) as stored:  # those of the loop end with it
            return stored.all()

    def count_letters() -> int:
        with closing(DeadLetters(folder)) as stored:
            return len(stored)

    setup = WaveSetup(topology, engine, store, letters, conf)
    loop = WaveLoop(setup, time.monotonic)

    def explain() -> str:
        return changes.added_to(explain_waves(topology, conf, loop.workers, loop.widths))

    return _launch(loop, setup, opened, explain, attend, read_letters, count_letters)


def _transactional(
    topology: TransactionalTopology,
    conf: Config,
    opened: ExitStack,
    session: _Session,
    attend: Attend | None,
) -> Run:
    spec = topology.components[topology.spout_id]
    # Set for the spout alone, it is still the number of batches: there is one spout.
    pending = spec.configuration.get(_PENDING)
    if pending is not None:
        conf = conf.replace(max_spout_pending=pending)
    prepared = prepare_batches(topology, conf)
    opened.callback(prepared.close)
    topology = prepared.topology
    runtime = session()
    spout = EmittedSpout.of(topology)
    engine = BatchBoltEngine(runtime, topology, spout, conf)
    opened.callback(engine.close)
    states, store = prepared.states, prepared.store
    setup = BatchSetup.of_bolts(topology, spout, states, store, engine, conf)
    loop = BatchLoop(setup, time.monotonic)

    def explain() -> str:
        text = explain_transactions(topology, engine.conf, engine.workers, engine.widths)
        return prepared.changes.added_to(text)

    return _launch(loop, setup, opened, explain, attend)


def _trident(
    topology: TridentTopology,
    conf: Config,
    opened: ExitStack,
    session: _Session,
    attend: Attend | None,
) -> Run:
    prepared = prepare(topology, conf)
    opened.callback(prepared.close)
    runtime = session()
    plan = replace(prepared.plan, recomputes=runtime.recomputes)
    if conf.strict:
        refuse_weak(plan)  # only now it is known on which session
    dry_compile(plan, conf, runtime)
    runners = request_runners(plan, conf, runtime)
    engine = SparkEngine(runtime, plan, conf)
    opened.callback(engine.close)
    setup = BatchSetup(
        pins_batches=prepared.plan.pins_batches,
        topology=plan.name,
        fingerprint=plan.fingerprint(),
        spouts={spout_id: node.spout for spout_id, node in plan.sources.items()},
        states=prepared.states,
        store=prepared.store,
        engine=engine,
        config=conf,
        clock=clock_for(windows_by_time(plan)),
    )
    loop = BatchLoop(setup, time.monotonic)

    def explain() -> str:
        return prepared.changes.added_to(explain_plan(engine.plan, engine.conf))

    letters, count = partial(letters_of, plan), partial(count_letters_of, plan)
    return _launch(loop, setup, opened, explain, attend, letters, count, runners)
