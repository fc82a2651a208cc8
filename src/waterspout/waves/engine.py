"""The contract between the loop that makes waves and what runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from waterspout.waves.frames import Frame
from waterspout.waves.logs import LogRead
from waterspout.waves.memory import TaskState
from waterspout.waves.over_waves import ShardResult, WaveHeader
from waterspout.waves.shape import WaveShape
from waterspout.waves.shards import Row, ShardInput

__all__ = ["Wave", "WaveDone", "WaveEngine", "WaveFailed", "assemble"]


@dataclass(frozen=True)
class Wave:
    """All that one wave needs. Inputs of later stages travel with those of the first."""

    shape: WaveShape
    header: WaveHeader
    inputs: Mapping[int, ShardInput]
    """By shard of the first stage."""

    def rows(self) -> list[Row]:
        """Return the first rows, one for each shard: a shard has all its input in one row."""
        return [given.row(0, shard) for shard, given in sorted(self.inputs.items())]


@dataclass(frozen=True, slots=True)
class WaveDone:
    """A wave went through."""

    results: Sequence[ShardResult]
    seconds: float


@dataclass(frozen=True, slots=True)
class WaveFailed:
    """A wave failed as a whole; no state has changed."""

    error: BaseException


class WaveEngine(ABC):
    """Runs one wave at a time."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many shards can run at once."""

    @abstractmethod
    def start(self, wave: Wave) -> None:
        """Begin to run a wave; the result is asked for with `poll`."""

    @abstractmethod
    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        """Return what has become of the wave, waiting at most so long; None: not over yet."""

    @abstractmethod
    def wake(self) -> None:
        """Make a waiting `poll` return; callable from any thread."""

    @abstractmethod
    def cancel(self) -> None:
        """End the wave that runs, if one does; its result is not wanted."""

    def close(self) -> None:  # noqa: B027  (optional hook)
        """Give up threads and connections."""


def assemble(
    shape: WaveShape,
    frames: Iterable[Frame],
    states: Mapping[int, TaskState],
    reads: Iterable[LogRead] = (),
) -> dict[int, ShardInput]:
    """Return the inputs of the first stage; those of later stages are among their passengers."""
    inputs: dict[tuple[int, int], ShardInput] = {}

    def at(task: int) -> ShardInput:
        slot = shape.slots[task]
        return inputs.setdefault((slot.stage, slot.shard), ShardInput())

    for frame in frames:
        at(frame.target).frames.append(frame)
    for read in reads:
        at(read.task).reads.append(read)
    for task, state in states.items():
        at(task).states[task] = state
    first = {shard: given for (stage, shard), given in inputs.items() if stage == 0}
    later = [given.row(*where) for where, given in inputs.items() if where[0] > 0]
    if later and not first:
        first[0] = ShardInput()
    hosts = sorted(first)
    for number, row in enumerate(later):
        first[hosts[number % len(hosts)]].passengers.append(row)
    return first
