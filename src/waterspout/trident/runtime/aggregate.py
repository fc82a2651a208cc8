"""Aggregators written in Python, over the tuples of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waterspout.config import Config
from waterspout.schema import Schema
from waterspout.serde import encode_key
from waterspout.trident.operations.contracts import (
    Aggregator,
    CombinerAggregator,
    OperationContext,
    ReducerAggregator,
    TridentCollector,
)
from waterspout.trident.plan.nodes import Aggregate
from waterspout.trident.runtime.rows import as_tuples, rows_to_batch
from waterspout.tuples import TridentTuple

__all__ = ["AggregateStep", "aggregate_step", "combine_partials", "run_aggregate"]


@dataclass(frozen=True, slots=True)
class AggregateStep:
    """An aggregator with what it must know of its node; picklable."""

    title: str
    aggregator: Any
    group: tuple[str, ...]
    fields: tuple[str, ...]
    schema: Schema
    grouped: bool


def aggregate_step(node: Aggregate) -> AggregateStep:
    """Return a node as a step."""
    return AggregateStep(
        node.title,
        node.aggregator,
        node.group or (),
        node.fields,
        node.schema,
        node.group is not None,
    )


def run_aggregate(
    step: AggregateStep,
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
    batch_id: Any,
    *,
    partial: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Aggregate a partition from its tuples.

    `partial`: this is a first step of a combiner, whose results are combined again; a
    partition without tuples then gives nothing.
    """
    aggregator = step.aggregator
    aggregator.prepare(conf, context)
    try:
        groups: dict[str, _Group] = {}
        if not step.grouped and not partial:
            groups[encode_key(())] = _Group((), _start(aggregator, batch_id))
        for batch in batches:
            keys = as_tuples(batch, step.group)
            for key, row in zip(keys, as_tuples(batch, step.fields), strict=True):
                name = encode_key(key.values)
                group = groups.get(name)
                if group is None:
                    group = groups[name] = _Group(key.values, _start(aggregator, batch_id))
                group.fold.take(row)
        yield _collect(step, groups)
    finally:
        aggregator.cleanup()


def combine_partials(
    step: AggregateStep,
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Combine the partial results of a combiner into one per group."""
    aggregator: CombinerAggregator[Any] = step.aggregator
    aggregator.prepare(conf, context)
    try:
        groups: dict[str, _Group] = {}
        if not step.grouped:
            groups[encode_key(())] = _Group((), _CombineFold(aggregator))
        names = step.schema.names[len(step.group) :]
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in names]
            values = zip(*columns, strict=True) if len(columns) > 1 else columns[0]
            for key, partial in zip(as_tuples(batch, step.group), values, strict=True):
                name = encode_key(key.values)
                group = groups.get(name)
                if group is None:
                    group = groups[name] = _Group(key.values, _CombineFold(aggregator))
                group.fold.combine(partial)
        yield _collect(step, groups)
    finally:
        aggregator.cleanup()


def _collect(step: AggregateStep, groups: dict[str, _Group]) -> pa.RecordBatch:
    rows = [(*group.key, *made) for group in groups.values() for made in group.fold.finish()]
    return rows_to_batch(rows, step.schema, step.title)


class _CombineFold:
    def __init__(self, aggregator: CombinerAggregator[Any]) -> None:
        self._aggregator = aggregator
        self._value: Any = None
        self._empty = True

    def take(self, row: TridentTuple) -> None:
        self.combine(self._aggregator.init(row))

    def combine(self, value: Any) -> None:
        self._value = value if self._empty else self._aggregator.combine(self._value, value)
        self._empty = False

    def finish(self) -> Sequence[Sequence[Any]]:
        value = self._aggregator.zero() if self._empty else self._value
        return [value if getattr(self._aggregator, "is_wide", False) else (value,)]


class _ReduceFold:
    def __init__(self, aggregator: ReducerAggregator[Any]) -> None:
        self._reduce: Callable[[Any, TridentTuple], Any] = aggregator.reduce
        self._value = aggregator.init()

    def take(self, row: TridentTuple) -> None:
        self._value = self._reduce(self._value, row)

    def finish(self) -> Sequence[Sequence[Any]]:
        return [(self._value,)]


class _AggregatorFold:
    def __init__(self, aggregator: Aggregator[Any], batch_id: Any) -> None:
        self._aggregator = aggregator
        self._collector = TridentCollector()
        self._value = aggregator.init(batch_id, self._collector)

    def take(self, row: TridentTuple) -> None:
        self._aggregator.aggregate(self._value, row, self._collector)

    def finish(self) -> Sequence[Sequence[Any]]:
        self._aggregator.complete(self._value, self._collector)
        return self._collector.rows


@dataclass(slots=True)
class _Group:
    key: tuple[Any, ...]
    fold: Any


def _start(aggregator: Any, batch_id: Any) -> Any:
    if isinstance(aggregator, CombinerAggregator):
        return _CombineFold(aggregator)
    if isinstance(aggregator, ReducerAggregator):
        return _ReduceFold(aggregator)
    return _AggregatorFold(aggregator, batch_id)
