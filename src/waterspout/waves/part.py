"""One part of one stage of a wave: what a Spark task does.

A part gets frames and the states of its tasks, runs the bolts in order, and gives frames for later
stages, frames for the next wave, new states, and one combined report on the trees.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from waterspout import faults
from waterspout.acking.tracker import TreeReport
from waterspout.acking.xor import Ids, combine, generator, no_ids
from waterspout.topology.graph import SYSTEM, SYSTEM_TASK, Topology
from waterspout.tuples import Fields
from waterspout.waves.bolts import BoltTask, ErrorNote, Failure
from waterspout.waves.frames import Frame, unpack
from waterspout.waves.live import LiveTasks
from waterspout.waves.logs import LogRead, OpenedLog, read_log
from waterspout.waves.routing import make_outlets
from waterspout.waves.sealing import Anchors, seal
from waterspout.waves.shape import Place, WaveShape

__all__ = [
    "DRIVER",
    "PartInput",
    "PartResult",
    "TaskState",
    "WaveHeader",
    "nearby",
    "no_collection",
    "run_part",
]

DRIVER = -1
"""The stage of what is meant for the driver."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """A bolt task between two waves; the version tells whether a live object is the same."""

    version: str
    data: bytes


@dataclass(frozen=True)
class WaveHeader:
    """What all parts of a wave must know."""

    run: str
    number: int
    attempt: int
    seed: int
    budget_s: float
    crash_on_error: bool
    conf: Mapping[str, Any]
    components: Mapping[str, bytes]
    """The pickled bolts, and the pickled spouts that are read on executors."""

    closing: bool = False
    """Nothing is executed; bolts are told that the run ends."""


@dataclass(slots=True)
class PartInput:
    """What a part has to do."""

    frames: list[Frame] = field(default_factory=list)
    states: dict[int, TaskState] = field(default_factory=dict)
    reads: list[LogRead] = field(default_factory=list)
    passengers: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Stage, part and packed `PartInput` of what only passes through here."""

    def add(self, other: PartInput) -> None:
        """Take in what came from elsewhere, in whichever order a shuffle brings it."""
        self.frames.extend(other.frames)
        self.states.update(other.states)
        self.reads.extend(other.reads)


@dataclass(slots=True)
class PartResult:
    """What a part tells the driver."""

    report: TreeReport = field(default_factory=TreeReport)
    failures: list[Failure] = field(default_factory=list)
    errors: list[ErrorNote] = field(default_factory=list)
    states: dict[int, TaskState] = field(default_factory=dict)
    waiting: list[Frame] = field(default_factory=list)
    """Tuples for the next wave: sent back along a cycle, or not reached in time."""

    undone: int = 0
    """How many of them were not reached in time."""

    opened: list[OpenedLog] = field(default_factory=list)
    executed: dict[str, int] = field(default_factory=dict)
    emitted: dict[str, int] = field(default_factory=dict)
    busy_s: float = 0.0


class _Part:
    """The work of `run_part`, step by step."""

    def __init__(
        self, shape: WaveShape, stage: int, part: int, header: WaveHeader, token: str
    ) -> None:
        self._shape = shape
        self._topology = shape.topology
        self._header = header
        self._stage, self._part = stage, part
        self._token = token
        self._turn = header.number
        self._ids = generator((header.seed, header.number, stage, part))
        self._inbox: dict[int, list[Frame]] = {}
        self._roots: list[Ids] = []
        self._values: list[Ids] = []
        self._failed: list[int] = []
        self._resets: list[int] = []
        self._fields = _fields_by_task(self._topology)
        self.result = PartResult()
        self.onward: dict[tuple[int, int], PartInput] = {}

    def run(self, given: PartInput, live: LiveTasks) -> None:
        """Run the tasks of this part in order."""
        for frame in given.frames:
            self._inbox.setdefault(frame.target, []).append(frame)
        deadline = time.monotonic() + self._header.budget_s
        tasks = self._shape.tasks_at(self._stage, self._part)
        for task in tasks:
            for read in given.reads:
                if read.task == task:
                    self._read(read)
            frames = self._inbox.pop(task, None)
            if frames:
                # Older ones first, so that order between two tasks is kept; and whatever the order
                # in which a shuffle brought them, so that a retried task does the same.
                frames.sort(key=_in_order)
                self._execute(task, frames, given.states.get(task), live, deadline)
        assert not self._inbox, f"frames for tasks that are not here: {list(self._inbox)}"
        self._report()

    def close(self, given: PartInput, live: LiveTasks) -> None:
        """Let the bolts of this part that have ever run give up what they hold."""
        for task, state in given.states.items():
            bolt = self._take(task, state, live)
            try:
                bolt.close()
            except Exception as error:
                bolt.errors.add(error)
                self.result.errors.extend(bolt.errors.notes.values())

    def _execute(
        self,
        task: int,
        frames: list[Frame],
        state: TaskState | None,
        live: LiveTasks,
        deadline: float,
    ) -> None:
        component = self._topology.component_of[task]
        place = self._shape.places[task]
        outlets = make_outlets(self._topology, task, self._turn, nearby(self._shape, place))
        bolt = self._take(task, state, live)
        faults.point("wave.execute", wave=self._header.number, component=component)
        intake, left = bolt.run(frames, self._fields, outlets, deadline)
        # Roots as they are now: settling turns the intake into what is kept.
        anchors = Anchors(intake.roots, intake.shared, getattr(bolt.collector, "_specials", ()))
        sealed = seal(task, outlets.values(), anchors, self._ids, self._header.number)
        outcome, failures, resets = bolt.settle()
        version = f"{self._header.number}.{self._header.attempt}.{self._token}"
        self.result.states[task] = TaskState(version, bolt.state())
        live.put(self._header.run, task, version, bolt)
        self._roots += [*sealed.roots, *outcome.acked_roots]
        self._values += [*sealed.edges, *outcome.acked_edges]
        self._failed += [failure.root for failure in failures]
        self._resets += resets
        self.result.failures.extend(failures)
        self.result.errors.extend(bolt.errors.notes.values())
        self.result.waiting.extend(left)
        self.result.undone += sum(map(len, left))
        _count(self.result.executed, component, bolt.executed)
        self._send(component, place, sealed.frames)

    def _read(self, read: LogRead) -> None:
        """Let a spout that is read here emit its messages."""
        component = self._topology.component_of[read.task]
        place = self._shape.places[read.task]
        outlets = make_outlets(self._topology, read.task, self._turn, nearby(self._shape, place))
        spout = unpack(self._header.components[component])
        opened, sealed = read_log(spout, read, outlets, self._ids, self._header.number)
        self.result.opened.append(opened)
        self._send(component, place, sealed.frames)

    def _take(self, task: int, state: TaskState | None, live: LiveTasks) -> BoltTask:
        version = None if state is None else state.version
        bolt = live.take(self._header.run, task, version)
        if bolt is not None:
            return bolt
        component = self._topology.component_of[task]
        pickled = self._header.components[component]
        spec = self._topology.components[component]
        bolt = BoltTask(
            lambda: unpack(pickled),
            self._topology.context(task),
            {**self._header.conf, **spec.configuration},
            crash_on_error=self._header.crash_on_error,
        )
        if state is None:
            bolt.start()
        else:
            bolt.restore(state.data)
        return bolt

    def _send(self, component: str, source: Place, frames: Iterable[Frame]) -> None:
        for frame in frames:
            _count(self.result.emitted, component, len(frame))
            target = self._shape.places[frame.target]
            if not self._shape.is_ahead(source, target):
                self.result.waiting.append(frame)
            elif target.stage == self._stage:
                self._inbox.setdefault(frame.target, []).append(frame)
            else:
                where = (target.stage, target.part)
                self.onward.setdefault(where, PartInput()).frames.append(frame)

    def _report(self) -> None:
        roots, values = combine(self._roots, self._values)
        self.result.report = TreeReport(roots, values, _array(self._failed), _array(self._resets))


def run_part(
    shape: WaveShape,
    stage: int,
    part: int,
    given: PartInput,
    header: WaveHeader,
    live: LiveTasks,
    token: str = "",
) -> tuple[PartResult, dict[tuple[int, int], PartInput]]:
    """Run one part; return what to tell the driver, and the inputs of parts in later stages."""
    began = time.monotonic()
    work = _Part(shape, stage, part, header, token)
    if header.closing:
        work.close(given, live)
        return work.result, {}
    with no_collection():
        work.run(given, live)
    work.result.busy_s = time.monotonic() - began
    return work.result, work.onward


@contextmanager
def no_collection() -> Iterator[None]:
    """Do not look for garbage in cycles meanwhile.

    Millions of small objects live until a part is done: looking through them again and again costs
    a fifth of the time and finds nothing.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def nearby(shape: WaveShape, place: Place) -> Callable[[str], Sequence[int]]:
    """Return which tasks of a component run behind this place, in the same part."""

    def near(component: str) -> Sequence[int]:
        if not shape.is_beside(place, component):
            return ()
        tasks = shape.topology.tasks[component]
        return [task for task in tasks if shape.places[task].part == place.part]

    return near


def _in_order(frame: Frame) -> tuple[int, bool, int, str]:
    # Ticks, of the task -1, after the data of their wave.
    return frame.born, frame.source < 0, frame.source, frame.stream


def _fields_by_task(topology: Topology) -> dict[int, tuple[str, Mapping[str, Fields]]]:
    known = {
        task: (component, topology.fields[component])
        for task, component in topology.component_of.items()
    }
    return {**known, SYSTEM_TASK: (SYSTEM, topology.fields[SYSTEM])}


def _count(counts: dict[str, int], component: str, n: int) -> None:
    counts[component] = counts.get(component, 0) + n


def _array(roots: list[int]) -> Ids:
    return np.unique(np.array(roots, np.uint64)) if roots else no_ids()
