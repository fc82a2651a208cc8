"""What the components of a topology emit, caught by one more bolt, in this process."""

from __future__ import annotations

import itertools
import time
from typing import Any

from waterspout._tuples import Tuple
from waterspout.topology._collector import BasicCollector
from waterspout.topology._component import BasicBolt
from waterspout.topology._graph import ComponentSpec, Subscription, Topology
from waterspout.topology._grouping import Grouping, GroupingKind

__all__ = ["CapturedRun"]

_ID = "__capture"

_caught: dict[int, dict[tuple[str, str], list[tuple[Any, ...]]]] = {}
_numbers = itertools.count(1)


class CapturedRun:
    """What `LocalWaves` and `LocalBatches` share: simulated time, and what components emit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._now = time.monotonic()
        self._number = next(_numbers)
        self._emitted = _caught[self._number] = {}

    def emitted(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return the values that a component has emitted to a stream, replays included.

        In a transactional topology the attempt is the first value. A direct stream shows nothing:
        only the task that is named gets its tuples.
        """
        return list(self._emitted.get((component, stream), ()))

    def advance(self, seconds: float) -> None:
        """Let time pass: for timeouts, ticks, and the pause before a replay."""
        self._now += seconds

    def _capturing(self, topology: Topology) -> Topology:
        """Return the topology with a last bolt that gets a copy of everything."""
        inputs = tuple(
            Subscription(spec.id, stream, Grouping(GroupingKind.GLOBAL))
            for spec in topology.components.values()
            for stream, schema in spec.streams.items()
            if not schema.direct
        )
        if not inputs:
            return topology
        bolt = ComponentSpec(
            _ID,
            _Catch(self._number),
            1,
            {},
            is_spout=False,
            inputs=inputs,
            configuration={"topology.tick.tuple.freq.secs": None},
        )
        return Topology(topology.name, {**topology.components, _ID: bolt})

    def _release_bolt(self) -> None:
        """Let go of the bolt; what it caught stays here."""
        _caught.pop(self._number, None)


class _Catch(BasicBolt):
    """Its copies all put what they get into the same list."""

    def __init__(self, number: int) -> None:
        self._number = number

    def execute(self, tuple: Tuple, collector: BasicCollector) -> None:
        source = tuple.source_component, tuple.source_stream
        _caught[self._number].setdefault(source, []).append(tuple.values)
