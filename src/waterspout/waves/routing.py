"""The outlets of a task: its streams, each with the way to its subscribers' tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from waterspout.topology.graph import Topology
from waterspout.topology.grouping import GroupingKind, Route, make_route, turn_of
from waterspout.topology.ports import Outlet

__all__ = ["make_outlets"]


def make_outlets(
    topology: Topology,
    task: int,
    turn: int,
    near: Callable[[str], Sequence[int]] | None = None,
) -> dict[str, Outlet]:
    """Return the outlets of a task for one wave.

    `near` names the tasks of a component that run in the same shard, later than this one. Where
    there are any, groupings that take any task are limited to these.
    """
    component = topology.component_of[task]
    context = topology.context(task)
    outlets: dict[str, Outlet] = {}
    for stream, schema in topology.components[component].streams.items():
        routes: list[Route] = []
        direct: set[int] = set()
        for consumer, grouping in topology.subscribers.get((component, stream), []):
            tasks: Sequence[int] = topology.tasks[consumer.id]
            if grouping.kind is GroupingKind.DIRECT:
                direct.update(tasks)
                continue
            if near is not None and grouping.takes_any_task:
                tasks = near(consumer.id) or tasks
            routes.append(
                make_route(
                    grouping,
                    schema.fields,
                    tasks,
                    context=context,
                    stream=stream,
                    turn=turn_of(turn + 31 * task),
                )
            )
        outlets[stream] = Outlet(
            stream, schema.fields, _together(routes), frozenset(direct) if schema.direct else None
        )
    return outlets


def _together(routes: Sequence[Route]) -> Route:
    if not routes:
        return lambda values: ()
    if len(routes) == 1:
        return routes[0]

    def all_of(values: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple([task for route in routes for task in route(values)])

    return all_of
