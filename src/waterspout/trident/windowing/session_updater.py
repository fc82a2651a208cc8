"""Session windows of event time: rows of a key with no gap between them, merged batch by batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._schema import Schema
from waterspout._serde import encode_key
from waterspout.trident.windowing.event_updater import (
    LATEST,
    WINDOW_END,
    WINDOW_START,
    EventUpdater,
    EventWindows,
)
from waterspout.trident.windowing.partials import START, StoredPartials

__all__ = ["SessionUpdater"]

_END = "_waterspout_end"
_SESSION = "_waterspout_session"


class SessionUpdater(EventUpdater):
    """Keeps a partial result for each open session; those that touch become one.

    A session ends a gap after its last row. What comes in are the sessions of a batch.
    """

    def __init__(self, windows: EventWindows, gap: int) -> None:
        super().__init__(windows, Schema(((START, "bigint"), (_END, "bigint"))), None)
        self._gap = gap

    def spans(self, table: pa.Table) -> tuple[Any, Any]:
        return table.column(START), pc.add(table.column(LATEST), self._gap)

    def last_ends(self, table: pa.Table) -> Any:
        return self.spans(table)[1]

    def advance(
        self, held: StoredPartials, fresh: pa.Table, before: int | None, after: int
    ) -> pa.Table:
        fresh = fresh.append_column(_END, self.spans(fresh)[1])
        fresh = fresh.select(self.kept.names).cast(self.kept)
        rows = self._joined(pa.concat_tables([held.read(held.runs), fresh]))
        held.runs = []  # any of them may have grown, and all were read
        held.append(rows.filter(pc.greater(rows.column(_END), after)), lambda table: table)
        closed = rows.filter(pc.less_equal(rows.column(_END), after)).sort_by(_END)
        names = [{START: WINDOW_START, _END: WINDOW_END}.get(n, n) for n in closed.column_names]
        return closed.rename_columns(names)

    def _joined(self, table: pa.Table) -> pa.Table:
        """Merge the sessions of a key that touch."""
        table = table.sort_by(START)
        keys = self.windows.keys.names
        columns = [table.column(name).to_pylist() for name in (*keys, START, _END)]
        starts: list[int] = []
        ends: list[int] = []
        numbers: list[int] = []
        open_now: dict[str, int] = {}
        for *key, start, end in zip(*columns, strict=True):
            text = encode_key(key)
            number = open_now.get(text)
            if number is None or start >= ends[number]:
                number = open_now[text] = len(starts)
                starts.append(start)
                ends.append(end)
            ends[number] = max(ends[number], end)
            numbers.append(number)
        table = table.append_column(_SESSION, pa.array(numbers, pa.int64()))
        made = self.windows.merging.merged(table, [*keys, _SESSION])
        which = made.column(_SESSION)
        made = made.append_column(START, pa.array(starts, pa.int64()).take(which))
        made = made.append_column(_END, pa.array(ends, pa.int64()).take(which))
        return made.select(self.kept.names)
