"""Aggregators that keep whole tuples: the least, the greatest, the first n."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from waterspout._schema import field_names
from waterspout._signatures import refuse_misfit
from waterspout._tuples import TridentTuple
from waterspout.errors import TopologyError
from waterspout.trident.operations.adapters import plain_name, unmarked
from waterspout.trident.operations.contracts import Aggregator, Assembly, TridentCollector
from waterspout.trident.operations.ordering import order

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = ["FirstN", "MaxBy", "MinBy"]

_SLACK = 64


class _WholeTuples(Aggregator[list[Any]]):
    """What aggregators share that emit tuples as they came in."""

    def init(self, batch_id: Any, collector: TridentCollector) -> list[Any]:
        return []

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        return list(inputs)


class _ExtremeTuple(_WholeTuples):
    """Keeps one tuple: its value is a list of the rank and the tuple."""

    greatest = False

    def __init__(self, field: str | None, key: Callable[[Any], Any] | None = None) -> None:
        name = type(self).__name__
        if key is not None and not callable(key):
            raise TopologyError(f"the key of {name} is a function, not {key!r}")
        if field is None and key is None:
            raise TopologyError(f"{name} needs a field, or a key: a function of the tuple")
        if key is not None:
            given = "one value" if field is not None else "one tuple"
            refuse_misfit(key, 1, f"the key of {name}", f"{given}, to be compared by its result")
        self.field = None if field is None else _one_field(name, field)
        self.label = f"{name}({field or plain_name(key)})"
        self._key, self.deterministic = unmarked(key or _itself)

    def aggregate(self, value: list[Any], tuple: TridentTuple, collector: TridentCollector) -> None:
        """Keep the tuple if nothing is better; of equal ones the later stays."""
        compared = tuple if self.field is None else tuple[self.field]
        found = None if compared is None else self._key(compared)
        if found is None:
            return
        rank = order(found)
        if not value or (rank >= value[0] if self.greatest else rank <= value[0]):
            value[:] = [rank, tuple]

    def complete(self, value: list[Any], collector: TridentCollector) -> None:
        if value:
            collector.emit(value[1].values)


class MinBy(_ExtremeTuple):
    """The tuple with the least value of a field, or of `key(value)`.

    `MinBy(None, key)` compares `key(tuple)`. Nulls are ignored, a NaN is the greatest, and of
    equal ones the later tuple stays. Without tuples nothing is emitted.
    """


class MaxBy(_ExtremeTuple):
    """The tuple with the greatest value of a field, or of `key(value)`; as `MinBy` otherwise."""

    greatest = True


class _First(_WholeTuples):
    """The first n tuples: by a field, or as they come."""

    def __init__(self, n: int, sort_field: str | None, reverse: bool) -> None:
        self.n = n
        self.sort_field = sort_field
        self.reverse = reverse
        self.label = f"FirstN({n})" if sort_field is None else f"FirstN({n} by {sort_field})"
        # Spark promises no order of arrival behind a shuffle.
        self.deterministic = sort_field is not None

    def aggregate(self, value: list[Any], tuple: TridentTuple, collector: TridentCollector) -> None:
        if self.sort_field is None:
            if len(value) < self.n:
                value.append(tuple)
            return
        value.append(tuple)
        if len(value) >= 2 * self.n + _SLACK:
            value[:] = self._first(value)

    def complete(self, value: list[Any], collector: TridentCollector) -> None:
        for row in self._first(value):
            collector.emit(row.values)

    def _first(self, rows: list[TridentTuple]) -> list[TridentTuple]:
        field = self.sort_field
        if field is None:
            return rows[: self.n]
        # Equal ones by their other fields, so that a replay chooses the same.
        rows = sorted(rows, key=lambda row: order(row.values))
        return sorted(rows, key=lambda row: order(row[field]), reverse=self.reverse)[: self.n]


class FirstN(Assembly):
    """The first n tuples of each batch: `stream.apply_assembly(FirstN(10, "score", reverse=True))`.

    In the order of `sort_field`, the least first (a null is less than any value); with
    `reverse` the greatest first. Without a field: any n, in the order of their arrival, which
    another attempt at the batch need not repeat: such a stream counts as opaque.
    """

    def __init__(self, n: int, sort_field: str | None = None, reverse: bool = False) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise TopologyError(f"FirstN keeps 1 tuple or more, not {n!r}")
        if sort_field is None and reverse:
            raise TopologyError("FirstN needs a sort_field to reverse the order of")
        self.n = n
        self.sort_field = None if sort_field is None else _one_field("FirstN", sort_field)
        self.reverse = reverse

    def apply(self, stream: Stream) -> Stream:
        """Take the first n of each partition, then the first n of those."""
        if self.sort_field is not None:
            stream.schema.select([self.sort_field], where=f"FirstN({self.n})")
        first = _First(self.n, self.sort_field, self.reverse)
        return stream.aggregate_in_steps("FirstN", first)


def _itself(value: Any) -> Any:
    return value


def _one_field(where: str, field: Any) -> str:
    if not isinstance(field, str):
        raise TopologyError(f"{where} goes by one field: a name, not {field!r}")
    return field_names(field)[0]
