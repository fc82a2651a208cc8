"""`Topology`: the frozen graph of spouts, bolts and groupings, checked when it is built."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from waterspout._schema import check_topology_id
from waterspout._tuples import Fields
from waterspout.errors import TopologyError
from waterspout.topology._component import StreamSchema
from waterspout.topology._context import TopologyContext
from waterspout.topology._grouping import Grouping, GroupingKind

__all__ = [
    "RETURN_STREAM",
    "SYSTEM",
    "SYSTEM_TASK",
    "TICK_STREAM",
    "ComponentSpec",
    "Subscription",
    "Topology",
]

SYSTEM = "__system"
"""The component that ticks come from; its one task is -1."""

TICK_STREAM = "__tick"

RETURN_STREAM = "__return"
"""The direct stream on which bolts send something back to spout tasks in the driver."""

SYSTEM_TASK = -1

_NO_STREAM = 'no stream at all; write output_fields = ("word",) in its class'


@dataclass(frozen=True)
class Subscription:
    """One stream that a bolt takes, and how."""

    source: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True)
class ComponentSpec:
    """A spout or bolt, what it takes and what it emits."""

    id: str
    component: Any
    num_tasks: int
    streams: Mapping[str, StreamSchema]
    is_spout: bool
    inputs: tuple[Subscription, ...] = ()
    configuration: Mapping[str, Any] = field(default_factory=dict)
    read_on_executors: bool = False

    @property
    def title(self) -> str:
        """The component in an error's text."""
        return f"{'spout' if self.is_spout else 'bolt'} {self.id!r}"


@dataclass(frozen=True)
class Topology:
    """Components by id, in the order in which they were declared."""

    name: str
    components: Mapping[str, ComponentSpec]

    def __post_init__(self) -> None:
        check_topology_id(self.name)
        _validate(self.components)

    @property
    def spouts(self) -> list[ComponentSpec]:
        """The sources."""
        return [spec for spec in self.components.values() if spec.is_spout]

    @property
    def bolts(self) -> list[ComponentSpec]:
        """All that has inputs."""
        return [spec for spec in self.components.values() if not spec.is_spout]

    @cached_property
    def tasks(self) -> dict[str, tuple[int, ...]]:
        """The task ids of each component: 1, 2, 3... in the order of declaration."""
        tasks: dict[str, tuple[int, ...]] = {}
        following = 1
        for spec in self.components.values():
            tasks[spec.id] = tuple(range(following, following + spec.num_tasks))
            following += spec.num_tasks
        return tasks

    @cached_property
    def component_of(self) -> dict[int, str]:
        """The component of each task."""
        return {task: spec for spec, tasks in self.tasks.items() for task in tasks}

    @cached_property
    def subscribers(self) -> dict[tuple[str, str], list[tuple[ComponentSpec, Grouping]]]:
        """Who takes each stream, and how."""
        found: dict[tuple[str, str], list[tuple[ComponentSpec, Grouping]]] = {}
        for spec in self.components.values():
            for given in spec.inputs:
                found.setdefault((given.source, given.stream), []).append((spec, given.grouping))
        return found

    @cached_property
    def fields(self) -> dict[str, dict[str, Fields]]:
        """The fields of every stream, by component and stream id."""
        declared = {
            spec.id: {stream: schema.fields for stream, schema in spec.streams.items()}
            for spec in self.components.values()
        }
        declared[SYSTEM] = {TICK_STREAM: Fields("rate_secs")}
        return declared

    def outline(self) -> Topology:
        """Return the graph without the components themselves, which may be live by now."""
        bare = {id: replace(spec, component=None) for id, spec in self.components.items()}
        return Topology(self.name, bare)

    def context(self, task: int) -> TopologyContext:
        """Return what a task may know."""
        component = self.component_of[task]
        taken = [(given.source, given.stream) for given in self.components[component].inputs]
        sources = tuple(dict.fromkeys(taken))
        return TopologyContext(self.name, component, task, self.tasks, self.fields, sources)

    def fingerprint(self) -> dict[str, Any]:
        """Return what must not change between runs: the spouts and the streams they emit."""
        return {
            f"spout {spec.id}": {
                "kind": type(spec.component).__name__,
                "streams": {s: list(schema.fields) for s, schema in spec.streams.items()},
            }
            for spec in self.spouts
        }


def _validate(components: Mapping[str, ComponentSpec]) -> None:
    if not any(spec.is_spout for spec in components.values()):
        raise TopologyError("a topology needs at least one spout: call set_spout")
    for spec in components.values():
        if not spec.is_spout and not spec.inputs:
            raise TopologyError(
                f"bolt {spec.id!r} takes no stream; add a grouping, such as "
                ".shuffle_grouping(source)"
            )
        for given in spec.inputs:
            _validate_input(spec, given, components)


def _validate_input(
    bolt: ComponentSpec, given: Subscription, components: Mapping[str, ComponentSpec]
) -> None:
    where = bolt.title
    source = components.get(given.source)
    if source is None:
        raise TopologyError(
            f"{where} subscribes to {given.source!r}, but there is no such component"
            f"{_closest(given.source, components)}"
        )
    schema = source.streams.get(given.stream)
    if schema is None:
        raise TopologyError(
            f"{where} subscribes to stream {given.stream!r} of {given.source!r}, which declares "
            f"{', '.join(map(repr, source.streams)) or _NO_STREAM}"
            f"{_closest(given.stream, source.streams)}"
        )
    for name in given.grouping.fields:
        if name not in schema.fields:
            raise TopologyError(
                f"{where} groups stream {given.stream!r} of {given.source!r} by {name!r}, but its "
                f"fields are {', '.join(schema.fields)}{_closest(name, schema.fields)}"
            )
    is_direct = given.grouping.kind is GroupingKind.DIRECT
    if is_direct and not schema.direct:
        raise TopologyError(
            f"{where} takes stream {given.stream!r} of {given.source!r} by direct grouping, but "
            "it is not a direct stream; declare its fields with Direct(...)"
        )
    if schema.direct and not is_direct:
        raise TopologyError(
            f"{where} takes the direct stream {given.stream!r} of {given.source!r} by "
            f"{given.grouping} grouping; use direct_grouping"
        )


def _closest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
