"""From counts to the tables of spouts, bolts and states that people read. Pure functions.

A count is kept under a key of texts: what is counted, the component, and what it is counted by. All
latencies are means, in milliseconds; None where nothing was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from waterspout.topology._graph import Topology
from waterspout.trident.plan.plan import Plan

__all__ = [
    "BY_INPUT",
    "Counted",
    "Key",
    "Parts",
    "component_tables",
    "is_system",
    "mean_ms",
    "parts_of",
]

Key = tuple[str, ...]
"""For example ("executed", "count", "split", "default"): by the bolt "count", of the stream
"default" of "split"."""

BY_INPUT = ("executed", "execute_s", "acked", "failed", "process_s")


@dataclass(frozen=True, slots=True)
class Parts:
    """The components that a topology is known to have, with their numbers of tasks."""

    spouts: Mapping[str, int | None] = field(default_factory=dict)
    bolts: Mapping[str, int | None] = field(default_factory=dict)
    states: tuple[str, ...] = ()


def parts_of(described: Topology | Plan) -> Parts:
    """Return the components of a topology of bolts, or of a Trident plan, without hidden ones."""
    if isinstance(described, Plan):
        spouts = [name for name, source in described.sources.items() if not source.hidden]
        shown = [name for name in described.updates if not described.states[name].hidden]
        return Parts(dict.fromkeys(spouts), {}, tuple(shown))
    sizes = {spec.id: spec.num_tasks for spec in described.components.values()}
    return Parts(
        {spec.id: sizes[spec.id] for spec in described.spouts},
        {spec.id: sizes[spec.id] for spec in described.bolts},
        tuple(getattr(described, "states", ())),
    )


class Counted:
    """Counts of a window, to be asked by what they are of."""

    def __init__(self, totals: Mapping[Key, float]) -> None:
        self._totals = totals

    def sum(self, *prefix: str) -> float:
        """Return the sum of all counts whose keys begin so."""
        size = len(prefix)
        return sum(n for key, n in self._totals.items() if key[:size] == prefix)

    def of(self, *key: str) -> float:
        """Return one count; 0 if there is none."""
        return self._totals.get(key, 0)

    def next(self, *prefix: str) -> list[str]:
        """Return, in order, what comes after these in keys."""
        size = len(prefix)
        found = {k[size] for k in self._totals if len(k) > size and k[:size] == prefix}
        return sorted(found)

    def keys(self, what: str) -> list[Key]:
        """Return the keys of what is counted under this name."""
        return [key for key in self._totals if key[0] == what]

    def has(self, *prefix: str) -> bool:
        """Return whether anything was counted whose key begins so."""
        size = len(prefix)
        return any(key[:size] == prefix for key in self._totals)


def is_system(name: str) -> bool:
    """Whether a component or a stream is the library's own: `__acker`, `__tick`."""
    return name.startswith("__")


def mean_ms(seconds: float, count: float) -> float | None:
    """Return a mean in milliseconds; None of nothing."""
    return 1000 * seconds / count if count else None


def component_tables(
    counted: Counted,
    recent: Counted,
    parts: Parts,
    errors: Mapping[str, Mapping[str, Any]],
    *,
    covers_s: float,
    recent_s: float,
) -> dict[str, Any]:
    """Return the tables of a window that covers so many seconds.

    Capacity is always that of the last ten minutes, which `recent` and `recent_s` are of.
    """
    spouts = _all(parts.spouts, counted.next("spout"))
    bolts = [b for b in _all(parts.bolts, counted.next("bolt")) if b not in spouts]
    states = _all(parts.states, counted.next("writes"))
    return {
        "spouts": [_spout(counted, id, parts, errors, covers_s) for id in spouts],
        "bolts": [_bolt(counted, recent, id, parts, errors, covers_s, recent_s) for id in bolts],
        "states": [_state(counted, id, covers_s) for id in states],
        "edges": _edges(counted, bolts, covers_s),
    }


def _all(known: Iterable[str], counted: Iterable[str]) -> list[str]:
    """Return what the topology has, in its order, and then what was counted besides."""
    return list(dict.fromkeys([*known, *counted]))


def _spout(
    counted: Counted,
    id: str,
    parts: Parts,
    errors: Mapping[str, Mapping[str, Any]],
    covers_s: float,
) -> dict[str, Any]:
    acked = counted.of("tree_acked", id)
    rows = counted.of("input_rows", id) if counted.has("tells", id) else None
    given = counted.sum("emitted", id) if rows is None else rows
    return {
        **_head(id, parts.spouts.get(id), errors),
        "emitted": int(counted.sum("emitted", id)),
        "transferred": int(counted.sum("transferred", id)),
        "acked": int(acked),
        "failed": int(counted.of("tree_failed", id)),
        "timed_out": int(counted.of("timed_out", id)),
        "complete_ms": mean_ms(counted.of("complete_s", id), acked),
        "rows": None if rows is None else int(rows),
        "per_s": _rate(given, covers_s),
        "outputs": _outputs(counted, id),
    }


def _bolt(
    counted: Counted,
    recent: Counted,
    id: str,
    parts: Parts,
    errors: Mapping[str, Mapping[str, Any]],
    covers_s: float,
    recent_s: float,
) -> dict[str, Any]:
    inputs = _inputs(counted, id)
    # As in Storm, what is of the system is not added up; but all that an acker does is.
    shown = [each for each in inputs if is_system(id) or not each["system"]]
    n = {
        what: sum(counted.of(what, id, each["component"], each["stream"]) for each in shown)
        for what in BY_INPUT
    }
    finished = counted.of("finished", id)
    tasks = [_task(counted, recent, id, task, recent_s) for task in counted.next("task_s", id)]
    capacities = [task["capacity"] for task in tasks if task["capacity"] is not None]
    return {
        **_head(id, parts.bolts.get(id), errors),
        "emitted": int(counted.sum("emitted", id)),
        "transferred": int(counted.sum("transferred", id)),
        "executed": int(n["executed"]),
        "execute_ms": mean_ms(n["execute_s"], n["executed"]),
        "process_ms": mean_ms(n["process_s"], n["acked"]),
        "finish_ms": mean_ms(counted.of("finish_s", id), finished),
        "acked": int(n["acked"]),
        "failed": int(n["failed"]),
        "capacity": max(capacities, default=None),
        "per_s": _rate(n["executed"], covers_s),
        "inputs": inputs,
        "outputs": _outputs(counted, id),
        "by_task": tasks,
    }


def _head(id: str, tasks: int | None, errors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    error = errors.get(id)
    return {
        "id": id,
        "system": is_system(id),
        "tasks": tasks,
        "last_error": None if error is None else error["error"],
        "error_time": None if error is None else error["last"],
    }


def _inputs(counted: Counted, id: str) -> list[dict[str, Any]]:
    found = []
    for source in counted.next("executed", id):
        for stream in counted.next("executed", id, source):
            n = {what: counted.of(what, id, source, stream) for what in BY_INPUT}
            found.append(
                {
                    "component": source,
                    "stream": stream,
                    "system": is_system(stream),
                    "executed": int(n["executed"]),
                    "execute_ms": mean_ms(n["execute_s"], n["executed"]),
                    "process_ms": mean_ms(n["process_s"], n["acked"]),
                    "acked": int(n["acked"]),
                    "failed": int(n["failed"]),
                }
            )
    return found


def _outputs(counted: Counted, id: str) -> list[dict[str, Any]]:
    return [
        {
            "stream": stream,
            "emitted": int(counted.of("emitted", id, stream)),
            "transferred": int(counted.of("transferred", id, stream)),
        }
        for stream in counted.next("emitted", id)
    ]


def _task(counted: Counted, recent: Counted, id: str, task: str, recent_s: float) -> dict[str, Any]:
    executed, busy_s = counted.of("task_executed", id, task), recent.of("task_s", id, task)
    return {
        "task": int(task),
        "executed": int(executed),
        "execute_ms": mean_ms(counted.of("task_s", id, task), executed),
        # Storm's executed * execute latency / time: which is the share of time it was busy.
        "capacity": busy_s / recent_s if recent_s > 0 else None,
    }


def _state(counted: Counted, id: str, covers_s: float) -> dict[str, Any]:
    rows = counted.of("rows", id) if counted.has("told", id) else None
    return {
        "id": id,
        "rows": None if rows is None else int(rows),
        "batches": int(counted.of("writes", id)),
        "per_s": None if rows is None else _rate(rows, covers_s),
    }


def _edges(counted: Counted, bolts: Iterable[str], covers_s: float) -> list[dict[str, Any]]:
    """Return what went from each component to each bolt: what the bolt has executed of it."""
    found = []
    for bolt in bolts:
        for source in counted.next("executed", bolt):
            for stream in counted.next("executed", bolt, source):
                tuples = counted.of("executed", bolt, source, stream)
                found.append(
                    {
                        "source": source,
                        "target": bolt,
                        "stream": stream,
                        "tuples": int(tuples),
                        "per_s": _rate(tuples, covers_s),
                    }
                )
    return found


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None
