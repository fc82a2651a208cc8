"""What the driver keeps of the bolts between waves, and how much of it a wave is given.

A bolt task's memory is its pickled attributes, and apart from them what its large containers hold
(`waterspout.waves.large`): all of it as it was once, and step by step what each wave has changed. A
worker that has the bolt alive as it was some waves ago needs the steps since then, not the rest. So
a wave is given the steps that the workers met lately may lack. A worker that would need the rest
leaves the tuples for the next wave; from then on waves are given all until that worker is met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

__all__ = ["Memories", "StateStep", "TaskState", "Whole", "steps_since"]

# A memory up to this size is always given whole: no worker has to ask for it.
_SMALL_BYTES = 1 << 18

# A worker is forgotten when as many waves have passed without it as all would take, so many times.
_ROUNDS_MAX = 4


@dataclass(frozen=True, slots=True)
class StateStep:
    """What one wave has changed in the large containers of a task, from version to version."""

    before: str
    after: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Whole:
    """All that the large containers of a task held in some version."""

    version: str
    data: bytes


@dataclass(frozen=True, slots=True)
class TaskState:
    """A bolt task that is not running; the version tells whether a live object is the same."""

    version: str
    data: bytes
    """Its attributes; large containers among them only by number."""

    steps: tuple[StateStep, ...] = ()
    whole: Whole | None = None
    partial: bool = False
    """The task cannot be made of this alone: it has large containers, and no whole is here."""

    @property
    def size(self) -> int:
        """How many bytes travel with it."""
        whole = 0 if self.whole is None else len(self.whole.data)
        return len(self.data) + whole + _size(self.steps)


def steps_since(version: str, state: TaskState) -> Iterator[StateStep] | None:
    """Return the steps from a version to that of the state; None: not all of them are here."""
    if version == state.version:
        return iter(())
    for number, step in enumerate(state.steps):
        if step.before == version:
            return iter(state.steps[number:])
    return None


class _TaskMemory:
    """The memory of one task: it grows by a step a wave, and is cut when a new whole comes."""

    def __init__(self) -> None:
        self.size = 0
        self._state: TaskState | None = None
        self._whole: Whole | None = None
        # Those since the whole, and earlier ones that a worker may lack.
        self._steps: list[StateStep] = []
        self._steps_bytes = 0
        self._since_whole = 0
        self._waves = 0
        # By worker, in which of the task's waves it was met last.
        self._met: dict[str, int] = {}
        # By worker that had nothing, until which wave it is waited for with all.
        self._missing: dict[str, int] = {}

    def take_in(self, state: TaskState, worker: str) -> None:
        known, self._state = self._state, replace(state, steps=(), whole=None)
        self._waves += 1
        self._missing.pop(worker, None)
        self._missing = {name: last for name, last in self._missing.items() if last > self._waves}
        self._met[worker] = self._waves
        late = self._waves - _ROUNDS_MAX * len(self._met)
        self._met = {name: wave for name, wave in self._met.items() if wave > late}
        if state.steps:
            last = None if known is None else known.version
            assert state.steps[0].before == last, f"{state.steps[0].before} is not {last}"
            self._steps += state.steps
            self._since_whole += len(state.steps)
        else:
            self._steps, self._steps_bytes, self._whole = [], 0, None
        if state.whole is not None or self._whole is None:
            self._whole, self._since_whole = state.whole, 0
        needed = max(self._since_whole, self._lacking)
        dropped = self._steps[: len(self._steps) - needed]
        del self._steps[: len(dropped)]
        self._steps_bytes += _size(state.steps) - _size(dropped)
        whole = 0 if self._whole is None else len(self._whole.data)
        self.size = len(state.data) + whole + self._steps_bytes

    def miss(self, worker: str) -> None:
        """Give all until this worker is met: the next wave may run on one that lacks nothing."""
        self._missing[worker] = self._waves + _ROUNDS_MAX * (1 + len(self._met))

    @property
    def _lacking(self) -> int:
        """How many of the newest steps the workers met lately may lack."""
        return min(len(self._steps), self._waves - min(self._met.values()))

    def give(self, *, complete: bool) -> TaskState:
        assert self._state is not None
        if self._whole is None:
            return self._state
        whole = complete or bool(self._missing) or self.size <= _SMALL_BYTES
        count = max(self._since_whole, self._lacking) if whole else self._lacking
        steps = tuple(self._steps[len(self._steps) - count :])
        if whole:
            return replace(self._state, steps=steps, whole=self._whole)
        return replace(self._state, steps=steps, partial=True)


class Memories:
    """The memories of all tasks of a run."""

    def __init__(self) -> None:
        self._tasks: dict[int, _TaskMemory] = {}
        self._moved = 0

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return sum(memory.size for memory in self._tasks.values())

    def take_in(self, states: Mapping[int, TaskState], missed: Iterable[int], worker: str) -> None:
        """Keep what a wave has made of tasks; note which of them its worker had to leave."""
        for task, state in states.items():
            self._tasks.setdefault(task, _TaskMemory()).take_in(state, worker)
            self._moved += state.size
        for task in missed:
            self._tasks[task].miss(worker)

    def given(self, *, complete: bool = False) -> dict[int, TaskState]:
        """Return what a wave is given of each task; `complete`: so that no worker may lack any."""
        given = {task: memory.give(complete=complete) for task, memory in self._tasks.items()}
        self._moved += sum(state.size for state in given.values())
        return given

    def moved(self) -> int:
        """Return how many bytes were given and taken in since this was asked last."""
        moved, self._moved = self._moved, 0
        return moved


def _size(steps: Iterable[StateStep]) -> int:
    return sum(len(step.data) for step in steps)
