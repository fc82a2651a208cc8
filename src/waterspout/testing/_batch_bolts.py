"""Transactional topologies without Spark: the same loop, coordinator, emitters and bolts.

`LocalBatches` runs one for a unit test. `InProcessBatchBolts` is the engine below it: a phase stops
between any two shards, so that a simulation can let others go on there, or have workers die.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from waterspout._config import Config
from waterspout.coordination.engine import Committed, Processed, Wrote
from waterspout.coordination.events import Listener
from waterspout.coordination.loop import BatchLoop, BatchSetup
from waterspout.coordination.sizing import sizing_policy
from waterspout.coordination.store import CoordinationStore, MemoryCoordinationStore
from waterspout.coordination.transactions import checked_topology, note_written, open_states
from waterspout.spouts._emitters import EmittedSpout
from waterspout.state._head import Claim
from waterspout.testing._capture import CapturedRun
from waterspout.testing._stepping import SteppedEngine, Steps
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._ledger import Metadata
from waterspout.transactional._runtime import (
    PhasePlan,
    Phases,
    counted,
    executed,
    first_rows,
    raise_failed,
)
from waterspout.waves.bolts import Worker
from waterspout.waves.shards import COUNTED, Row, run_stage

__all__ = ["InProcessBatchBolts", "LocalBatches", "LostWorker"]

_TRIES = 4  # as Spark's spark.task.maxFailures

_PENDING_MAX = 3  # batches in flight, where batch_sizing chooses
_PAUSE_S = 0.05  # how far the clock moves where nothing happens


class LostWorker(Exception):
    """Raised at a kill point to stand for a worker's death: its shard is run again elsewhere."""


class InProcessBatchBolts(SteppedEngine[tuple[PhasePlan, list[Row]]]):
    """Runs the shards of a transactional topology's phases one by one.

    `loses_result()` is asked after each shard; True: what it did is done, but its worker dies
    before anyone hears of it, and the shard is run again. The same happens where a kill point, or
    a bolt, raises `LostWorker`.
    """

    def __init__(
        self,
        topology: TransactionalTopology,
        spout: EmittedSpout,
        conf: Config,
        *,
        workers: int = 2,
        loses_result: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._topology = topology
        self._spout = spout
        self._phases = Phases(topology, conf, workers)
        self._loses_result = loses_result

    def start_processing(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        self.start(attempt, self._process(attempt, metadata))

    def start_commit(self, claim: Claim, move_heads: Callable[[], None]) -> None:
        staged = self._work[claim.attempt]
        self.start(claim.attempt, self._commit(claim, move_heads, *staged))

    def _process(self, attempt: TransactionAttempt, metadata: Metadata) -> Steps:
        began = time.monotonic()
        phase = self._phases.processing(attempt, metadata)
        taken = self._spout.taken(phase.header.metadata)
        rows = yield from self._through(
            phase, first_rows(phase.shape, phase.header.spout_id, taken)
        )
        count = executed(rows)
        self._phases.processed(count)
        self._work[attempt] = (
            phase,
            [row for row in rows if row.stage >= 0 or row.stage == COUNTED],
        )
        yield
        took = time.monotonic() - began
        return Processed(attempt, processing_s=took, executed_tuples=count)

    def _commit(
        self,
        claim: Claim,
        move_heads: Callable[[], None],
        processing: PhasePlan,
        staged: list[Row],
    ) -> Steps:
        yield
        began = time.monotonic()
        move_heads()
        phase = self._phases.commit(processing, claim.resolved, claim.writer)
        rows = yield from self._through(phase, staged)
        note_written(self._topology, rows, claim)
        for state in self._topology.states:
            self.report(Wrote(claim.attempt, state))
        yield
        return Committed(
            claim.attempt,
            commit_s=time.monotonic() - began,
            committed_tuples=executed(rows),
            counts=counted(rows),
        )

    def _through(self, phase: PhasePlan, rows: list[Row]) -> Generator[None, None, list[Row]]:
        """Lead rows through the stages of a phase, with a stop before each shard."""
        for stage in phase.stages:
            here: dict[int, list[Row]] = {}
            onward: list[Row] = []
            for row in rows:
                if row.stage == stage:
                    here.setdefault(row.shard, []).append(row)
                else:
                    onward.append(row)
            for _, given in sorted(here.items()):
                yield
                onward += yield from self._shard(phase, stage, given)
            rows = onward
        raise_failed(rows)
        return rows

    def _shard(
        self, phase: PhasePlan, stage: int, given: list[Row]
    ) -> Generator[None, None, list[Row]]:
        """Run one shard, again where its worker dies."""
        for left in reversed(range(_TRIES)):
            worker = Worker(tries_before=_TRIES - 1 - left)
            try:
                made = list(run_stage(phase.shape, phase.header, stage, given, worker))
            except LostWorker:
                if not left:
                    raise
            else:
                if not left or not self._loses_result():
                    return made
            yield
        raise AssertionError("the last try returns or raises")


class LocalBatches(CapturedRun):
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
        topology = checked_topology(topology, conf)
        super().__init__(topology.name)
        shown = topology
        if keep_emitted:
            caught = self._capturing(topology)
            shown = TransactionalTopology(
                caught.name,
                caught.components,
                topology.spout_id,
                topology.committers,
                topology.states,
            )
        spout = EmittedSpout.of(topology)
        self.engine = InProcessBatchBolts(
            shown, spout, conf, workers=workers, loses_result=loses_result
        )
        store = store or MemoryCoordinationStore(topology.name)
        self._states = open_states(topology, conf)
        sizing = sizing_policy(conf, pending_max=_PENDING_MAX, otherwise=False)
        setup = BatchSetup.of_bolts(topology, spout, self._states, store, self.engine, conf, sizing)
        self.loop = BatchLoop(setup, clock or (lambda: self._now), listener)
        self.loop.start()

    def step(self, choose: Callable[[int], int] = lambda n: 0) -> bool:
        """Let the loop look once, then one phase go on by one step; False if there was none."""
        self.loop.step()
        if self.engine.step(choose):
            return True
        self.advance(_PAUSE_S)
        return False

    def finish(self, max_steps: int = 1_000_000) -> None:
        """Step until the source has nothing more and every batch is committed."""
        for _ in range(max_steps):
            if not self.step() and self.loop.is_idle:
                return
        raise TimeoutError(f"{self.name} was not done after {max_steps} steps")

    def close(self) -> None:
        """Give up the lease, and close the states."""
        self.loop.close()
        for state in self._states.values():
            state.close()
        self._release_bolt()
