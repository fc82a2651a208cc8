"""Transactional topologies without Spark: the same loop, coordinator, emitters and bolts.

`LocalBatches` runs one for a unit test. `InProcessBatchBolts` is the engine below it: a phase stops
between any two parts, so that a simulation can let others go on there, or have workers die.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

from waterspout.config import Config
from waterspout.coordination.engine import CommitOrder, Committed, Processed
from waterspout.coordination.events import EventBus, Listener
from waterspout.coordination.loop import BatchLoop, BatchSetup
from waterspout.coordination.store import CoordinationStore, MemoryCoordinationStore
from waterspout.errors import FailedException
from waterspout.spouts.emitters import EmittedSpout
from waterspout.testing.capture import Capture
from waterspout.testing.stepping import SteppedEngine, Steps
from waterspout.topology.pickling import require_picklable
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.builder import TransactionalTopology
from waterspout.transactional.ledger import Metadata
from waterspout.transactional.runtime import (
    FAILED,
    BatchHeader,
    commit_stages,
    first_rows,
    run_stage,
)
from waterspout.waves.part import DRIVER
from waterspout.waves.rows import Row
from waterspout.waves.shape import WaveShape, collapsed, spread

__all__ = ["InProcessBatchBolts", "LocalBatches", "LostWorker"]

_TRIES = 4  # as Spark's spark.task.maxFailures

_PAUSE_S = 0.05  # how far the clock moves where nothing happens


class LostWorker(Exception):
    """Raised at a kill point in place of a worker's death: its part is run again elsewhere."""


@dataclass(frozen=True, slots=True)
class _Staged:
    rows: list[Row]
    shape: WaveShape


class InProcessBatchBolts(SteppedEngine):
    """Runs the parts of a transactional topology's phases one by one.

    `loses_result()` is asked after each part; True: what it did is done, but its worker dies before
    anyone hears of it, and the part is run again. The same happens where a kill point, or a bolt,
    raises `LostWorker`.
    """

    def __init__(
        self,
        topology: TransactionalTopology,
        conf: Config,
        *,
        workers: int = 2,
        loses_result: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._conf = conf
        self._spout_id = topology.spout_id
        self._late = topology.late
        outline = topology.outline()
        self._shapes = (collapsed(outline), spread(outline, workers))
        self._components = {
            spec.id: require_picklable(spec.component, f"component {spec.id!r}")
            for spec in topology.components.values()
        }
        self._loses_result = loses_result
        self._largest: int | None = None
        self._staged: dict[TransactionAttempt, _Staged] = {}

    def start_processing(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        self.start(attempt, self._process(attempt, metadata))

    def start_commit(self, order: CommitOrder) -> None:
        self.start(order.attempt, self._commit(order, self._staged[order.attempt]))

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._staged.pop(attempt, None)
        super().cancel(attempt)

    def release(self, attempt: TransactionAttempt) -> None:
        self._staged.pop(attempt)

    def _process(self, attempt: TransactionAttempt, metadata: Metadata) -> Steps:
        small = self._largest is not None and self._largest <= self._conf.wave_collapse_tuples
        shape = self._shapes[0 if small else 1]
        header = self._header(attempt, commit=False, metadata=metadata[self._spout_id])
        rows = yield from self._through(shape, header, range(len(shape.stages)), first_rows(shape))
        executed = sum(row.part for row in rows if row.stage == DRIVER)
        self._largest = max(executed, (self._largest or 0) * 3 // 4)
        self._staged[attempt] = _Staged([row for row in rows if row.stage >= 0], shape)
        yield
        return Processed(attempt, executed_tuples=executed)

    def _commit(self, order: CommitOrder, staged: _Staged) -> Steps:
        yield
        order.claim()
        header = self._header(order.attempt, commit=True, resolved=order.resolved)
        stages = commit_stages(staged.shape, self._late)
        rows = yield from self._through(staged.shape, header, stages, staged.rows)
        executed = sum(row.part for row in rows if row.stage == DRIVER)
        yield
        return Committed(order.attempt, committed_tuples=executed)

    def _through(
        self, shape: WaveShape, header: BatchHeader, stages: Iterable[int], rows: list[Row]
    ) -> Generator[None, None, list[Row]]:
        """Lead rows through some stages, with a stop before each part."""
        for stage in stages:
            here: dict[int, list[Row]] = {}
            onward: list[Row] = []
            for row in rows:
                if row.stage == stage:
                    here.setdefault(row.part, []).append(row)
                else:
                    onward.append(row)
            for _, given in sorted(here.items()):
                yield
                onward += yield from self._part(shape, header, stage, given)
            rows = onward
        for row in rows:
            if row.stage == FAILED:
                raise FailedException(row.data.decode("utf-8"))
        return rows

    def _part(
        self, shape: WaveShape, header: BatchHeader, stage: int, given: list[Row]
    ) -> Generator[None, None, list[Row]]:
        """Run one part, again where its worker dies."""
        for left in reversed(range(_TRIES)):
            try:
                made = list(run_stage(shape, header, stage, given))
            except LostWorker:
                if not left:
                    raise
            else:
                if not left or not self._loses_result():
                    return made
            yield
        raise AssertionError("the last try returns or raises")

    def _header(self, attempt: TransactionAttempt, **more: Any) -> BatchHeader:
        return BatchHeader(
            run="in process",
            attempt=attempt,
            spout_id=self._spout_id,
            late=self._late,
            conf=self._conf.to_dict(),
            components=self._components,
            **more,
        )


class LocalBatches:
    """A transactional topology driven by hand: `step` does one thing, `finish` all there is to do.

    Nobody waits: where nothing happens any more but the pause before a replay, the clock moves on.

    >>> from waterspout.transactional import *
    >>> class Count(BatchBolt, Committer):
    ...     output_fields = ("tx", "count")
    ...     count = 0
    ...
    ...     def execute(self, tuple):
    ...         self.count += 1
    ...
    ...     def finish_batch(self):
    ...         self.collector.emit([self.id, self.count])
    >>> spout = MemoryTransactionalSpout([["a", "b", "c"]], "word", 2)
    >>> builder = TransactionalTopologyBuilder("counted", "words", spout)
    >>> _ = builder.set_bolt("count", Count()).global_grouping("words")
    >>> run = LocalBatches(builder.build_topology())
    >>> run.finish()
    >>> [(str(attempt), count) for attempt, count in run.emitted("count")]
    [('1:0', 2), ('2:0', 1)]
    """

    def __init__(
        self,
        topology: TransactionalTopology,
        config: Config | None = None,
        *,
        store: CoordinationStore | None = None,
        clock: Callable[[], float] | None = None,
        listener: Listener | None = None,
        workers: int = 2,
        loses_result: Callable[[], bool] = lambda: False,
        keep_emitted: bool = True,
    ) -> None:
        conf = config or Config()
        self.name = topology.name
        self._now = time.monotonic()
        self._capture = Capture()
        shown = topology
        if keep_emitted:
            caught = self._capture.added_to(topology)
            shown = TransactionalTopology(
                caught.name, caught.components, topology.spout_id, topology.committers
            )
        self.engine = InProcessBatchBolts(shown, conf, workers=workers, loses_result=loses_result)
        spout = topology.components[topology.spout_id]
        context = topology.context(topology.tasks[topology.spout_id][0])
        setup = BatchSetup(
            topology=topology.name,
            fingerprint=topology.fingerprint(),
            spouts={spout.id: EmittedSpout(spout.component, context, spout.configuration)},
            states={},
            store=store or MemoryCoordinationStore(topology.name),
            engine=self.engine,
            config=conf,
        )
        self.loop = BatchLoop(setup, clock or (lambda: self._now), EventBus(listener))
        self.loop.start()

    def emitted(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return what a component has emitted to a stream, attempt first, replays included.

        A direct stream shows nothing: only the task that is named gets its tuples.
        """
        return self._capture.taken(component, stream)

    def step(self, choose: Callable[[int], int] = lambda n: 0) -> bool:
        """Let the loop look once, then one phase go on by one step; False if there was none."""
        self.loop.step()
        if self.engine.step(choose):
            return True
        self.advance(_PAUSE_S)
        return False

    def advance(self, seconds: float) -> None:
        """Let time pass: for timeouts, and for the pause before a replay."""
        self._now += seconds

    def finish(self, max_steps: int = 1_000_000) -> None:
        """Step until the source has nothing more and every batch is committed."""
        for _ in range(max_steps):
            if not self.step() and self.loop.is_idle:
                return
        raise TimeoutError(f"{self.name} was not done after {max_steps} steps")

    def close(self) -> None:
        """Give up the lease."""
        self.loop.close()
        self._capture.close()
