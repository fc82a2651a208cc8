"""Partial results that become one: by Arrow where it gives the same as the aggregator, or by it.

Arrow adds up, or finds the extremes of, a hundred thousand partial results in the time in which
Python combines a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from waterspout._arrow import arrow_type, make_array
from waterspout._schema import Schema
from waterspout._serde import encode_key
from waterspout.trident.operations.aggregators import Average, Columns, Count, Max, Min, Sum
from waterspout.trident.operations.contracts import CombinerAggregator

__all__ = ["Merging"]

_SURE = float(1 << 62)
"""Below this a sum in 64 bits has not begun again from the other end of the numbers."""


@dataclass(frozen=True)
class Merging:
    """How partial results of a combiner are merged: `values` are the columns that it keeps."""

    aggregator: CombinerAggregator[Any]
    values: Schema
    where: str

    def merged(self, table: pa.Table, groups: Sequence[str]) -> pa.Table:
        """Return one row for each group: its fields, then the values."""
        table = table.select([*groups, *self.values.names])
        if table.num_rows < 2:
            return table
        by_arrow = self._by_arrow is not None and all(
            _is_plain_key(table.schema.field(name).type) for name in groups
        )
        made = self._added_up(table, groups) if by_arrow else None
        return self._combined(table, groups) if made is None else made

    def finished(self, table: pa.Table, out: Schema) -> list[Any]:
        """Return the values as a reader sees them, one array for each field of `out`."""
        if not self.aggregator.finishes:
            return [table.column(name) for name in self.values.names]
        values = [None if v is None else self.aggregator.finish(v) for v in self._values(table)]
        columns = list(zip(*values, strict=True)) if self._wide else [values]
        if not values:
            columns = [[]] * len(out)
        return [
            make_array(column, arrow_type(str(kind)), field=name, where=self.where)
            for column, (name, kind) in zip(columns, out, strict=True)
        ]

    @property
    def _wide(self) -> bool:
        return len(self.values) > 1

    @cached_property
    def _by_arrow(self) -> dict[str, str] | None:
        """What Arrow does with each column of numbers; None: the aggregator must do it."""
        several = [self.aggregator]
        if type(self.aggregator) is Columns:
            several = [one for _, one in self.aggregator.columns.values()]
        found: dict[str, str] = {}
        for (name, kind), one in zip(self.values, several, strict=True):
            arrow = arrow_type(str(kind))
            if type(one) is Average and all(_adds_up(field.type) for field in arrow):
                found |= {f"{name}.{field.name}": "sum" for field in arrow}
            elif type(one) in (Count, Sum) and _adds_up(arrow):
                found[name] = "sum"
            elif type(one) in (Min, Max) and _is_ordered(arrow):
                found[name] = "min" if type(one) is Min else "max"
            else:
                return None
        return found

    def _added_up(self, table: pa.Table, groups: Sequence[str]) -> pa.Table | None:
        """Merge by Arrow; None if a sum may be too large, which the aggregator then finds."""
        assert self._by_arrow is not None
        flat = _flattened(table, self.values)
        wanted, checks = list(self._by_arrow.items()), []
        for name, how in self._by_arrow.items():
            if how == "sum" and t.is_integer(flat.column(name).type):
                checks.append(f"{name}?")
                rough = flat.column(name).cast(pa.float64(), safe=False)
                flat = flat.append_column(checks[-1], rough)
        wanted += [(name, "sum") for name in checks]
        made = flat.group_by(list(groups), use_threads=False).aggregate(wanted)
        for name in checks:
            if (pc.max(pc.abs(made.column(f"{name}_sum"))).as_py() or 0.0) >= _SURE:
                return None
        columns = [made.column(name) for name in groups]
        try:
            columns += [self._column(made, name, str(kind)) for name, kind in self.values]
        except pa.ArrowInvalid:
            return None
        return pa.table(columns, schema=table.schema)

    def _column(self, made: pa.Table, name: str, kind: str) -> Any:
        assert self._by_arrow is not None
        arrow = arrow_type(kind)
        if name in self._by_arrow:
            return made.column(f"{name}_{self._by_arrow[name]}").cast(arrow)
        parts = [made.column(f"{name}.{f.name}_sum").cast(f.type).combine_chunks() for f in arrow]
        return pa.StructArray.from_arrays(parts, fields=list(arrow))

    def _combined(self, table: pa.Table, groups: Sequence[str]) -> pa.Table:
        """Merge by the aggregator, row by row."""
        keys = zip(*(table.column(name).to_pylist() for name in groups), strict=True)
        first: dict[str, int] = {}
        found: dict[str, Any] = {}
        for number, (key, value) in enumerate(zip(keys, self._values(table), strict=True)):
            text = encode_key(key)
            if text not in first:
                first[text], found[text] = number, value
            else:
                found[text] = self.aggregator.combine(found[text], value)
        rows = table.take(pa.array(list(first.values()), pa.int64()))
        values = list(found.values())
        columns = list(zip(*values, strict=True)) if self._wide else [values]
        for column, (name, kind) in zip(columns, self.values, strict=True):
            array = make_array(
                list(column), arrow_type(str(kind)), field=name, where=self.where, combined=True
            )
            rows = rows.set_column(rows.schema.get_field_index(name), name, array)
        return rows

    def _values(self, table: pa.Table) -> list[Any]:
        columns = [table.column(name).to_pylist() for name in self.values.names]
        return list(zip(*columns, strict=True)) if self._wide else columns[0]


def _flattened(table: pa.Table, values: Schema) -> pa.Table:
    """Return a table in which the parts of a struct are columns of their own."""
    for name in values.names:
        column = table.column(name)
        if t.is_struct(column.type):
            table = table.drop_columns([name])
            for field, part in zip(column.type, column.flatten(), strict=True):
                table = table.append_column(f"{name}.{field.name}", part)
    return table


def _adds_up(kind: pa.DataType) -> bool:
    # Not decimals: a sum beyond 38 digits must be an error.
    return bool(t.is_signed_integer(kind) or t.is_float64(kind))


def _is_ordered(kind: pa.DataType) -> bool:
    # Not doubles: a NaN is the greatest, and Arrow leaves it out.
    return bool(t.is_signed_integer(kind) or t.is_date(kind) or t.is_timestamp(kind))


def _is_plain_key(kind: pa.DataType) -> bool:
    # Not doubles: 0.0 and -0.0 are one key.
    plain = t.is_signed_integer(kind) or t.is_string(kind) or t.is_binary(kind)
    return bool(plain or t.is_boolean(kind) or t.is_date(kind) or t.is_timestamp(kind))
