"""The shape of a wave: which bolts run in which stage, and which task runs in which part.

A stage is one pass over the data on the executors; between two stages there is a shuffle. Bolts
are put into one stage where a tuple may go to whichever task is near; and a small wave is one
stage with one part that runs all bolts in turn. Tasks, and the routing by fields, stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from waterspout.topology.graph import ComponentSpec, Topology

__all__ = ["Place", "Stage", "WaveShape", "collapsed", "spread"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Components that run one after the other, without a shuffle between them."""

    components: tuple[str, ...]
    parts: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task runs in a wave."""

    stage: int
    part: int
    order: int
    """Its component's turn within the stage."""


@dataclass(frozen=True)
class WaveShape:
    """Stages in the order in which they run."""

    topology: Topology
    stages: tuple[Stage, ...]

    @cached_property
    def places(self) -> dict[int, Place]:
        """Where each task of a bolt, or of a spout read on the executors, runs."""
        found: dict[int, Place] = {}
        for number, stage in enumerate(self.stages):
            for order, component in enumerate(stage.components):
                for index, task in enumerate(self.topology.tasks[component]):
                    found[task] = Place(number, index % stage.parts, order)
        return found

    def tasks_at(self, stage: int, part: int) -> list[int]:
        """Return the tasks of one part, in the order in which they run."""
        here = [
            (place.order, task)
            for task, place in self.places.items()
            if place.stage == stage and place.part == part
        ]
        return [task for _, task in sorted(here)]

    def is_ahead(self, source: Place, target: Place) -> bool:
        """Whether a tuple still reaches its target in this wave; else it waits for the next."""
        if target.stage != source.stage:
            return target.stage > source.stage
        return target.part == source.part and target.order > source.order

    def is_beside(self, source: Place, component: str) -> bool:
        """Whether a component runs later in the same stage: its tasks at hand are preferred."""
        place = self.places[self.topology.tasks[component][0]]
        return place.stage == source.stage and place.order > source.order


def collapsed(topology: Topology) -> WaveShape:
    """Return the shape of a small wave: everything in one task."""
    return WaveShape(topology, (Stage(tuple(_in_order(topology)), 1),))


def spread(topology: Topology, workers: int) -> WaveShape:
    """Return the shape of a large wave, on so many workers at once."""
    order = _in_order(topology)
    position = {component: n for n, component in enumerate(order)}
    stage_of: dict[str, int] = {}
    for component in order:
        spec = topology.components[component]
        stage = 0
        for given in spec.inputs:
            source = topology.components[given.source]
            if given.source not in position or position[given.source] >= position[component]:
                continue  # a spout in the driver, or a tuple that goes back: it waits for a wave
            near = (
                given.grouping.takes_any_task
                and spec.num_tasks >= workers
                and source.num_tasks >= workers
            )
            stage = max(stage, stage_of[given.source] + (0 if near else 1))
        stage_of[component] = stage
    stages = []
    for number in range(max(stage_of.values(), default=-1) + 1):
        members = tuple(c for c in order if stage_of[c] == number)
        widest = max(topology.components[c].num_tasks for c in members)
        stages.append(Stage(members, min(workers, widest)))
    return WaveShape(topology, tuple(stages))


def _in_order(topology: Topology) -> list[str]:
    """Return what runs on executors, producers before consumers; cycles are cut at an edge back."""
    consumers: dict[str, list[str]] = {}
    for spec in topology.components.values():
        for given in spec.inputs:
            consumers.setdefault(given.source, []).append(spec.id)
    finished: list[str] = []
    seen: set[str] = set()
    for start in [*topology.spouts, *topology.bolts]:
        _visit(start.id, consumers, seen, finished)
    return [c for c in reversed(finished) if _runs_on_executors(topology.components[c])]


def _visit(
    start: str, consumers: dict[str, list[str]], seen: set[str], finished: list[str]
) -> None:
    """Walk depth first, without recursion: a topology may be a long chain."""
    if start in seen:
        return
    seen.add(start)
    path = [(start, iter(consumers.get(start, [])))]
    while path:
        component, following = path[-1]
        for consumer in following:
            if consumer not in seen:
                seen.add(consumer)
                path.append((consumer, iter(consumers.get(consumer, []))))
                break
        else:
            finished.append(component)
            path.pop()


def _runs_on_executors(spec: ComponentSpec) -> bool:
    return not spec.is_spout or spec.read_on_executors
