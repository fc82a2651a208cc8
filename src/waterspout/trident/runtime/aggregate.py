"""Aggregators written in Python, over the tuples of a partition."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._serde import encode_key
from waterspout._tuples import TridentTuple
from waterspout.trident.operations.contracts import (
    Aggregator,
    CombinerAggregator,
    OperationContext,
    ReducerAggregator,
    TridentCollector,
)
from waterspout.trident.plan.nodes import Aggregate
from waterspout.trident.runtime.rows import as_tuples, prepared, rows_to_batch

__all__ = [
    "Fold",
    "combine_partials",
    "partial_schema",
    "run_aggregate",
    "start_fold",
]


def run_aggregate(
    node: Aggregate,
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
    batch_id: Any,
    *,
    partial: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Aggregate a partition from its tuples.

    `partial`: this is a first step of combiners, whose results are combined again; a
    partition without tuples then gives nothing.
    """
    with prepared(node.operations, conf, context):
        groups = _Groups(node, batch_id)
        if node.group is None and not partial:
            groups.of(())
        for batch in batches:
            rows = [as_tuples(batch, one.fields) for one in node.aggregations]
            for number, key in enumerate(as_tuples(batch, node.group or ())):
                for fold, tuples in zip(groups.of(key.values), rows, strict=True):
                    fold.take(tuples[number])
        yield _collect(node, groups, partial=partial)


def combine_partials(
    node: Aggregate,
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Combine the partial results of combiners into one result per group."""
    with prepared(node.operations, conf, context):
        groups = _Groups(node, None)
        if node.group is None:
            groups.of(())
        names = iter(partial_schema(node).names[len(node.group or ()) :])
        columns = [tuple(itertools.islice(names, len(one.out))) for one in node.aggregations]
        for batch in batches:
            values = [_values(batch, fields) for fields in columns]
            for number, key in enumerate(as_tuples(batch, node.group or ())):
                for fold, found in zip(groups.of(key.values), values, strict=True):
                    fold.combine(found[number])
        yield _collect(node, groups, partial=False)


def partial_schema(node: Aggregate) -> Schema:
    """Return the group and, for each combiner, what can still be combined."""
    fields = list(node.schema.fields[: len(node.group or ())])
    for number, one in enumerate(node.aggregations):
        known = one.aggregator.value_types(one.inputs.types)
        types = one.out.types if known is None else known
        fields += [(f"_waterspout_{number}_{i}", kind) for i, kind in enumerate(types)]
    return Schema(tuple(fields))


def start_fold(aggregator: Any, batch_id: Any, inputs: Schema) -> Fold:
    """Return something that takes tuples one by one and gives an aggregator's rows at the end."""
    if isinstance(aggregator, CombinerAggregator):
        return _CombineFold(aggregator)
    if isinstance(aggregator, ReducerAggregator):
        return _ReduceFold(aggregator)
    if hasattr(aggregator, "run_table"):
        return _TableFold(aggregator, inputs)
    assert isinstance(aggregator, Aggregator)
    return _AggregatorFold(aggregator, batch_id)


class Fold(ABC):
    """An aggregation under way."""

    @abstractmethod
    def take(self, row: TridentTuple) -> None:
        """Take in a tuple."""

    @abstractmethod
    def finish(self, *, finished: bool = True) -> Sequence[Sequence[Any]]:
        """Return the rows; not `finished`: as they can still be combined."""


class _CombineFold(Fold):
    def __init__(self, aggregator: CombinerAggregator[Any]) -> None:
        self._aggregator = aggregator
        self._init, self._combine = aggregator.init, aggregator.combine
        self._value: Any = None
        self._empty = True

    def take(self, row: TridentTuple) -> None:
        self.combine(self._init(row))

    def combine(self, value: Any) -> None:
        self._value = value if self._empty else self._combine(self._value, value)
        self._empty = False

    def finish(self, *, finished: bool = True) -> Sequence[Sequence[Any]]:
        value = self._aggregator.zero() if self._empty else self._value
        if finished and self._aggregator.finishes and value is not None:
            value = self._aggregator.finish(value)
        return [value if getattr(self._aggregator, "is_wide", False) else (value,)]


class _ReduceFold(Fold):
    def __init__(self, aggregator: ReducerAggregator[Any]) -> None:
        self._reduce: Callable[[Any, TridentTuple], Any] = aggregator.reduce
        self._value = aggregator.init()

    def take(self, row: TridentTuple) -> None:
        self._value = self._reduce(self._value, row)

    def finish(self, *, finished: bool = True) -> Sequence[Sequence[Any]]:
        return [(self._value,)]


class _AggregatorFold(Fold):
    def __init__(self, aggregator: Aggregator[Any], batch_id: Any) -> None:
        self._aggregator = aggregator
        self._collector = TridentCollector()
        self._value = aggregator.init(batch_id, self._collector)

    def take(self, row: TridentTuple) -> None:
        self._aggregator.aggregate(self._value, row, self._collector)

    def finish(self, *, finished: bool = True) -> Sequence[Sequence[Any]]:
        self._aggregator.complete(self._value, self._collector)
        return self._collector.rows


class _TableFold(Fold):
    """Collects a group's tuples for a vectorised aggregator."""

    def __init__(self, aggregator: Any, inputs: Schema) -> None:
        self._aggregator = aggregator
        self._inputs = inputs
        self._rows: list[tuple[Any, ...]] = []

    def take(self, row: TridentTuple) -> None:
        self._rows.append(row.values)

    def finish(self, *, finished: bool = True) -> Sequence[Sequence[Any]]:
        batch = rows_to_batch(self._rows, self._inputs, "an aggregator's input")
        table = pa.Table.from_batches([batch])
        rows: Sequence[Sequence[Any]] = self._aggregator.run_table(table)
        return rows


class _Groups:
    """The aggregations of each group, begun when its first tuple comes."""

    def __init__(self, node: Aggregate, batch_id: Any) -> None:
        self._node = node
        self._batch_id = batch_id
        self._by_name: dict[str, tuple[tuple[Any, ...], list[Any]]] = {}

    def of(self, key: tuple[Any, ...]) -> list[Any]:
        """Return the aggregations of a group."""
        name = encode_key(key) if key else ""
        found = self._by_name.get(name)
        if found is None:
            ones = self._node.aggregations
            folds = [start_fold(p.aggregator, self._batch_id, p.inputs) for p in ones]
            found = self._by_name[name] = (key, folds)
        return found[1]

    def all(self) -> Iterable[tuple[tuple[Any, ...], list[Any]]]:
        """Return each group's key and aggregations."""
        return self._by_name.values()


def _collect(node: Aggregate, groups: _Groups, *, partial: bool) -> pa.RecordBatch:
    finished = node.finished and not partial
    schema = partial_schema(node) if partial else node.schema
    rows: list[Sequence[Any]] = []
    for key, folds in groups.all():
        made = [fold.finish(finished=finished) for fold in folds]
        if len(made) == 1:
            rows += [(*key, *row) for row in made[0]]
        else:
            # Each result of each aggregator with each of the others; the last varies fastest.
            for choice in itertools.product(*made):
                rows.append((*key, *itertools.chain.from_iterable(choice)))
    return rows_to_batch(rows, schema, node.title, combined=True)


def _values(batch: pa.RecordBatch, fields: Sequence[str]) -> Sequence[Any]:
    columns = [batch.column(name).to_pylist() for name in fields]
    return list(zip(*columns, strict=True)) if len(columns) > 1 else columns[0]
