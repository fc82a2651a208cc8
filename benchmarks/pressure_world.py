"""What `benchmarks.pressure` runs over: a source with a schedule, a store of any speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waterspout._schema import Schema
from waterspout.spouts._base import BatchPlanner, BatchSpout, RunsIn, SpoutContext, SpoutKind
from waterspout.spouts._reads import RangeRead, Read
from waterspout.state import StateFactory, StateKind
from waterspout.state._kinds import make_map
from waterspout.state._memory import MemoryMap

__all__ = ["Arrivals", "SlowState", "Store"]


@dataclass
class Store:
    """How slow the database is now."""

    commit_s: float = 0.0
    row_s: float = 0.0
    keeps: bool = True
    """Without, it takes its time and forgets what it was given: only others may fill memory."""


class _SlowMap(MemoryMap[Any]):
    def __init__(self, store: Store) -> None:
        super().__init__("the slow map")
        self._is = store

    def fenced_put(self, stamp: Any, keys: Any, values: Any, read: Any = None) -> None:
        time.sleep(self._is.commit_s + self._is.row_s * len(keys))
        some = len(keys) if self._is.keeps else 1
        super().fenced_put(stamp, keys[:some], values[:some])


_MAPS: dict[int, _SlowMap] = {}
"""What a state is by its number: the recipe of a state must be picklable."""


class SlowState(StateFactory):
    """Opaque counts in memory."""

    kind = StateKind.OPAQUE
    driver_only = True
    volatile = True
    fenced = True

    def __init__(self, store: Store) -> None:
        self._number = len(_MAPS)
        _MAPS[self._number] = _SlowMap(store)

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        backing = _MAPS[self._number]
        return make_map(self.kind, backing, name="counts", partition=partition_index)


class Arrivals(BatchSpout):
    """Numbers that come as a schedule says: (until second, rows per second), the last for ever."""

    read_in = RunsIn.JVM
    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, schedule: Sequence[tuple[float, float]], size: int | None = None) -> None:
        self._schedule = schedule
        self._size = size
        self.began = 0.0

    @property
    def schema(self) -> Schema:
        return Schema.parse("value bigint, timestamp timestamp")

    def open(self, context: SpoutContext) -> BatchPlanner:
        self.began = time.monotonic()
        return _Arriving(self, self._size)

    def read(self, metadata: Any) -> Read:
        return RangeRead(self.schema, metadata["start"], metadata["end"], 0.0, 1000.0)

    def due(self, second: float) -> int:
        """How many have come so many seconds after the beginning."""
        total, begin = 0.0, 0.0
        for until, rate in self._schedule:
            total += rate * max(0.0, min(second, until) - begin)
            begin = until
        return int(total)


class _Arriving(BatchPlanner):
    def __init__(self, spout: Arrivals, size: int | None) -> None:
        self._spout = spout
        self._size = size

    def is_ready(self, previous: Any) -> bool:
        return self._due() > _end(previous)

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        start = _end(previous)
        return {"start": start, "end": min(self._due(), start + (self._size or target or 20_000))}

    def size_of(self, metadata: Any) -> int | None:
        return None if self._size is not None else int(metadata["end"] - metadata["start"])

    def lag(self, previous: Any) -> dict[str, int]:
        return {"rows": max(0, self._due() - _end(previous))}

    def _due(self) -> int:
        return self._spout.due(time.monotonic() - self._spout.began)


def _end(previous: Any) -> int:
    return 0 if previous is None else int(previous["end"])
