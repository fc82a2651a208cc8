"""Numbers at a steady rate, for demonstrations and measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.spouts._base import BatchPlanner, BatchSpout, RunsIn, SpoutContext, SpoutKind
from waterspout.spouts._reads import RangeRead, Read

__all__ = ["RateSpout"]

_OWN_SIZE = 1_000_000


class RateSpout(BatchSpout):
    """Emit 0, 1, 2... with a timestamp each, `rows_per_second` of them.

    Transactional. A batch holds what is due, at most `max_batch_size` (None: as much as the sizes
    of batches allow, a million at first); after `limit` rows there are no more.
    """

    read_in = RunsIn.JVM
    kind = SpoutKind.TRANSACTIONAL

    def __init__(
        self,
        rows_per_second: float,
        *,
        max_batch_size: int | None = None,
        limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        is_size = max_batch_size is None or max_batch_size >= 1
        if rows_per_second <= 0 or not is_size or (limit is not None and limit < 0):
            raise TopologyError(
                "RateSpout needs a positive rate and batch size, and a limit of at least 0; got "
                f"rows_per_second={rows_per_second}, max_batch_size={max_batch_size}, limit={limit}"
            )
        self._rate = float(rows_per_second)
        self._size = max_batch_size
        self._limit = limit
        self._clock = clock

    @property
    def schema(self) -> Schema:
        return Schema.parse("value bigint, timestamp timestamp")

    def open(self, context: SpoutContext) -> BatchPlanner:
        """Go on behind the last batch that is known, at the rate from now on."""
        position = max((meta["end"] for meta in context.known.values()), default=0)
        return _RatePlanner(self._rate, self._size, self._limit, self._clock, position)

    def read(self, metadata: Any) -> Read:
        """Describe the range; the times follow from what was stored when it was planned."""
        return RangeRead(
            self.schema, metadata["start"], metadata["end"], metadata["epoch"], metadata["rate"]
        )

    def so_far(self, metadata: Any, folder: Path | None, spout_id: str) -> Any:
        """Begin at row 0; the times are those of the last run."""
        return {**metadata, "start": 0}


class _RatePlanner(BatchPlanner):
    def __init__(
        self,
        rate: float,
        size: int | None,
        limit: int | None,
        clock: Callable[[], float],
        position: int,
    ) -> None:
        self._rate = rate
        self._size = size
        self._limit = limit
        self._clock = clock
        # Row n is due n/rate seconds after this moment of the clock.
        self._start = clock() - position / rate
        self._epoch = time.time() - position / rate

    def is_ready(self, previous: Any) -> bool:
        return self._due() > _end(previous)

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        start = _end(previous)
        size = self._size or target or _OWN_SIZE
        end = max(start, min(self._due(), start + size))
        return {"start": start, "end": end, "epoch": self._epoch, "rate": self._rate}

    def size_of(self, metadata: Any) -> int | None:
        return None if self._size is not None else int(metadata["end"] - metadata["start"])

    def lag(self, previous: Any) -> Mapping[str, int]:
        return {"rows": max(0, self._due() - _end(previous))}

    def holds_data(self, metadata: Any) -> bool | None:
        return bool(metadata["end"] > metadata["start"])

    def _due(self) -> int:
        due = int((self._clock() - self._start) * self._rate)
        return due if self._limit is None else min(due, self._limit)


def _end(previous: Any) -> int:
    return 0 if previous is None else int(previous["end"])
