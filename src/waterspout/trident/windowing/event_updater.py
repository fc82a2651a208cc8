"""Windows over event time, as an update of the state that keeps their partial results.

What comes in are the partial results of a batch, one row for each key and stretch of time. What
goes out are the results of the windows that the watermark has passed with this batch. Both the
watermark and what is late are functions of the batches before and of this one's rows, in any
order: every attempt at a batch closes the same windows.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._arrow import arrow_schema, arrow_type
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.state._base import MapState
from waterspout.state._head import Claim
from waterspout.trident.operations.contracts import OperationContext, TableUpdater
from waterspout.trident.plan.nodes import LATE
from waterspout.trident.windowing.merging import Merging
from waterspout.trident.windowing.panes import EventTime
from waterspout.trident.windowing.partials import START, StoredPartials

__all__ = [
    "LATEST",
    "ROWS",
    "WINDOW_END",
    "WINDOW_START",
    "EventUpdater",
    "EventWindows",
    "as_numbers",
]

log = logging.getLogger(__name__)

WINDOW_START = "window_start"
WINDOW_END = "window_end"

LATEST = "_waterspout_latest"
"""The column with the greatest time among the rows of a partial result."""

ROWS = "_waterspout_rows"
"""The column that says of how many rows a partial result is."""


@dataclass(frozen=True)
class EventWindows:
    """What windows of event time are made of, of whatever kind they are."""

    time: EventTime
    keys: Schema
    out: Schema
    merging: Merging
    wants_late: bool
    where: str

    @property
    def results(self) -> Schema:
        """What comes out: the keys, the window, the results."""
        times = Schema(((WINDOW_START, self.time.kind), (WINDOW_END, self.time.kind)))
        return self.keys.append(times, where=self.where).append(self.out, where=self.where)

    @property
    def emitted(self) -> Schema:
        """What an update emits: results, and what is late beside them if anybody wants that."""
        late = ((LATE, "boolean"),) if self.wants_late else ()
        return Schema((*self.results.fields, *late))


class EventUpdater(TableUpdater[MapState[Any]]):
    """Adds the partial results of a batch, and closes the windows that the watermark passes."""

    in_one = "has one watermark for all keys"
    counts_late = True

    def __init__(self, windows: EventWindows, bounds: Schema, pane: int | None) -> None:
        self.windows = windows
        self.label = windows.where
        self.deterministic = windows.merging.aggregator.deterministic
        # What is kept: keys, from when (and to when) the rows are, partial results.
        kept = (*windows.keys.fields, *bounds.fields, *windows.merging.values.fields)
        self.kept = arrow_schema(Schema(kept))
        self._shape = {"fields": str(Schema(kept)), "by": windows.time.field, "pane": pane}

    @abstractmethod
    def spans(self, table: pa.Table) -> tuple[Any, Any]:
        """Return from when to when the rows of each partial result can be."""

    @abstractmethod
    def last_ends(self, table: pa.Table) -> Any:
        """Return when the last window ends that holds each partial result."""

    @abstractmethod
    def advance(
        self, held: StoredPartials, fresh: pa.Table, before: int | None, after: int
    ) -> pa.Table:
        """Move from one watermark to the next: put what stays open into `held`.

        Return what has closed: keys, when a window begins and ends, and partial results.
        """

    def prepare(self, conf: Config, context: OperationContext) -> None:
        self.windows.merging.aggregator.prepare(conf, context)

    def cleanup(self) -> None:
        self.windows.merging.aggregator.cleanup()

    def begin_batch(self, claim: Claim, partition: int) -> None:
        """Learn which batch follows, for what is said of it."""
        self._claim = claim

    def update_table(self, state: MapState[Any], table: pa.Table) -> pa.Table:
        latest = as_numbers(table.column(LATEST))
        place = table.schema.get_field_index(LATEST)
        table = table.set_column(place, LATEST, latest)
        held = StoredPartials(state, self.kept, self._shape)
        before = held.watermark
        after = held.watermark = self.windows.time.watermark(before, pc.max(latest).as_py())
        is_late = self._is_late(table, before)
        late, fresh = table.filter(is_late), table.filter(pc.invert(is_late))
        closed = self.closed_schema.empty_table()
        if after is not None:
            closed = self.advance(held, fresh, before, after)
        self._note(held, late)
        held.store()
        return self._emitted(closed, late)

    @property
    def closed_schema(self) -> pa.Schema:
        """The columns of what has closed."""
        windows, bounds = self.windows, ((WINDOW_START, "bigint"), (WINDOW_END, "bigint"))
        return arrow_schema(Schema((*windows.keys.fields, *bounds, *windows.merging.values.fields)))

    def _is_late(self, table: pa.Table, before: int | None) -> Any:
        """Say of each partial result whether all its windows have closed, or it has no time."""
        late = pc.is_null(table.column(START))
        if before is not None:
            closed = pc.less_equal(self.last_ends(table), before)
            late = pc.or_(late, pc.fill_null(closed, True))
        return late

    def _note(self, held: StoredPartials, late: pa.Table) -> None:
        """Count the rows that are in no window; where nobody takes them, say so."""
        rows = pc.sum(late.column(ROWS)).as_py() or 0
        held.late += rows
        self._claim.add_late(self.windows.where, rows)
        if rows and not self.windows.wants_late:
            log.warning(
                "%s: %d rows of batch %d came after their windows had closed, or had no time, and "
                "are in none; %d so far. A larger lag waits longer for rows; late=... gives those "
                "that come too late as a stream.",
                self.windows.where, rows, self._claim.attempt.txid, held.late,
            )  # fmt: skip

    def _emitted(self, closed: pa.Table, late: pa.Table) -> pa.Table:
        windows = self.windows
        times = [closed.column(WINDOW_START), closed.column(WINDOW_END)]
        results = self._rows(closed, times, windows.merging.finished(closed, windows.out))
        if not windows.wants_late:
            return results
        nothing = [pa.nulls(len(late), arrow_type(str(kind))) for kind in windows.out.types]
        both = [(results, False), (self._rows(late, self.spans(late), nothing), True)]
        marked = [
            table.append_column(LATE, pa.repeat(pa.scalar(is_late), len(table)))
            for table, is_late in both
        ]
        return pa.concat_tables(marked)

    def _rows(self, table: pa.Table, times: Sequence[Any], values: Sequence[Any]) -> pa.Table:
        windows, arrow = self.windows, arrow_schema(self.windows.results)
        kind = arrow_type(windows.time.kind)
        columns = [table.column(name) for name in windows.keys.names]
        columns += [*(numbers.cast(kind) for numbers in times), *values]
        cast = [column.cast(field.type) for column, field in zip(columns, arrow, strict=True)]
        return pa.table(cast, schema=arrow)


def as_numbers(column: Any) -> Any:
    """Return times as whole numbers, in the unit of their field."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
