"""A run in this process, without Spark, that commands reach: real loop, states and store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from waterspout import Config
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.progress import BatchTotals
from waterspout.coordination.recording import Recorder
from waterspout.coordination.run import Run
from waterspout.coordination.store import CoordinationStore
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun
from waterspout.trident import Count, Split, TridentTopology

NAME = "words"

T = TypeVar("T")


def until(look: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Look again and again; return what is found, and fail if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        time.sleep(0.005)
    return found


class Stepping:
    """The loop of a `LocalRun`, of which each step lets a phase of a batch go on, unless `held`."""

    def __init__(self, local: LocalRun) -> None:
        self._local = local
        self.held = threading.Event()

    def __getattr__(self, name):
        return getattr(self._local.loop, name)

    def step(self, wait_s: float = 0.0) -> None:
        self._local.loop.step(min(wait_s, 0.001))
        if not self.held.is_set():
            self._local.engine.step()

    @property
    def active(self) -> bool:
        return self._local.loop.active

    @active.setter
    def active(self, active: bool) -> None:
        self._local.loop.active = active


def words(place: Path, files: int = 3) -> TridentTopology:
    """Counts the words of a folder, a file a batch."""
    data = place / "data"
    data.mkdir(exist_ok=True)
    for n in range(files):
        # Under its name when it is whole: a run may be looking.
        (data / f".{n}.txt").write_text("to be\n")
        (data / f".{n}.txt").rename(data / f"{n}.txt")
    topology = TridentTopology(NAME)
    stream = topology.new_stream("in", FileSpout(str(data), max_files=1))
    counted = stream.each("value", Split(), "word").name("split").group_by("word")
    counted.persistent_aggregate(
        SQLiteState.opaque(place / "counts.db", table="counts"), Count(), "count"
    )
    return topology


@contextmanager
def running(
    topology: TridentTopology,
    store: CoordinationStore,
    config: Config | None = None,
    *,
    held: bool = False,
) -> Iterator[tuple[Run, Stepping]]:
    """Run a topology on a thread; `held`: no phase of a batch goes on until it is let."""
    conf = config or Config(idle_poll_millis=1)
    local = LocalRun(topology, conf, store=store)
    loop = Stepping(local)
    if held:
        loop.held.set()
    recorder = Recorder(topology.name, BatchTotals())
    local.loop.events.subscribe(recorder)
    run = Run(loop, recorder, store, conf, explain=str, close=local.close)
    try:
        yield run, loop
    finally:
        loop.held.clear()
        run.stop()


def embedded(place: Path, **options) -> EmbeddedStore:
    return EmbeddedStore(place / "home", NAME, **options)
