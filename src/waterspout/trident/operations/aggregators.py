"""Aggregators that come with Trident."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, ClassVar, Self

from waterspout._config import Config
from waterspout._schema import FieldNames, Schema, field_names
from waterspout._tuples import TridentTuple, field_index
from waterspout.errors import TopologyError
from waterspout.trident.operations.accepted import ColumnOperation
from waterspout.trident.operations.contracts import CombinerAggregator, OperationContext

__all__ = ["Average", "Columns", "Count", "Max", "Min", "Sum"]


class _OfItsFields(CombinerAggregator[Any]):
    """What aggregators share that are told their fields by the stream's method."""

    def __new__(cls, *fields: object) -> Self:
        """Refuse a field, which Spark's functions take: `sum("amount")`."""
        if fields:
            name = cls.__name__
            raise TopologyError(
                f"{name}({fields[0]!r}): the fields stand before the aggregator; write "
                f'aggregate({fields[0]!r}, {name}(), "name"), or in Columns '
                f"name=({fields[0]!r}, {name}())"
            )
        return super().__new__(cls)


@dataclass(frozen=True)
class Count(_OfItsFields):
    """Count the tuples.

    >>> Count().combine(Count().init(TridentTuple(("a",), {"w": 0})), 2)
    3
    """

    merge: ClassVar[str | None] = "sum"

    def init(self, tuple: TridentTuple) -> int:
        return 1

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        return ["bigint"]


# Python alone would round a sum of decimals to 28 digits; a decimal(38, s) has more.
_EXACT = Context(prec=100)


def _added(left: Any, right: Any) -> Any:
    if type(left) is Decimal or type(right) is Decimal:
        return _EXACT.add(left, right)
    return left + right


@dataclass(frozen=True)
class Sum(_OfItsFields):
    """Add up a field; nulls count as nothing.

    A sum that does not fit its type (64 bits, 38 digits of a decimal) fails its batch.
    """

    merge: ClassVar[str | None] = "sum"

    def init(self, tuple: TridentTuple) -> Any:
        return 0 if tuple[0] is None else tuple[0]

    def combine(self, left: Any, right: Any) -> Any:
        return _added(left, right)

    def zero(self) -> Any:
        return 0

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        """Longs add up to a long, doubles to a double, decimals to a decimal."""
        return [_type_of_sum("Sum", inputs)]


def _type_of_sum(name: str, inputs: Sequence[str | None]) -> str:
    if len(inputs) != 1:
        raise TopologyError(f"{name} takes one field, not {len(inputs)}")
    kind = inputs[0]
    if kind in ("bigint", "int", "smallint", "tinyint"):
        return "bigint"
    if kind in ("double", "float"):
        return "double"
    match = re.fullmatch(r"decimal\(\s*\d+\s*(?:,\s*(\d+)\s*)?\)", kind or "", re.I)
    if match:
        return f"decimal(38,{match[1] or 0})"
    raise TopologyError(f"{name} cannot add up a field of type {kind}")


@dataclass(frozen=True)
class Average(_OfItsFields):
    """The mean of a field; nulls count as nothing, and the mean of nothing is null.

    A state keeps the sum, exact where the field's type is, and the count.

    >>> mean = Average()
    >>> mean.finish(mean.combine({"sum": 4, "count": 1}, {"sum": 6, "count": 3}))
    2.5
    """

    finishes = True

    def init(self, tuple: TridentTuple) -> dict[str, Any]:
        value = tuple[0]
        return self.zero() if value is None else {"sum": value, "count": 1}

    def combine(self, left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        return {name: _added(left[name], right[name]) for name in ("sum", "count")}

    def zero(self) -> dict[str, Any]:
        return {"sum": 0, "count": 0}

    def finish(self, value: dict[str, Any]) -> float | None:
        return float(value["sum"]) / value["count"] if value["count"] else None

    def value_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        return [f"struct<sum:{_type_of_sum('Average', inputs)},count:bigint>"]

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        _type_of_sum("Average", inputs)
        return ["double"]


@dataclass(frozen=True)
class _ExtremeValue(_OfItsFields):
    """The least or greatest value of a field; nulls count as nothing, a NaN is the greatest."""

    def init(self, tuple: TridentTuple) -> Any:
        return tuple[0]

    def combine(self, left: Any, right: Any) -> Any:
        """Choose one of two; null, which stands for no value, loses to every value."""
        if left is None or right is None:
            return right if left is None else left
        choose = min if self.merge == "min" else max
        return choose(left, right, key=_nan_last)

    def zero(self) -> Any:
        return None

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None]:
        if len(inputs) != 1:
            raise TopologyError(f"{type(self).__name__} takes one field, not {len(inputs)}")
        return list(inputs)


def _nan_last(value: Any) -> tuple[bool, Any]:
    is_nan = value != value
    return is_nan, 0 if is_nan else value


class Min(_ExtremeValue):
    """The least value of a field; nulls count as nothing."""

    merge: ClassVar[str | None] = "min"


class Max(_ExtremeValue):
    """The greatest value of a field; nulls count as nothing."""

    merge: ClassVar[str | None] = "max"


_Ask = Callable[[CombinerAggregator[Any], Sequence[str | None]], Sequence[str | None] | None]
_tuple: Any = tuple  # `init` has an argument of that name, as Storm's does


class Columns(CombinerAggregator[Any]):
    """Several aggregates as columns of one state: `Columns(n=Count(), total=("amount", Sum()))`.

    Each keyword names a column; its value is an aggregator over the whole tuple, or a pair of
    a field (or a list of fields) and an aggregator over those. The value of the state is the
    tuple of its columns, or the bare value of a single one.
    """

    def __init__(self, **columns: ColumnOperation) -> None:
        if not columns:
            raise TopologyError("Columns needs at least one column, for example n=Count()")
        self.columns: dict[str, tuple[tuple[str, ...], CombinerAggregator[Any]]] = {
            name: _column(name, given) for name, given in columns.items()
        }
        self.is_wide = len(self.columns) > 1
        self._indexes = [field_index(fields) for fields, _ in self.columns.values()]

    def _check_use(self, inputs: Schema, where: str) -> None:
        for name, (fields, aggregator) in self.columns.items():
            own = inputs.select(fields, where=where)
            aggregator._check_use(own, f"{where}: column {name!r}")

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The fields that any of the columns reads, each once."""
        return tuple(dict.fromkeys(f for fields, _ in self.columns.values() for f in fields))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.columns)

    @property
    def merges(self) -> tuple[str | None, ...]:
        return tuple(aggregator.merge for _, aggregator in self.columns.values())

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether all columns are."""
        return all(aggregator.deterministic for _, aggregator in self.columns.values())

    @property
    def finishes(self) -> bool:  # type: ignore[override]
        """Whether any column does."""
        return any(aggregator.finishes for _, aggregator in self.columns.values())

    def prepare(self, conf: Config, context: OperationContext) -> None:
        for _, aggregator in self.columns.values():
            aggregator.prepare(conf, context)

    def cleanup(self) -> None:
        for _, aggregator in self.columns.values():
            aggregator.cleanup()

    def init(self, tuple: TridentTuple) -> Any:
        return self._value(
            aggregator.init(TridentTuple(_tuple(tuple[f] for f in fields), index))
            for (fields, aggregator), index in zip(
                self.columns.values(), self._indexes, strict=True
            )
        )

    def combine(self, left: Any, right: Any) -> Any:
        """Combine column by column; null on one side gives the other side."""
        sides = (left, right) if self.is_wide else ((left,), (right,))
        return self._value(
            b if a is None else a if b is None else aggregator.combine(a, b)
            for (_, aggregator), a, b in zip(self.columns.values(), *sides, strict=True)
        )

    def zero(self) -> Any:
        return self._value(aggregator.zero() for _, aggregator in self.columns.values())

    def finish(self, value: Any) -> Any:
        """Finish column by column; null stays null."""
        kept = value if self.is_wide else (value,)
        return self._value(
            None if value is None else aggregator.finish(value)
            for (_, aggregator), value in zip(self.columns.values(), kept, strict=True)
        )

    def _value(self, columns: Iterable[Any]) -> Any:
        values = tuple(columns)
        return values if self.is_wide else values[0]

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        """Ask each column; one that does not know must be told by `out`."""
        return self._types(inputs, lambda aggregator, own: aggregator.output_types(own))

    def value_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        return self._types(inputs, lambda aggregator, own: aggregator.value_types(own))

    def _types(self, inputs: Sequence[str | None], ask: _Ask) -> list[str | None]:
        types = dict(zip(self.input_fields, inputs, strict=True))
        found: list[str | None] = []
        for fields, aggregator in self.columns.values():
            known = ask(aggregator, [types[f] for f in fields])
            found += [None] if known is None else known
        return found

    def __repr__(self) -> str:
        return f"Columns({', '.join(self.columns)})"


def _column(name: str, given: Any) -> tuple[tuple[str, ...], CombinerAggregator[Any]]:
    fields: FieldNames = ()
    aggregator = given
    if isinstance(given, tuple) and len(given) == 2:
        fields, aggregator = given
    if not isinstance(aggregator, CombinerAggregator) or isinstance(aggregator, Columns):
        raise TopologyError(
            f"column {name!r} needs a CombinerAggregator such as Count(), or a pair of a field "
            f'and one such as ("amount", Sum()); got {given!r}'
        )
    # Some aggregators, such as TopN, name their fields themselves.
    return field_names(fields or getattr(aggregator, "input_fields", ())), aggregator
