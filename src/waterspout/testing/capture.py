"""What the components of a topology emit, caught by one more bolt, in this process."""

from __future__ import annotations

import itertools
from typing import Any

from waterspout.topology.collector import BasicCollector
from waterspout.topology.component import BasicBolt
from waterspout.topology.graph import ComponentSpec, Subscription, Topology
from waterspout.topology.grouping import Grouping, GroupingKind
from waterspout.tuples import Tuple

__all__ = ["Capture"]

_ID = "__capture"

_caught: dict[int, dict[tuple[str, str], list[tuple[Any, ...]]]] = {}
_numbers = itertools.count(1)


class Capture:
    """Catches the tuples of all streams of one topology."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._taken = _caught[self._number] = {}

    def added_to(self, topology: Topology) -> Topology:
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

    def taken(self, component: str, stream: str) -> list[tuple[Any, ...]]:
        """Return the values that a component has emitted to a stream."""
        return list(self._taken.get((component, stream), ()))

    def close(self) -> None:
        """Let go of the bolt; what was taken stays here."""
        _caught.pop(self._number, None)


class _Catch(BasicBolt):
    """Its copies all put what they get into the same list."""

    def __init__(self, number: int) -> None:
        self._number = number

    def execute(self, tuple: Tuple, collector: BasicCollector) -> None:
        source = tuple.source_component, tuple.source_stream
        _caught[self._number].setdefault(source, []).append(tuple.values)
