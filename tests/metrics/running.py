"""Runs on a thread without Spark, for tests of what listens to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.coordination.commanded import Stepping
from waterspout import Config
from waterspout.coordination.progress import BatchTotals
from waterspout.coordination.recording import Recorder
from waterspout.coordination.run import Run
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology


def counting(*words: str, name: str = "words", size: int = 1) -> TridentTopology:
    """Counts words, each a batch of its own."""
    topology = TridentTopology(name)
    stream = topology.new_stream(
        "words", FixedBatchSpout("word string", size, [(w,) for w in words])
    )
    stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


@contextmanager
def running(
    topology: TridentTopology, config: Config | None = None, *, attend=None
) -> Iterator[Run]:
    """Run a Trident topology on a thread, as `submit` does on Spark."""
    conf = config or Config(idle_poll_millis=1, retry_backoff_millis=0)
    store = MemoryCoordinationStore(topology.name)
    local = LocalRun(topology, conf, store=store)
    recorder = Recorder(topology.name, BatchTotals())
    local.loop.events.subscribe(recorder)
    count = local._location.count
    run = Run(
        Stepping(local), recorder, store, conf,
        explain=str, close=local.close, letter_count=count, attend=attend,
    )  # fmt: skip
    try:
        yield run
    finally:
        run.stop()
