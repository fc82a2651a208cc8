"""What the tests of event time share: the rules of its windows, done slowly, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, int | None, Any]
"""A key, a time, a value."""


@dataclass
class Oracle:
    """Windows that end at multiples of `step`, over rows kept one by one."""

    span: int
    step: int
    lag: int
    fold: Callable[[list[Any]], Any]
    watermark: int | None = None
    rows: list[Row] = field(default_factory=list)

    def batch(self, rows: Iterable[Row]) -> tuple[list[tuple[Any, ...]], list[Row]]:
        """Return the results that a batch gives, and its rows that are too late."""
        before, late = self.watermark, []
        for row in rows:
            is_late = row[1] is None or (before is not None and max(self._ends(row[1])) <= before)
            (late if is_late else self.rows).append(row)
            if row[1] is not None:
                latest = row[1] - self.lag
                self.watermark = latest if self.watermark is None else max(self.watermark, latest)
        if self.watermark is None:
            return [], late
        due = {
            (end, row[0])
            for row in self.rows
            for end in self._ends(row[1])
            if end <= self.watermark and (before is None or end > before)
        }
        return [self._result(end, key) for end, key in sorted(due, key=repr)], late

    def _result(self, end: int, key: Any) -> tuple[Any, ...]:
        held = [v for k, at, v in self.rows if k == key and end - self.span <= at < end]
        return (key, end - self.span, end, *self.fold(held))

    def _ends(self, time: int) -> list[int]:
        some = range((time // self.step) * self.step, time + self.span + 1, self.step)
        return [end for end in some if end - self.span <= time < end]


@dataclass
class SessionOracle:
    """Sessions of rows kept one by one; which rows are late goes by the sessions of a batch."""

    gap: int
    lag: int
    fold: Callable[[list[Any]], Any]
    watermark: int | None = None
    rows: list[Row] = field(default_factory=list)

    def batch(self, rows: Iterable[Row]) -> tuple[list[tuple[Any, ...]], list[Row]]:
        """Return the sessions that a batch ends, and its rows that are too late."""
        before, rows = self.watermark, list(rows)
        late = [row for row in rows if row[1] is None]
        for session in self._sessions([row for row in rows if row[1] is not None]):
            ended = before is not None and session[-1][1] + self.gap <= before
            (late if ended else self.rows).extend(session)
        times = [row[1] - self.lag for row in rows if row[1] is not None]
        marks = times if before is None else [before, *times]
        self.watermark = max(marks, default=None)
        made: list[tuple[Any, ...]] = []
        still: list[Row] = []
        for session in self._sessions(self.rows):
            (key, start, _), end = session[0], session[-1][1] + self.gap
            if self.watermark is not None and end <= self.watermark:
                made.append((key, start, end, *self.fold([value for _, _, value in session])))
            else:
                still += session
        self.rows = still
        return made, late

    def _sessions(self, rows: list[Row]) -> list[list[Row]]:
        found: list[list[Row]] = []
        last: dict[Any, list[Row]] = {}
        for row in sorted(rows, key=lambda row: row[1]):
            session = last.get(row[0])
            if session is None or row[1] >= session[-1][1] + self.gap:
                session = last[row[0]] = []
                found.append(session)
            session.append(row)
        return found


def all_of(oracle: Any, batches: Sequence[Sequence[Row]]) -> tuple[list[Any], list[Row]]:
    """Return all results and all late rows of some batches."""
    results, late = [], []
    for batch in batches:
        made, too_late = oracle.batch(batch)
        results += made
        late += too_late
    return results, late
