"""The shape of a wave: which bolts run in which stage, and which task runs in which shard.

A stage is one pass over the data on the executors; between two stages there is a shuffle. Bolts
are put into one stage where a tuple may go to whichever task is near; and a small wave is one
stage with one shard that runs all bolts in turn. Tasks, and the routing by fields, stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from waterspout.errors import ConfigError
from waterspout.topology._graph import Topology

__all__ = ["Slot", "Stage", "WaveShape", "check_widths", "collapsed", "spread"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Components that run one after the other, without a shuffle between them."""

    components: tuple[str, ...]
    shards: int
    """Into how many Spark tasks its tasks are divided."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a task runs in a wave."""

    stage: int
    shard: int
    order: int
    """Its component's turn within the stage."""


@dataclass(frozen=True)
class WaveShape:
    """Stages in the order in which they run."""

    topology: Topology
    stages: tuple[Stage, ...]
    widths: Mapping[str, int] = field(default_factory=dict)
    """Components that run in fewer shards at once than they have tasks: Storm's executors."""

    places: Mapping[int, int] = field(default_factory=dict)
    """The shards of some tasks, where they do not follow from the numbers of these."""

    @cached_property
    def slots(self) -> dict[int, Slot]:
        """Where each task of a bolt, or of a spout read on the executors, runs."""
        found: dict[int, Slot] = {}
        for number, stage in enumerate(self.stages):
            for order, component in enumerate(stage.components):
                shards = self._shards_in(stage, component)
                for index, task in enumerate(self.topology.tasks[component]):
                    found[task] = Slot(number, self.places.get(task, index % shards), order)
        return found

    def shards_of(self, component: str) -> int:
        """Return into how many Spark tasks the tasks of a component are divided."""
        return next(
            self._shards_in(stage, component)
            for stage in self.stages
            if component in stage.components
        )

    def _shards_in(self, stage: Stage, component: str) -> int:
        return min(stage.shards, self.widths.get(component, stage.shards))

    def follows_keys(self, component: str) -> bool:
        """Whether it is up to the values of tuples how many of them a task gets."""
        inputs = self.topology.components[component].inputs
        return any(not given.grouping.takes_any_task for given in inputs)

    def with_places(self, places: Mapping[int, int]) -> WaveShape:
        """Return the same stages with some tasks in other shards."""
        return replace(self, places=places)

    def tasks_at(self, stage: int, shard: int) -> list[int]:
        """Return the tasks of one shard, in the order in which they run."""
        here = [
            (slot.order, task)
            for task, slot in self.slots.items()
            if slot.stage == stage and slot.shard == shard
        ]
        return [task for _, task in sorted(here)]

    def is_ahead(self, source: Slot, target: Slot) -> bool:
        """Whether a tuple still reaches its target in this wave; else it waits for the next."""
        if target.stage != source.stage:
            return target.stage > source.stage
        return target.shard == source.shard and target.order > source.order

    def nearby(self, task: int) -> Callable[[str], Sequence[int]]:
        """Return a function from a component to its tasks that run after this one in its shard.

        They are preferred where any task will do.
        """
        source = self.slots[task]

        def near(component: str) -> Sequence[int]:
            slots = [(task, self.slots[task]) for task in self.topology.tasks[component]]
            return [
                task
                for task, slot in slots
                if slot.stage == source.stage and self.is_ahead(source, slot)
            ]

        return near


def collapsed(topology: Topology) -> WaveShape:
    """Return the shape of a small wave: everything in one task."""
    return WaveShape(topology, (Stage(tuple(_in_order(topology)), 1),))


def check_widths(topology: Topology, widths: Mapping[str, int]) -> None:
    """Refuse widths that no wave of a topology can have."""
    for component, width in widths.items():
        spec = topology.components.get(component)
        if spec is None:
            known = ", ".join(topology.components)
            raise ConfigError(f"there is no component {component!r}; {topology.name} has {known}")
        if spec.is_spout and not spec.read_on_executors:
            raise ConfigError(
                f"{spec.title} runs in the driver, all its tasks in turn: there is nothing to "
                "spread; max_spout_pending says how much it may have on the way"
            )
        if width > spec.num_tasks:
            raise ConfigError(
                f"{spec.title} has {spec.num_tasks} tasks, as long as its topology lives; it can "
                f"run on {spec.num_tasks} at once, not {width}. As in Storm, set_num_tasks(n) "
                "gives it more before it is submitted"
            )


def spread(topology: Topology, workers: int, widths: Mapping[str, int] | None = None) -> WaveShape:
    """Return the shape of a large wave, on so many workers at once.

    `widths` are how many shards a component may have at once, where not as many as it has tasks.
    """
    widths = widths or {}
    width_of = {id: widths.get(id, spec.num_tasks) for id, spec in topology.components.items()}
    order = _in_order(topology)
    position = {component: n for n, component in enumerate(order)}
    stage_of: dict[str, int] = {}
    for component in order:
        spec = topology.components[component]
        stage = 0
        for given in spec.inputs:
            if given.source not in position or position[given.source] >= position[component]:
                continue  # a spout in the driver, or a tuple that goes back: it waits for a wave
            near = (
                given.grouping.takes_any_task
                and width_of[component] >= workers
                and width_of[given.source] >= workers
            )
            stage = max(stage, stage_of[given.source] + (0 if near else 1))
        stage_of[component] = stage
    stages = []
    for number in range(max(stage_of.values(), default=-1) + 1):
        members = tuple(c for c in order if stage_of[c] == number)
        widest = max(width_of[c] for c in members)
        stages.append(Stage(members, min(workers, widest)))
    return WaveShape(topology, tuple(stages), dict(widths))


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
    pulled = {spec.id for spec in topology.spouts if not spec.read_on_executors}
    return [component for component in reversed(finished) if component not in pulled]


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
