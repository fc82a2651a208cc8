"""Aggregators that keep some of what they saw: a set, the greatest rows, a sketch of a set."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from waterspout._schema import FieldNames, field_names
from waterspout._serde import encode_key
from waterspout._tuples import TridentTuple
from waterspout.errors import MissingDependencyError, SerdeError, TopologyError
from waterspout.trident.operations.contracts import CombinerAggregator
from waterspout.trident.operations.ordering import identity, order

__all__ = ["EMPTY_TEXT", "CollectSet", "CountDistinct", "TopN", "can_be_compared"]

EMPTY_TEXT = "\x00waterspout: the empty text\x00"
"""Given to a sketch in place of an empty text, which it would ignore."""

_Row = dict[str, Any]


def can_be_compared(kind: str | None) -> bool:
    """Whether values of a type can be told apart and put in order; maps cannot."""
    return kind is not None and re.search(r"\b(map|variant|interval)\b", kind, re.I) is None


@dataclass(frozen=True)
class CollectSet(CombinerAggregator[list[Any]]):
    """The different values of a field as a sorted array; nulls are left out.

    Grows with the number of values: where there are many and only their number counts, use
    `CountDistinct`.

    >>> CollectSet().combine(["a", "c"], ["b", "c"])
    ['a', 'b', 'c']
    """

    def init(self, tuple: TridentTuple) -> list[Any]:
        value = tuple[0]
        if type(value) is float:
            value += 0.0  # -0.0 and 0.0 are one value: the latter
        return [] if value is None else [value]

    def combine(self, left: list[Any], right: list[Any]) -> list[Any]:
        if not left or not right:
            return left or right
        if len(right) == 1:
            return _with(left, right[0])
        united: list[Any] = []
        for value in heapq.merge(left, right, key=order):
            if not united or order(united[-1]) != order(value):
                united.append(value)
        return united

    def zero(self) -> list[Any]:
        return []

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        if len(inputs) != 1:
            raise TopologyError(f"CollectSet takes one field, not {len(inputs)}")
        if inputs[0] is not None and not can_be_compared(inputs[0]):
            raise TopologyError(f"CollectSet cannot tell values of type {inputs[0]} apart")
        return [None if inputs[0] is None else f"array<{inputs[0]}>"]


def _with(values: list[Any], value: Any) -> list[Any]:
    """Return a sorted list with one value more, if it is not there yet."""
    rank = order(value)
    at = bisect_left(values, rank, key=order)
    if at < len(values) and order(values[at]) == rank:
        return values
    return [*values[:at], value, *values[at:]]


class TopN(CombinerAggregator[list[_Row]]):
    """The rows with the greatest values, as an array of structs, the greatest first.

    `TopN(3, ["user", "score"], by="score")` reads these fields of the stream and keeps three
    rows of them. `by` may be several fields; with `reverse` the least come first. Rows where one
    of them is null are left out. Of rows with equal values, those whose other fields are less
    come first.

    >>> top = TopN(2, ["user", "score"], by="score")
    >>> rows = [{"user": "a", "score": 5}], [{"user": "b", "score": 7}, {"user": "c", "score": 5}]
    >>> top.combine(*rows)
    [{'user': 'b', 'score': 7}, {'user': 'a', 'score': 5}]
    """

    def __init__(
        self, n: int, fields: FieldNames, *, by: FieldNames, reverse: bool = False
    ) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise TopologyError(f"TopN keeps 1 row or more, not {n!r}")
        self.n = n
        self.input_fields = field_names(fields)
        self.by = field_names(by)
        self.reverse = reverse
        unknown = [name for name in self.by if name not in self.input_fields]
        if unknown or not self.by:
            raise TopologyError(
                f"TopN is by {', '.join(unknown) or 'no field'}, but reads "
                f"{', '.join(self.input_fields)}; `by` names one of the fields that it reads"
            )

    def init(self, tuple: TridentTuple) -> list[_Row]:
        row = {name: tuple[name] for name in self.input_fields}
        return [] if any(row[name] is None for name in self.by) else [row]

    def combine(self, left: list[_Row], right: list[_Row]) -> list[_Row]:
        if not left or not right:
            return left or right
        if len(left) == self.n and len(right) == 1 and self._is_behind(right[0], left[-1]):
            return left  # most tuples are not among the greatest
        rows = sorted([*left, *right], key=lambda row: order([row[f] for f in self.input_fields]))
        rows.sort(key=lambda row: order([row[f] for f in self.by]), reverse=not self.reverse)
        return rows[: self.n]

    def _is_behind(self, row: _Row, other: _Row) -> bool:
        mine, others = (order([each[f] for f in self.by]) for each in (row, other))
        return mine > others if self.reverse else mine < others

    def zero(self) -> list[_Row]:
        return []

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        if len(inputs) != len(self.input_fields):
            raise TopologyError(
                f"TopN reads {', '.join(self.input_fields)} and was given {len(inputs)} fields; "
                "leave the fields out, it knows them"
            )
        pairs = list(zip(self.input_fields, inputs, strict=True))
        for name, kind in pairs:
            if kind is not None and not can_be_compared(kind):
                raise TopologyError(f"TopN cannot put {name!r} of type {kind} in order")
        if None in inputs:
            return [None]
        return [f"array<struct<{','.join(f'{name}:{kind}' for name, kind in pairs)}>>"]

    def __repr__(self) -> str:
        return f"TopN({self.n}, by={', '.join(self.by)})"


@dataclass(frozen=True)
class CountDistinct(CombinerAggregator[bytes]):
    """How many different values there are, nearly; tuples with a null are not counted.

    A state keeps a HyperLogLog sketch of at most `2 ** lg_k` bytes, however many values there
    are, and any two can be combined. Some hundreds of values are counted exactly; more with a
    standard error of about `1.04 / 2 ** (lg_k / 2)`: 1.6 % for 12.
    """

    lg_k: int = 12

    finishes = True
    bounds: ClassVar[tuple[int, int]] = (4, 21)

    def __post_init__(self) -> None:
        least, most = self.bounds
        whole = isinstance(self.lg_k, int) and not isinstance(self.lg_k, bool)
        if not whole or not least <= self.lg_k <= most:
            raise TopologyError(f"CountDistinct takes lg_k from {least} to {most}: {self.lg_k!r}")
        _datasketches()  # a missing package is found out here, not in a task

    def init(self, tuple: TridentTuple) -> bytes:
        values = tuple.values
        if None in values:
            return self.zero()
        package = _datasketches()
        sketch = package.hll_sketch(self.lg_k, package.tgt_hll_type.HLL_8)
        sketch.update(_as_told(values))
        return bytes(sketch.serialize_compact())

    def combine(self, left: bytes, right: bytes) -> bytes:
        return bytes(self._union(left, right).serialize_compact())

    def zero(self) -> bytes:
        package = _datasketches()
        sketch = package.hll_sketch(self.lg_k, package.tgt_hll_type.HLL_8)
        return bytes(sketch.serialize_compact())

    def finish(self, value: bytes) -> int:
        # A union has one canonical form. Without it the estimate would depend on the order in
        # which the values came, and on how they were partitioned.
        return round(float(self._union(value, value).get_estimate()))

    def _union(self, left: bytes, right: bytes) -> Any:
        package = _datasketches()
        union = package.hll_union(self.lg_k)
        for sketch in (left, right):
            try:
                union.update(package.hll_sketch.deserialize(bytes(sketch)))
            except (ValueError, RuntimeError, IndexError) as error:
                raise SerdeError(f"these {len(sketch)} bytes are no sketch: {error}") from error
        return union.get_result(package.tgt_hll_type.HLL_8)

    def value_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        return ["binary"]

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        for kind in inputs:
            if kind is not None and not can_be_compared(kind):
                raise TopologyError(f"CountDistinct cannot tell values of type {kind} apart")
        if not inputs:
            raise TopologyError("CountDistinct needs a field to count")
        return ["bigint"]


def _as_told(values: tuple[Any, ...]) -> int | str:
    """Return what a sketch is updated with for a tuple; for one integer or text, as Spark does."""
    if len(values) == 1:
        value = values[0]
        if type(value) is int:
            return value
        if type(value) is str:
            return value or EMPTY_TEXT
        return identity(value)
    return encode_key([identity(value) for value in values])


@cache
def _datasketches() -> Any:
    try:
        import datasketches
    except ImportError as error:
        raise MissingDependencyError("datasketches", "sketches") from error
    return datasketches
