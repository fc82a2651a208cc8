"""`TaskCounts`: what one task has done in a wave, or for a batch, by stream. Nothing is sampled."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["AckerCounts", "InputCounts", "Inputs", "TaskCounts", "by_component", "input_of"]


@dataclass(slots=True)
class InputCounts:
    """What has become of the tuples of one input stream."""

    executed: int = 0
    execute_s: float = 0.0
    """Time in `execute`, added up."""
    acked: int = 0
    failed: int = 0
    process_s: float = 0.0
    """From when a tuple came to its ack, added up over those that were acked.

    Of one that is acked in the wave it came in, the mean time in `execute`; of one that is held
    longer, the time of whole waves.
    """


Inputs = dict[tuple[str, str], InputCounts]
"""By component and stream that the tuples came from."""


def input_of(inputs: Inputs, component: str, stream: str) -> InputCounts:
    """Return the counts of an input stream, to be added to."""
    found = inputs.get((component, stream))
    if found is None:
        found = inputs[component, stream] = InputCounts()
    return found


@dataclass(slots=True)
class TaskCounts:
    """What one task has done."""

    component: str
    task: int
    emitted: dict[str, int] = field(default_factory=dict)
    """Calls of emit, by stream."""
    transferred: dict[str, int] = field(default_factory=dict)
    """Tuples sent, by stream: one for each task that gets it, none where nobody subscribes."""
    inputs: Inputs = field(default_factory=dict)
    acks: int = 0
    """What the acker is told of acks: one for each tuple and tree."""
    fails: int = 0
    finished: int = 0
    """Batch bolts: how often a batch was finished."""
    finish_s: float = 0.0

    def sent(self, emitted: Mapping[str, int], transferred: Mapping[str, int]) -> None:
        """Add what was emitted."""
        _add(self.emitted, emitted)
        _add(self.transferred, transferred)

    @property
    def executed(self) -> int:
        """Tuples of all streams."""
        return sum(each.executed for each in self.inputs.values())

    @property
    def busy_s(self) -> float:
        """Time in `execute` and in finishing batches."""
        return self.finish_s + sum(each.execute_s for each in self.inputs.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        # What was acked may have been executed earlier: its input is here then.
        return not (self.inputs or self.finished or any(self.emitted.values()))


def _add(into: dict[str, int], counts: Mapping[str, int]) -> None:
    for stream, n in counts.items():
        if n:
            into[stream] = into.get(stream, 0) + n


def by_component(tasks: Iterable[TaskCounts], of: str) -> dict[str, int]:
    """Return the sum of `emitted` or `transferred` of each component that has any."""
    found: dict[str, int] = {}
    for each in tasks:
        n = sum(getattr(each, of).values())
        if n:
            found[each.component] = found.get(each.component, 0) + n
    return found


class AckerCounts:
    """What the ackers have done, as Storm counts it: one tuple for each ack.

    The reports of a wave come combined, so that the time of each is the mean.
    """

    def __init__(self) -> None:
        self._counts = TaskCounts("__acker", -1)
        self._busy_s = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Take the time of what is done meanwhile."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._busy_s += time.perf_counter() - began

    def told(self, component: str, stream: str, n: int) -> None:
        """Count what was told to the ackers."""
        if n:
            each = input_of(self._counts.inputs, component, stream)
            each.executed += n
            each.acked += n

    def decided(self, acked: int, failed: int) -> None:
        """Count what the ackers have told the spouts."""
        told = {"__ack_ack": acked, "__ack_fail": failed}
        self._counts.sent(told, told)

    def counts(self) -> list[TaskCounts]:
        """Return all of it; nothing if there was nothing to do."""
        counts, executed = self._counts, self._counts.executed
        for each in counts.inputs.values():
            each.execute_s = each.process_s = self._busy_s * each.executed / executed
        return [] if counts.is_empty else [counts]
