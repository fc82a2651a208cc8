"""Tuples by column: how a bolt with `execute_batch` is called with the tuples of a frame.

A call that raises is taken back and made again with halves of its rows, until each row that cannot
be processed is alone and fails alone. What the bolt itself remembers of a call that raised is not
taken back: as where a message is processed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waterspout._safe_repr import described, shown
from waterspout._tuples import Origin
from waterspout.errors import EmitError, FailedException
from waterspout.topology._collector import ColumnCollector
from waterspout.topology._ports import OPEN
from waterspout.waves.frames import Frame

__all__ = ["BatchCalls", "run_batches"]

_ROWS_MAX = 65_536
"""How many rows a call gets at the most: between two calls the clock is looked at."""


@dataclass(frozen=True, slots=True)
class BatchCalls:
    """Calls a bolt with batches; `fail` is told which row of the frame has failed, and why."""

    execute: Callable[[pa.RecordBatch, ColumnCollector], None]
    collector: ColumnCollector
    fail: Callable[[int, BaseException], None]
    base: int
    """Where the frame begins among the tuples of the wave."""

    def call(self, batch: pa.RecordBatch, at: int) -> None:
        """Call the bolt with a batch that begins at this row of its frame; with halves, if need be.

        A row that was failed by a call that raised later is open again.
        """
        collector, size = self.collector, batch.num_rows
        outlets = collector.port.outlets.values()
        marks = [(outlet, outlet.mark()) for outlet in outlets]
        collector.base, collector.size = self.base + at, size
        try:
            self.execute(batch, collector)
        except (Exception, SystemExit) as error:
            for outlet, mark in marks:
                outlet.take_back(mark)
            for row in range(self.base + at, self.base + at + size):
                collector.port.done[row] = OPEN
            if isinstance(error, FailedException) or size == 1:
                for row in range(at, at + size):
                    self.fail(row, error)
                return
        else:
            return
        half = (size + 1) // 2
        self.call(batch.slice(0, half), at)
        self.call(batch.slice(half), at + half)


def run_batches(frame: Frame, origin: Origin, calls: BatchCalls, deadline: float) -> int:
    """Give a bolt the tuples of a frame until the deadline; return how many it got."""
    done, total = 0, len(frame)
    told = {"component": origin.component, "stream": origin.stream}
    while done < total:
        stop = min(total, done + _ROWS_MAX)
        for batch, at in _batches(frame, done, stop, origin, calls):
            calls.call(batch.replace_schema_metadata(told), at)
        done = stop
        if time.monotonic() >= deadline:
            break
    return done


def _batches(
    frame: Frame, start: int, stop: int, origin: Origin, calls: BatchCalls
) -> list[tuple[pa.RecordBatch, int]]:
    """Return rows of a frame as batches, each with the row at which it begins.

    They are one, unless a value among them cannot be in a column with the others. It fails alone.
    """
    if isinstance(frame.values, pa.RecordBatch):
        return [(frame.values.slice(start, stop - start), start)]
    part = frame.cut(start, stop)
    names = list(origin.fields)
    try:
        arrays = [pa.array(column) for column in part.lists] if names else []
        return [(pa.RecordBatch.from_arrays(arrays, names=names), start)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if stop - start == 1:
            calls.fail(start, _no_column(part.rows[0], origin, error))
            return []
    middle = (start + stop + 1) // 2
    return [
        *_batches(frame, start, middle, origin, calls),
        *_batches(frame, middle, stop, origin, calls),
    ]


def _no_column(row: tuple[Any, ...], origin: Origin, error: Exception) -> EmitError:
    return EmitError(
        f"{origin.component!r} emitted {shown(row)} on stream {origin.stream!r}, which "
        f"execute_batch cannot get as columns: {described(error)}"
    )
