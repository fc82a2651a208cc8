"""The windows of a stream, as an update of the state that keeps their tuples."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._tuples import TridentTuple, field_index
from waterspout.state._base import MapState
from waterspout.state._head import Claim
from waterspout.trident.operations.contracts import (
    OperationContext,
    StateUpdater,
    TridentCollector,
)
from waterspout.trident.runtime.aggregate import start_fold
from waterspout.trident.windowing.buffer import StoredTuples
from waterspout.trident.windowing.chunks import Held
from waterspout.trident.windowing.config import WindowConfig

__all__ = ["WindowSpan", "WindowUpdater"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Which window it is: what the `init` of an Aggregator gets instead of a batch id.

    By count, `start` and `end` are numbers of tuples of the partition: the window holds all from
    number `start` on (the first is number 0) and before `end`. By time they are times in UTC: it
    holds the tuples of the batches begun at `start` or later, and before `end`.
    """

    partition: int
    start: int | dt.datetime
    end: int | dt.datetime


class WindowUpdater(StateUpdater[MapState[Any]]):
    """Adds a batch's tuples to the buffer and emits the results of the windows that are due.

    A replay finds the buffer as the batch before it left it, so every attempt emits the
    results of the same windows.
    """

    def __init__(self, config: WindowConfig, inputs: Schema, aggregator: Any) -> None:
        self.config = config
        self._inputs = inputs
        self._aggregator = aggregator
        self._index = field_index(inputs.names)
        self.ends = ((config.span, config.step),) if config.by_time else None
        """The windows at whose ends a batch is due, in milliseconds; None: time is not needed."""
        own = getattr(aggregator, "deterministic", True) is not False
        self.deterministic = own and config.by_time
        if own:
            self.varies = "is by count: it goes by the order of tuples, which a replay may change"

    def prepare(self, conf: Config, context: OperationContext) -> None:
        self._aggregator.prepare(conf, context)

    def cleanup(self) -> None:
        self._aggregator.cleanup()

    def begin_batch(self, claim: Claim, partition: int) -> None:
        """Learn which partition of the state follows, and what time it is in its batch."""
        self._partition = partition
        self._batch_time = claim.batch_time

    def update_state(
        self,
        state: MapState[Any],
        tuples: Sequence[TridentTuple],
        collector: TridentCollector,
    ) -> None:
        names = self._inputs.names
        buffer = StoredTuples(state, self._partition, names, by_time=self.config.by_time)
        new, now = self._arrived(buffer, tuples)
        ends = self._due(buffer, now)
        if ends:
            self._emit(ends, buffer, new, collector)
        if ends or new.rows:
            start = self.config.keep_from(now)
            buffer.drop_before(start)
            buffer.append(new.since(start), start)
            buffer.store(now)

    def _arrived(self, buffer: StoredTuples, tuples: Sequence[TridentTuple]) -> tuple[Held, int]:
        """Return the batch's tuples with their marks, and the least mark of later tuples."""
        rows: list[Sequence[Any]] = [row.values for row in tuples]
        if not self.config.by_time:
            before = buffer.done or 0
            now = before + len(rows)
            return Held(list(range(before, now)), rows), now
        assert self._batch_time is not None, "a batch with windows by time has a time"
        now = round(self._batch_time * 1000)
        return Held([now] * len(rows), rows), now

    def _due(self, buffer: StoredTuples, now: int) -> list[int]:
        if not self.config.by_time:
            return list(self.config.ends_due(buffer.done or 0, now, now))
        # By time, the tuples of this batch are in none of the windows that end now.
        if buffer.done is None or buffer.last_mark is None:
            return []
        return list(self.config.ends_due(buffer.done, now, buffer.last_mark))

    def _emit(
        self, ends: Sequence[int], buffer: StoredTuples, new: Held, collector: TridentCollector
    ) -> None:
        held = buffer.read(ends[0] - self.config.span)
        held.extend(new)
        for end in ends:
            rows = held.between(end - self.config.span, end)
            if rows:
                for made in self._result(rows, end):
                    collector.emit(made)

    def _result(self, rows: Sequence[Sequence[Any]], end: int) -> Sequence[Sequence[Any]]:
        fold = start_fold(self._aggregator, self._span(end), self._inputs)
        for row in rows:
            fold.take(TridentTuple(tuple(row), self._index))
        return fold.finish()

    def _span(self, end: int) -> WindowSpan:
        start = end - self.config.span
        if not self.config.by_time:
            return WindowSpan(self._partition, max(0, start), end)
        return WindowSpan(self._partition, _time(start), _time(end))


def _time(millis: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=millis)
