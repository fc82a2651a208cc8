"""Updaters of tables: rows are appended, or put in place of the row with their key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from waterspout._schema import FieldNames, Schema, field_names
from waterspout._serde import encode_key, encode_value
from waterspout.errors import ResultError, TopologyError
from waterspout.state._base import MapState, StateFactory, ValueUpdater
from waterspout.state._rows import RowsState
from waterspout.trident.operations.contracts import TableUpdater
from waterspout.trident.operations.ordering import order

__all__ = ["AppendRows", "RowUpdater", "UpsertRows"]


class RowUpdater(TableUpdater[Any]):
    """Writes the rows of a stream as they are, all their fields."""

    caveat: str | None = None
    """What `explain()` says of it, beside the guarantee."""

    @abstractmethod
    def bind(self, factory: StateFactory, rows: Schema) -> StateFactory:
        """Return the recipe for rows of these fields; refuse one that cannot take them."""


class AppendRows(RowUpdater):
    """Appends each row of each batch, once: `partition_persist(state, AppendRows())`."""

    label = "AppendRows"

    def bind(self, factory: StateFactory, rows: Schema) -> StateFactory:
        return factory.bind_rows(rows)

    def update_table(self, state: RowsState, table: pa.Table) -> None:
        state.append(table)


class UpsertRows(RowUpdater):
    """Keeps one row for each key, the last: `partition_persist(state, UpsertRows(["id"]))`.

    A row takes the place of the one with its key. With `order_by` it does so only if its value
    there is not less than that of the row in place, so rows may come in any order; null is less
    than any value. Without, a later batch wins. Of several rows of a key in one batch the one with
    the greatest value in `order_by` counts, and among equals the greatest row, compared field by
    field (null least, NaN greatest): a batch has no order of arrival that all attempts would share.
    """

    def __init__(self, keys: FieldNames, order_by: str | None = None) -> None:
        names = field_names(keys)
        if not names:
            raise TopologyError(
                'UpsertRows needs the fields that are the key: UpsertRows(["id"]); to keep all '
                "rows, use AppendRows()"
            )
        if order_by is not None:
            chosen = field_names(order_by) if isinstance(order_by, str) else ()
            if len(chosen) != 1:
                raise TopologyError(f"order_by is the name of one field, not {order_by!r}")
            (order_by,) = chosen
            if order_by in names:
                raise TopologyError(
                    f"order_by is {order_by!r}, which is part of the key: all rows of a key have "
                    "the same. Order by another field."
                )
        self.keys = names
        self.order_by = order_by

    @property
    def label(self) -> str:
        """The updater as it is written."""
        by = "" if self.order_by is None else f", order_by={self.order_by!r}"
        return f"UpsertRows({list(self.keys or ())!r}{by})"

    @property
    def caveat(self) -> str | None:  # type: ignore[override]
        """Without an order nobody has said which of several rows is the last."""
        if self.order_by is not None:
            return None
        return (
            "of several rows of a key in one batch the greatest stays, whichever came last; give "
            "order_by to say which one that is"
        )

    def bind(self, factory: StateFactory, rows: Schema) -> StateFactory:
        return factory.bind_rows(rows, tuple(self.keys or ()), self.order_by)

    def _check_use(self, inputs: Schema, where: str) -> None:
        super()._check_use(inputs, where)
        inputs.select(self.keys or (), where=f"keys of {where}").require_keys(where=where)
        if self.order_by is not None:
            inputs.select([self.order_by], where=f"order_by of {where}").require_keys(where=where)

    def update_table(self, state: RowsState | MapState[Any], table: pa.Table) -> None:
        rows = table.take(pa.array(self._winners(table), pa.int64()))
        if isinstance(state, RowsState):
            state.upsert(rows)
            return
        names = [name for name in table.column_names if name not in (self.keys or ())]
        columns = [rows.column(name).to_pylist() for name in names]
        marks = [True] * rows.num_rows
        values = list(zip(marks, *columns, strict=True)) if columns else marks
        keys = self._keys_of(rows)
        if self.order_by is None:
            state.multi_put(keys, values)
            return
        at = 1 + names.index(self.order_by)
        state.multi_update(keys, [_IfNotEarlier(value, at) for value in values])

    def finish(self, value: Any) -> Any:
        """Return what a reader sees of what a map keeps: the fields that are not the key."""
        rest = tuple(value[1:]) if isinstance(value, tuple | list) else ()
        return rest[0] if len(rest) == 1 else rest

    def _keys_of(self, table: pa.Table) -> list[tuple[Any, ...]]:
        names = self.keys or ()
        return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))

    def _winners(self, table: pa.Table) -> list[int]:
        """Return the number of the row that counts of each key, in the order of the table."""
        for name in self.keys or ():
            if table.column(name).null_count:
                raise ResultError(
                    f"{self.label} was given a row without a value in its key field {name!r}. A "
                    "key has a value in each field: filter such rows out, or give them one, before."
                )
        found: dict[str, list[int]] = {}
        for number, key in enumerate(self._keys_of(table)):
            found.setdefault(encode_key(key), []).append(number)
        if len(found) == table.num_rows:
            return list(range(table.num_rows))
        return sorted(self._last(table, numbers) for numbers in found.values())

    def _last(self, table: pa.Table, numbers: Sequence[int]) -> int:
        if len(numbers) == 1:
            return numbers[0]
        first = [] if self.order_by is None else [self.order_by]
        some = table.take(pa.array(numbers, pa.int64()))
        columns = [some.column(n).to_pylist() for n in (*first, *table.column_names)]
        rows = list(zip(*columns, strict=True))
        # What is equal in the order may still differ: -0.0 and 0.0.
        ranks = [(tuple(map(order, row)), encode_value(list(row))) for row in rows]
        return numbers[max(range(len(ranks)), key=ranks.__getitem__)]


class _IfNotEarlier(ValueUpdater[Any]):
    """Takes the place of what is stored, unless that is of a later moment."""

    def __init__(self, value: Any, at: int) -> None:
        self._value = value
        self._at = at

    def update(self, stored: Any | None) -> Any:
        if stored is not None and order(stored[self._at]) > order(self._value[self._at]):
            return stored
        return self._value
