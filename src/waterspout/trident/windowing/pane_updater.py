"""Tumbling and sliding windows of event time: panes of partial results, merged when one ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._schema import Schema
from waterspout.trident.windowing.event_updater import (
    WINDOW_END,
    WINDOW_START,
    EventUpdater,
    EventWindows,
)
from waterspout.trident.windowing.panes import Panes
from waterspout.trident.windowing.partials import START, StoredPartials

__all__ = ["PaneUpdater"]


class PaneUpdater(EventUpdater):
    """Keeps a partial result for each key and pane; a window is made of its panes."""

    def __init__(self, windows: EventWindows, panes: Panes) -> None:
        super().__init__(windows, Schema(((START, "bigint"),)), panes.size)
        self._panes = panes

    def spans(self, table: pa.Table) -> tuple[Any, Any]:
        starts = table.column(START)
        return starts, pc.add(starts, self._panes.size)

    def last_ends(self, table: pa.Table) -> Any:
        panes = table.column(START).combine_chunks().dictionary_encode()
        ends = [self._panes.last_end(start) for start in panes.dictionary.to_pylist()]
        return pa.array(ends, pa.int64()).take(panes.indices)

    def advance(
        self, held: StoredPartials, fresh: pa.Table, before: int | None, after: int
    ) -> pa.Table:
        panes = self._panes
        fresh = fresh.select(self.kept.names).cast(self.kept)
        closed = self._closed(held, fresh, before, after)
        held.runs = [run for run in held.runs if panes.last_end(run.last) > after]
        held.append(self._still_open(fresh, after), lambda all: self._merged(all, after))
        return closed

    def _still_open(self, table: pa.Table, after: int) -> pa.Table:
        return table.filter(pc.greater(self.last_ends(table), after))

    def _merged(self, table: pa.Table, after: int) -> pa.Table:
        groups = [*self.windows.keys.names, START]
        return self.windows.merging.merged(self._still_open(table, after), groups)

    def _closed(
        self, held: StoredPartials, fresh: pa.Table, before: int | None, after: int
    ) -> pa.Table:
        """Return the merged partial results of the windows that end after `before` by `after`."""
        panes = self._panes
        due = [
            run
            for run in held.runs
            if panes.next_end(run.first if before is None else max(run.first, before)) <= after
        ]
        rows = pa.concat_tables([held.read(due), fresh])
        ends = {
            end
            for start in pc.unique(rows.column(START)).to_pylist()
            for end in panes.ends(start)
            if end <= after and (before is None or end > before)
        }
        if not ends:
            return self.closed_schema.empty_table()
        rows = rows.sort_by(START)
        starts = rows.column(START).to_pylist()
        slices = [self._of_window(rows, starts, end) for end in sorted(ends)]
        groups = [*self.windows.keys.names, WINDOW_START, WINDOW_END]
        return self.windows.merging.merged(pa.concat_tables(slices), groups)

    def _of_window(self, rows: pa.Table, starts: Sequence[int], end: int) -> pa.Table:
        start = end - self._panes.span
        first = bisect_left(starts, start)
        held = rows.slice(first, bisect_left(starts, end) - first)
        for name, time in ((WINDOW_START, start), (WINDOW_END, end)):
            held = held.append_column(name, pa.repeat(pa.scalar(time, pa.int64()), len(held)))
        return held
