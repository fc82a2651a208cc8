"""Which tasks share a shard: so that shards of a stage have about as much to do. No I/O in here.

A grouping by fields gives a task what its keys are, and frequent keys give much. Where a shard has
several tasks of a bolt, a busy one can stand beside one that is not. What tasks have to do is
learned from the waves; routing stays the same, as do the tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from waterspout.waves.counting import TaskCounts
from waterspout.waves.shape import WaveShape

__all__ = ["Balance"]

# How many tuples must have been executed before tasks are dealt anew; then twice as many, and so
# on: each time, workers have to learn the new shape, and bolts move to other ones.
_FIRST = 50_000

# By how much the busiest shard of a stage must have less to do for that.
_GAIN = 0.9


class Balance:
    """Learns how much the tasks of a topology have to do."""

    def __init__(self) -> None:
        self._loads: Counter[int] = Counter()
        self._enough = _FIRST

    def learn(self, counts: Iterable[TaskCounts]) -> None:
        """Take in what tasks have executed in a wave."""
        for each in counts:
            self._loads[each.task] += each.executed

    def improved(self, shape: WaveShape) -> WaveShape | None:
        """Return a shape in which the busiest shards have less to do; None: that is not worth it.

        Asked after each wave; most times it is too early to say.
        """
        if self._loads.total() < self._enough:
            return None
        loads, self._loads = self._loads, Counter()
        self._enough *= 2
        places = dict(shape.places)
        for number in range(len(shape.stages)):
            found = _dealt(shape, number, loads)
            if _busiest(shape, number, loads, found) < _GAIN * _busiest(shape, number, loads, {}):
                places.update(found)
        return None if places == shape.places else shape.with_places(places)


def _dealt(shape: WaveShape, stage: int, loads: Mapping[int, int]) -> dict[int, int]:
    """Return the shards of the tasks of a stage whose load follows from keys."""
    busy: Counter[int] = Counter()
    places: dict[int, int] = {}
    for component in shape.stages[stage].components:
        tasks: Sequence[int] = shape.topology.tasks[component]
        if shape.follows_keys(component):
            places |= _in_rounds(tasks, loads, shape.shards_of(component), busy)
        else:
            for task in tasks:
                busy[shape.slots[task].shard] += loads.get(task, 0)
    return places


def _in_rounds(
    tasks: Sequence[int], loads: Mapping[int, int], shards: int, busy: Counter[int]
) -> dict[int, int]:
    """Give each shard one task after the other, the busiest that are left to those least busy.

    So each has as many as before: none of them is without a task of the component.
    """
    places: dict[int, int] = {}
    ordered = sorted(tasks, key=lambda task: (-loads.get(task, 0), task))
    for start in range(0, len(ordered), shards):
        free = sorted(range(shards), key=lambda shard: (busy[shard], shard))
        for task, shard in zip(ordered[start : start + shards], free, strict=False):
            places[task] = shard
            busy[shard] += loads.get(task, 0)
    return places


def _busiest(
    shape: WaveShape, stage: int, loads: Mapping[int, int], places: Mapping[int, int]
) -> int:
    """Return how much the busiest shard of a stage has to do, with some tasks placed anew."""
    busy: Counter[int] = Counter()
    for component in shape.stages[stage].components:
        for task in shape.topology.tasks[component]:
            busy[places.get(task, shape.slots[task].shard)] += loads.get(task, 0)
    return max(busy.values(), default=0)
