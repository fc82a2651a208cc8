"""Shards: the tasks of one stage that one Spark task runs, one after the other.

A shard gets frames and the states of its bolts, and sends frames on to shards of later stages. Core
and transactional topologies share all of this. They differ in how long a bolt lives and in what a
shard reports: that is its `LifeCycle`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from waterspout._safe_repr import described
from waterspout._tuples import Origin
from waterspout.errors import FailedException, WaterspoutError
from waterspout.topology._graph import SYSTEM
from waterspout.topology._ports import Outlet
from waterspout.waves.bolts import Worker
from waterspout.waves.frames import Frame, pack, unpack
from waterspout.waves.garbage import no_collection
from waterspout.waves.intake import Intake
from waterspout.waves.logs import LogRead
from waterspout.waves.memory import TaskState
from waterspout.waves.outlets import make_outlets
from waterspout.waves.shape import WaveShape

__all__ = [
    "BUSY",
    "COMPUTED",
    "COUNTED",
    "DRIVER",
    "FAILED",
    "LifeCycle",
    "Row",
    "Shard",
    "ShardHeader",
    "ShardInput",
    "run_stage",
]

DRIVER = -1
"""The stage of what is meant for the driver."""

FAILED = -2
"""The stage of a row that tells the driver that all of this is given up, and why."""


COUNTED = -3
"""The stage of what a batch's tasks have counted: it goes with the batch until it is committed."""

BUSY = -4
"""The stage of a row whose count is how long a shard of a batch has worked, in microseconds."""

COMPUTED = -5
"""The stage of a row whose count is how much of that time it kept a core, in microseconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """Packed content on its way to a shard of a stage, or to the driver."""

    stage: int
    shard: int
    count: int
    """The tuples in it; in a row for the driver, those that the shard has executed, or a time."""

    data: bytes


@dataclass(slots=True)
class ShardInput:
    """What a shard has to do."""

    frames: list[Frame] = field(default_factory=list)
    states: dict[int, TaskState] = field(default_factory=dict)
    reads: list[LogRead] = field(default_factory=list)
    taken: dict[int, bytes] = field(default_factory=dict)
    """By partition of a spout, what the driver has taken of it."""

    passengers: list[Row] = field(default_factory=list)
    """Rows for later stages, which only pass through here."""

    failed: bool = False
    """Nothing: an earlier shard has given up the wave, or the batch."""

    def add(self, other: ShardInput) -> None:
        """Take in what came from elsewhere, in whichever order a shuffle brings it."""
        self.frames.extend(other.frames)
        self.states.update(other.states)
        self.reads.extend(other.reads)
        self.taken.update(other.taken)
        self.failed = self.failed or other.failed

    def row(self, stage: int, shard: int) -> Row:
        """Return it as a row on its way to a shard."""
        return Row(stage, shard, sum(map(len, self.frames)), pack(self))


@dataclass(frozen=True)
class ShardHeader(ABC):
    """What all shards of a wave, or of a phase of a batch, must know."""

    conf: Mapping[str, Any]
    components: Mapping[str, bytes]
    """The pickled bolts, and the pickled spouts that are read on executors."""

    @abstractmethod
    def life_cycle(self, shard: Shard, worker: Worker) -> LifeCycle:
        """Return how the tasks of a shard live."""


class LifeCycle(ABC):
    """When the bolts of one shard are made, what is kept of them, and what the shard reports."""

    gives_up_on: type[WaterspoutError] = FailedException
    """What ends the wave, or the attempt at the batch, at once.

    It is no error of the job: Spark would run the task again, and that might succeed.
    """

    @abstractmethod
    def run_task(self, task: int, frames: list[Frame], given: ShardInput) -> None:
        """Let a task do its work. Called once for each task of the shard, in order.

        `frames` is all that the task gets, oldest first; it may be empty.
        """

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Return what the shard has to say, apart from the tuples that it sends on."""


class Shard:
    """Runs the tasks of one shard in order, and moves tuples between them."""

    def __init__(self, shape: WaveShape, stage: int, number: int, header: ShardHeader) -> None:
        self.shape = shape
        self.topology = shape.topology
        self.stage, self.number = stage, number
        self._header = header
        self._inbox: dict[int, list[Frame]] = {}
        self._onward: dict[tuple[int, int], ShardInput] = {}

    def run(self, given: ShardInput, worker: Worker) -> Iterator[Row]:
        """Run all tasks; return the rows for later stages and for the driver."""
        life = self._header.life_cycle(self, worker)
        try:
            self._run_tasks(given, life)
        except life.gives_up_on as error:
            yield from self._given_up(error)
            return
        for (stage, shard), onward in self._onward.items():
            yield onward.row(stage, shard)
        yield from life.rows()

    def _run_tasks(self, given: ShardInput, life: LifeCycle) -> None:
        for frame in given.frames:
            self._inbox.setdefault(frame.target, []).append(frame)
        for task in self.shape.tasks_at(self.stage, self.number):
            # Older ones first, so that order between two tasks is kept; and whatever the order
            # in which a shuffle brought them, so that a retried task does the same.
            frames = sorted(self._inbox.pop(task, ()), key=_in_order)
            life.run_task(task, frames, given)
        assert not self._inbox, f"frames for tasks that are not here: {list(self._inbox)}"

    def _given_up(self, error: WaterspoutError) -> Iterator[Row]:
        """Tell later shards to do nothing, and the driver why."""
        nothing = ShardInput(failed=True)
        for later in range(self.stage + 1, len(self.shape.stages)):
            for number in range(self.shape.stages[later].shards):
                yield nothing.row(later, number)
        why = described(error).removeprefix(f"{type(error).__name__}: ")
        yield Row(FAILED, 0, 0, why.encode("utf-8", "backslashreplace"))

    def send(self, task: int, frames: Iterable[Frame]) -> list[Frame]:
        """Pass on what a task has emitted; return what a later wave, or the driver, delivers."""
        source = self.shape.slots[task]
        behind: list[Frame] = []
        for frame in frames:
            target = self.shape.slots.get(frame.target)
            # A spout in the driver has no slot: what goes back to it leaves with the wave.
            if target is None or not self.shape.is_ahead(source, target):
                behind.append(frame)
            elif target.stage == self.stage:
                self._inbox.setdefault(frame.target, []).append(frame)
            else:
                onward = self._onward.setdefault((target.stage, target.shard), ShardInput())
                onward.frames.append(frame)
        return behind

    def outlets(self, task: int, turn: int) -> dict[str, Outlet]:
        """Return a task's outlets; tasks of the same shard are preferred where any will do."""
        return make_outlets(self.topology, task, turn, self.shape.nearby(task))

    def origin(self, frame: Frame, intake: Intake) -> Origin:
        """Return what the tuples of a frame have in common."""
        component = self.topology.component_of.get(frame.source, SYSTEM)
        fields = self.topology.fields[component][frame.stream]
        return Origin(component, frame.stream, frame.source, fields, intake, intake.done)

    def make(self, component: str) -> Any:
        """Return a new copy of a spout or bolt."""
        return unpack(self._header.components[component])

    def conf_of(self, component: str) -> dict[str, Any]:
        """Return the options of a component: its own, and those of the run."""
        return {**self._header.conf, **self.topology.components[component].configuration}


def run_stage(
    shape: WaveShape, header: ShardHeader, stage: int, rows: Iterable[Row], worker: Worker
) -> Iterator[Row]:
    """Run the shards of a stage whose rows these are; rows of others pass through."""
    inputs: dict[int, ShardInput] = {}
    with no_collection():
        for row in rows:
            if row.stage != stage:
                yield row
                continue
            given: ShardInput = unpack(row.data)
            yield from given.passengers
            inputs.setdefault(row.shard, ShardInput()).add(given)
        for number, given in inputs.items():
            if not given.failed:
                yield from Shard(shape, stage, number, header).run(given, worker)


def _in_order(frame: Frame) -> tuple[int, bool, int, str]:
    # Ticks, of the task -1, after the data of their wave.
    return frame.born, frame.source < 0, frame.source, frame.stream
