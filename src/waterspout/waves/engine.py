"""The contract between the loop that makes waves and what runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from waterspout.waves.frames import Frame, pack
from waterspout.waves.logs import LogRead
from waterspout.waves.part import PartInput, PartResult, TaskState, WaveHeader
from waterspout.waves.shape import WaveShape

__all__ = ["Wave", "WaveDone", "WaveEngine", "WaveFailed", "assemble"]


@dataclass(frozen=True)
class Wave:
    """All that one wave needs: its first stage's inputs, with the rest as passengers."""

    shape: WaveShape
    header: WaveHeader
    inputs: Mapping[int, PartInput]
    """By part of the first stage."""


@dataclass(frozen=True, slots=True)
class WaveDone:
    """A wave went through."""

    results: Sequence[PartResult]
    seconds: float


@dataclass(frozen=True, slots=True)
class WaveFailed:
    """A wave came to nothing; no state has changed."""

    error: BaseException


class WaveEngine(ABC):
    """Runs one wave at a time."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many parts can run at once."""

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


@dataclass(slots=True)
class _Parts:
    inputs: dict[tuple[int, int], PartInput] = field(default_factory=dict)

    def at(self, stage: int, part: int) -> PartInput:
        return self.inputs.setdefault((stage, part), PartInput())


def assemble(
    shape: WaveShape,
    frames: Iterable[Frame],
    states: Mapping[int, TaskState],
    reads: Iterable[LogRead] = (),
) -> dict[int, PartInput]:
    """Return the inputs of the first stage; what is meant for later stages rides along."""
    parts = _Parts()
    for frame in frames:
        place = shape.places[frame.target]
        parts.at(place.stage, place.part).frames.append(frame)
    for read in reads:
        place = shape.places[read.task]
        parts.at(place.stage, place.part).reads.append(read)
    for task, state in states.items():
        place = shape.places[task]
        parts.at(place.stage, place.part).states[task] = state
    first = {part: given for (stage, part), given in parts.inputs.items() if stage == 0}
    later = [(stage, part) for stage, part in parts.inputs if stage > 0]
    if later and not first:
        first[0] = PartInput()
    hosts = sorted(first)
    for number, (stage, part) in enumerate(later):
        host = first[hosts[number % len(hosts)]]
        host.passengers.append((stage, part, pack(parts.inputs[stage, part])))
    return first
