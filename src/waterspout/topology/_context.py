"""What a task may know about the topology around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from waterspout._tuples import Fields

__all__ = ["TopologyContext"]


@dataclass(frozen=True)
class TopologyContext:
    """What a task knows about itself and its topology; given to `open` and `prepare`."""

    topology_name: str
    this_component_id: str
    this_task_id: int
    tasks: Mapping[str, tuple[int, ...]]
    """The task ids of every component."""

    streams: Mapping[str, Mapping[str, Fields]]
    """The fields of every stream, by component and stream id."""

    this_sources: tuple[tuple[str, str], ...] = ()
    """The streams that this component takes: component and stream id, each once."""

    @property
    def this_task_index(self) -> int:
        """The position of this task among those of its component, from 0."""
        return self.tasks[self.this_component_id].index(self.this_task_id)

    def component_tasks(self, component: str) -> tuple[int, ...]:
        """Return the task ids of a component, ascending."""
        return self.tasks[component]

    def component_id(self, task: int) -> str:
        """Return the component that a task belongs to."""
        for component, tasks in self.tasks.items():
            if task in tasks:
                return component
        raise KeyError(f"no task {task} in topology {self.topology_name!r}")

    def component_output_fields(self, component: str, stream: str = "default") -> Fields:
        """Return the fields of a stream."""
        return self.streams[component][stream]
