"""What the tests of windows share: aggregators that show what they saw; the rules, done slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from waterspout import Config
from waterspout._schema import Schema
from waterspout._tuples import TridentTuple, field_index
from waterspout.state import MemoryMapState
from waterspout.state._head import Claim
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident import Aggregator, CombinerAggregator, ReducerAggregator
from waterspout.trident.operations.contracts import OperationContext, TridentCollector
from waterspout.trident.windowing.config import WindowConfig
from waterspout.trident.windowing.updater import WindowUpdater


class Listed(ReducerAggregator[list[Any]]):
    """The first field of every tuple of the window, in order."""

    def init(self):
        return []

    def reduce(self, value, tuple):
        return [*value, tuple[0]]


class Ids(CombinerAggregator[list[int]]):
    """The same as a combiner."""

    def init(self, tuple):
        return [tuple[0]]

    def combine(self, left, right):
        return [*left, *right]

    def zero(self):
        return []


class Spans(Aggregator[list[Any]]):
    """A row with the window itself, and one with what it held."""

    def init(self, batch_id, collector):
        return [batch_id]

    def aggregate(self, value, tuple, collector):
        value.append(tuple[0])

    def complete(self, value, collector):
        span, *held = value
        collector.emit((repr(span),))
        collector.emit((repr(held),))


class Driven:
    """Batches through one window and one state, without a topology."""

    def __init__(
        self,
        config: WindowConfig,
        aggregator: Any = None,
        factory: Any = None,
        fields: str = "id bigint",
        partition: int = 0,
    ) -> None:
        self.factory = factory or MemoryMapState()
        self.state = self.factory.make_state(Config(), 0, 1)
        self.inputs = Schema.parse(fields)
        self.updater = WindowUpdater(config, self.inputs, aggregator or Listed())
        self.resolved: dict[int, int] = {}
        self.txid = 1
        self._partition = partition

    def attempt(
        self, rows: Sequence[Any], number: int = 0, at: float | None = None
    ) -> list[Sequence[Any]]:
        """Let an attempt at the current batch write, without marking it."""
        index = field_index(self.inputs.names)
        tuples = [TridentTuple(r if isinstance(r, tuple) else (r,), index) for r in rows]
        collector = TridentCollector()
        self.state.begin_commit(self.txid, number, self.resolved)
        self.updater.prepare(Config(), OperationContext(self._partition, 1))
        attempt = TransactionAttempt(self.txid, number)
        claim = Claim(attempt, resolved=self.resolved, batch_time=at)
        self.updater.begin_batch(claim, self._partition)
        try:
            self.updater.update_state(self.state, tuples, collector)
        finally:
            self.updater.cleanup()
        self.state.commit(self.txid)
        return collector.rows

    def commit(
        self, rows: Sequence[Any], at: float | None = None, number: int = 0
    ) -> list[Sequence[Any]]:
        """Let an attempt write and mark it; return what it emitted."""
        made = self.attempt(rows, number, at)
        if number:
            self.resolved[self.txid] = number
        self.txid += 1
        return made

    def slots(self) -> dict[int, str]:
        """Every slot that the state has, with its text."""
        found = [pair for chunk in self.state.scan() for pair in chunk]
        return {key[1]: value for key, value in found}


def counted(config: WindowConfig, batches: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return what each batch emits by the rules of a window by count, the slow way."""
    everything: list[Any] = []
    made = []
    for rows in batches:
        windows = []
        for row in rows:
            everything.append(row)
            if len(everything) % config.step == 0:
                windows.append(everything[-config.span :])
        made.append(windows)
    return made


def timed(
    config: WindowConfig, batches: Sequence[tuple[int, Sequence[Any]]]
) -> list[list[list[Any]]]:
    """Return what each batch emits by the rules of a window by time, the slow way."""
    everything: list[tuple[int, Any]] = []
    made = []
    before = batches[0][0] if batches else 0
    for now, rows in batches:
        windows = []
        for end in range(before + 1, now + 1):
            held = [row for time, row in everything if end - config.span <= time < end]
            if end % config.step == 0 and held:
                windows.append(held)
        made.append(windows)
        everything += [(now, row) for row in rows]
        before = now
    return made


def lists(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the one field of each emitted row."""
    return [row[0] for row in rows]


def settings(mapping: Mapping[str, Any] | None = None) -> Config:
    """Return a configuration that wastes no time."""
    return Config(retry_backoff_millis=0, cancel_wait_secs=0.0, **(mapping or {}))
