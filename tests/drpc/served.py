"""Any topology in this process, without Spark, on a thread, with its server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waterspout import Config, Run
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.progress import BatchTotals, WaveTotals
from waterspout.coordination.recording import Recorder
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.coordination.wave_loop import WaveLoop, WaveSetup
from waterspout.serving import bound
from waterspout.testing import LocalRun
from waterspout.testing._waves import InProcessWaves
from waterspout.topology import Topology
from waterspout.trident import TridentTopology


class _Idling(InProcessWaves):
    """Waits a little where there is no wave, as one on Spark does."""

    def poll(self, wait_s):
        ended = super().poll(wait_s)
        if ended is None:
            time.sleep(min(wait_s, 0.001))
        return ended


class _Stepped:
    """The loop of a `LocalRun`, of which each step lets a phase of a batch go on."""

    def __init__(self, local: LocalRun) -> None:
        self._local = local
        self.active = True

    def __getattr__(self, name):
        return getattr(self._local.loop, name)

    def step(self, wait_s: float = 0.0) -> None:
        self._local.loop.step(min(wait_s, 0.001))
        self._local.engine.step()


@contextmanager
def serving(
    topology: Topology | TridentTopology, place: Path, **options
) -> Iterator[tuple[Run, str]]:
    """Run a topology and serve it; yield the run and the address of the server."""
    conf = Config(idle_poll_millis=1, home=str(place), serve="127.0.0.1:0", **options)
    store, server = MemoryCoordinationStore(topology.name), bound(conf)
    functions = {}
    if isinstance(topology, Topology):
        setup = WaveSetup(topology, _Idling(), store, DeadLetters(None), conf)
        loop, close, totals = WaveLoop(setup, time.monotonic), (lambda: None), WaveTotals()
    else:
        local = LocalRun(topology, conf, store=store)
        loop, close, totals = _Stepped(local), local.close, BatchTotals()
        functions = dict(local.functions)
    recorder = Recorder(topology.name, totals)
    loop.events.subscribe(recorder)
    if isinstance(topology, Topology):
        loop.start()

    def attend(run: Run) -> None:
        run._functions.update(functions)
        server.start(run, topology)

    run = Run(loop, recorder, store, conf, explain=str, close=close, attend=attend)
    try:
        yield run, server.url
    finally:
        run.stop()
