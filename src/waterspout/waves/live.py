"""Bolt tasks that stay alive in a worker process between two waves."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from waterspout.waves.bolts import BoltTask

__all__ = ["LiveTasks", "Worker"]

_RUNS_MAX = 8


class LiveTasks:
    """Bolts by run and task, each good for the one version it had after its last wave.

    A bolt is taken out while it works: one that a killed or failed wave has left half-done is
    never found again.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[str, dict[int, tuple[str, BoltTask]]] = OrderedDict()

    def take(self, run: str, task: int, version: str | None) -> BoltTask | None:
        """Return the bolt if it is alive here in this version."""
        found = self._runs.get(run, {}).pop(task, None)
        return found[1] if found is not None and found[0] == version else None

    def put(self, run: str, task: int, version: str, bolt: BoltTask) -> None:
        """Keep a bolt for the next wave."""
        self._runs.setdefault(run, {})[task] = (version, bolt)
        self._runs.move_to_end(run)
        while len(self._runs) > _RUNS_MAX:
            self._runs.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that runs a shard: the bolts alive in it, and the name of this try."""

    live: LiveTasks = field(default_factory=LiveTasks)
    token: str = ""
