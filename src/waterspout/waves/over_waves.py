"""Core topologies: bolts that live over the waves of a run, and the trees of their tuples."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from waterspout import faults
from waterspout.acking.tracker import TreeReport
from waterspout.acking.xor import NO_ROOT, Ids, combine, generator, no_ids
from waterspout.errors import BoltCrash
from waterspout.waves.bolts import BoltTask, ErrorNote, Errors, Failure, Worker
from waterspout.waves.counting import TaskCounts
from waterspout.waves.frames import Frame, anchored, pack, unpack, weeded
from waterspout.waves.logs import LogRead, OpenedLog, read_log
from waterspout.waves.memory import TaskState
from waterspout.waves.outlets import Anchors, Sealed, cannot_travel, seal
from waterspout.waves.shards import (
    DRIVER,
    FAILED,
    LifeCycle,
    Row,
    Shard,
    ShardHeader,
    ShardInput,
)

__all__ = ["ShardResult", "WaveHeader", "results_of"]


@dataclass(frozen=True)
class WaveHeader(ShardHeader):
    """What all shards of a wave must know."""

    run: str
    number: int
    attempt: int
    seed: int
    budget_s: float
    crash_on_error: bool
    closing: bool = False
    """Nothing is executed; bolts are told that the run ends."""

    probe: bool = False
    """Nothing is executed; every bolt is taken up, to see whether a worker survives that."""

    def life_cycle(self, shard: Shard, worker: Worker) -> LifeCycle:
        return (_EndOfRun if self.closing else _OverWaves)(shard, self, worker)


@dataclass(slots=True)
class ShardResult:
    """What a shard tells the driver."""

    report: TreeReport = field(default_factory=TreeReport)
    failures: list[Failure] = field(default_factory=list)
    errors: list[ErrorNote] = field(default_factory=list)
    states: dict[int, TaskState] = field(default_factory=dict)
    waiting: list[Frame] = field(default_factory=list)
    """Tuples for the next wave: sent back along a cycle, not reached in time, or of a task whose
    memory was not here. And what bolts have sent back to spouts."""

    missed: list[int] = field(default_factory=list)
    """Tasks whose memory was not here: neither alive, nor all of it given."""

    worker: str = ""
    """The process that keeps the bolts alive."""

    undone: int = 0
    """How many of them were not reached in time."""

    opened: list[OpenedLog] = field(default_factory=list)
    executed: dict[str, int] = field(default_factory=dict)
    counts: list[TaskCounts] = field(default_factory=list)
    """What the tasks have done, each that has done anything."""

    busy_s: float = 0.0


class _OverWaves(LifeCycle):
    """A bolt is found alive or made from its state, and kept for the next wave."""

    gives_up_on = BoltCrash

    def __init__(self, shard: Shard, header: WaveHeader, worker: Worker) -> None:
        self._began = time.monotonic()
        self._shard, self._header, self._worker = shard, header, worker
        self._ids = generator((header.seed, header.number, shard.stage, shard.number))
        self._deadline = self._began + header.budget_s
        self._roots: list[Ids] = []
        self._values: list[Ids] = []
        self._failed: list[int] = []
        self._resets: list[int] = []
        self._result = ShardResult(worker=worker.live.name)

    def run_task(self, task: int, frames: list[Frame], given: ShardInput) -> None:
        for read in given.reads:
            if read.task == task:
                self._read(read)
        if frames or (self._header.probe and not self._is_spout(task)):
            self._execute(task, frames, given.states.get(task))

    def _is_spout(self, task: int) -> bool:
        topology = self._shard.topology
        return topology.components[topology.component_of[task]].is_spout

    def rows(self) -> Iterator[Row]:
        result = self._result
        roots, values = combine(self._roots, self._values)
        result.report = TreeReport(roots, values, _array(self._failed), _array(self._resets))
        result.busy_s = time.monotonic() - self._began
        yield Row(DRIVER, 0, sum(result.executed.values()), pack(result))

    def _execute(self, task: int, frames: list[Frame], state: TaskState | None) -> None:
        header, result = self._header, self._result
        component = self._shard.topology.component_of[task]
        bolt = self._take(task, state)
        if bolt is None:
            # Nothing was executed, so nothing is executed twice: they wait, as if out of time.
            result.missed.append(task)
            result.waiting.extend(frames)
            return
        outlets = self._shard.outlets(task, header.number)
        faults.point("wave.execute", wave=header.number, component=component)
        intake, left = bolt.run(frames, self._shard.origin, outlets, self._deadline)
        # Roots as they are now: closing the books turns the intake into what is kept.
        anchors = Anchors(intake.roots, intake.shared, bolt.collector.port.specials)
        sealed = seal(task, outlets.values(), anchors, self._ids, header.number)
        fitting = self._fitting(sealed.frames, bolt.errors)
        outcome, failures, resets = bolt.close_books()
        counts = TaskCounts(component, task, inputs=outcome.inputs, fails=len(failures))
        counts.acks = sum(int(np.count_nonzero(roots)) for roots in outcome.acked_roots)
        self._count(counts, sealed)
        version = f"{header.number}.{header.attempt}.{self._worker.token}"
        result.states[task] = bolt.state(version)
        self._worker.live.put(header.run, task, bolt)
        self._roots += [*sealed.roots, *outcome.acked_roots]
        self._values += [*sealed.edges, *outcome.acked_edges]
        self._fail(failures)
        self._resets += resets
        result.errors.extend(bolt.errors.notes.values())
        result.waiting.extend(left)
        result.undone += sum(map(len, left))
        _count(result.executed, component, bolt.executed)
        self._send(task, fitting)

    def _fitting(self, frames: list[Frame], errors: Errors) -> list[Frame]:
        """Return what can travel of a task's frames; the messages of the rest fail.

        Also where a frame stays in this shard: that is a matter of the size of the wave, and a
        bolt may keep what it gets.
        """
        fitting, unfit = weeded(frames)
        for each in unfit:
            error = cannot_travel(self._shard.topology, each)
            if self._header.crash_on_error:
                raise BoltCrash(str(error))
            why = errors.add(error)
            roots = anchored(each.frame)[0].tolist()
            self._fail([Failure(root, errors.component, why) for root in roots if root != NO_ROOT])
        return fitting

    def _fail(self, failures: list[Failure]) -> None:
        self._failed += [failure.root for failure in failures]
        self._result.failures.extend(failures)

    def _read(self, read: LogRead) -> None:
        """Let a spout that is read here emit its messages."""
        component = self._shard.topology.component_of[read.task]
        outlets = self._shard.outlets(read.task, self._header.number)
        spout = self._shard.make(component)
        opened, sealed = read_log(spout, read, outlets, self._ids, self._header.number)
        self._result.opened.append(opened)
        errors = Errors(component, read.task)
        self._count(TaskCounts(component, read.task), sealed)
        self._send(read.task, self._fitting(sealed.frames, errors))
        self._result.errors.extend(errors.notes.values())

    def _take(self, task: int, state: TaskState | None) -> BoltTask | None:
        """Return the bolt as it was after its last wave; None: not all of that is here."""
        earlier = self._worker.live.take(self._header.run, task)
        if earlier is not None and state is not None and earlier.version == state.version:
            return earlier
        component = self._shard.topology.component_of[task]
        bolt = BoltTask(
            lambda: self._shard.make(component),
            self._shard.topology.context(task),
            self._shard.conf_of(component),
            crash_on_error=self._header.crash_on_error,
        )
        if state is None:
            bolt.start()
        elif not bolt.restore(state, earlier):
            return None
        return bolt

    def _count(self, counts: TaskCounts, sealed: Sealed) -> None:
        counts.sent(sealed.emitted, sealed.transferred)
        if not counts.is_empty:
            self._result.counts.append(counts)

    def _send(self, task: int, frames: list[Frame]) -> None:
        self._result.waiting.extend(self._shard.send(task, frames))


class _EndOfRun(_OverWaves):
    """The run ends: bolts that have ever run give up what they hold."""

    def run_task(self, task: int, frames: list[Frame], given: ShardInput) -> None:
        state = given.states.get(task)
        if state is None:
            return
        bolt = self._take(task, state)
        assert bolt is not None, "the last wave is given all"
        try:
            bolt.bolt.cleanup()
        except Exception as error:
            bolt.errors.add(error)
            self._result.errors.extend(bolt.errors.notes.values())


def results_of(rows: Iterable[Row]) -> list[ShardResult]:
    """Return what the shards of a wave tell the driver; raise why one of them has ended the run."""
    results = []
    for row in rows:
        if row.stage == FAILED:
            raise BoltCrash(row.data.decode("utf-8"))
        if row.stage == DRIVER:
            results.append(unpack(row.data))
    return results


def _count(counts: dict[str, int], component: str, n: int) -> None:
    if n:
        counts[component] = counts.get(component, 0) + n


def _array(roots: list[int]) -> Ids:
    return np.unique(np.array(roots, np.uint64)) if roots else no_ids()
