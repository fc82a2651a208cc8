"""Tuples as text and back: what a buffer stores, in pieces of bounded size.

A chunk is two lines of JSON, which never holds a line break of its own: the marks of the tuples
(`[[mark, how many], ...]`, or `[]` if they are numbers that follow one another), and the tuples.
Chunks are joined as text, without being read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from waterspout._serde import decode_value, encode_value
from waterspout.errors import DamagedStoreError, SerdeError

__all__ = ["CHUNK_CHARS", "CHUNK_TUPLES", "Held", "WindowChunk", "join_chunks", "make_chunks"]

CHUNK_TUPLES = 1024
CHUNK_CHARS = 256 * 1024  # with the value before it, still under the 1 MB of a memcached item


@dataclass(slots=True)
class Held:
    """Tuples in memory, in order, each with its mark."""

    marks: list[int] = field(default_factory=list)
    rows: list[Sequence[Any]] = field(default_factory=list)

    def extend(self, other: Held) -> None:
        """Append later tuples."""
        self.marks += other.marks
        self.rows += other.rows

    def between(self, start: int, end: int) -> list[Sequence[Any]]:
        """Return the tuples that stand at `start` or later, and before `end`."""
        return self.rows[bisect_left(self.marks, start) : bisect_left(self.marks, end)]

    def since(self, start: int) -> Held:
        """Return the tuples that stand at `start` or later."""
        first = bisect_left(self.marks, start)
        return Held(self.marks[first:], self.rows[first:])


@dataclass(frozen=True, slots=True)
class WindowChunk:
    """The text of some tuples, and what can be known of them without reading it."""

    count: int
    first: int
    last: int
    text: str

    def read(self) -> Held:
        """Return the tuples."""
        runs, rows = _lines(self.text)
        try:
            marks = [mark for mark, times in decode_value(runs) for _ in range(times)]
            numbers = list(range(self.first, self.first + self.count))
            found = Held(marks or numbers, decode_value(rows))
        except (SerdeError, TypeError, ValueError) as error:
            raise _damaged(str(error)) from error
        if not len(found.marks) == len(found.rows) == self.count:
            raise _damaged(f"{len(found.rows)} tuples where {self.count} were stored")
        return found


def make_chunks(held: Held, *, by_time: bool) -> Iterator[WindowChunk]:
    """Cut tuples into chunks. A tuple that is too large for any makes a chunk of its own."""
    start, size = 0, 0
    texts: list[str] = []
    for i, row in enumerate(held.rows):
        text = encode_value(list(row))
        if texts and (len(texts) == CHUNK_TUPLES or size + len(text) > CHUNK_CHARS):
            yield _chunk(held.marks[start:i], texts, by_time)
            start, size, texts = i, 0, []
        texts.append(text)
        size += len(text)
    if texts:
        yield _chunk(held.marks[start:], texts, by_time)


def join_chunks(left: WindowChunk, right: WindowChunk) -> WindowChunk:
    """Return two chunks, one following the other, as one."""
    left_runs, left_rows = _lines(left.text)
    right_runs, right_rows = _lines(right.text)
    runs = "[]" if left_runs == right_runs == "[]" else f"{left_runs[:-1]},{right_runs[1:]}"
    text = f"{runs}\n{left_rows[:-1]},{right_rows[1:]}"
    return WindowChunk(left.count + right.count, left.first, right.last, text)


def _chunk(marks: list[int], texts: list[str], by_time: bool) -> WindowChunk:
    runs = [[mark, len(list(same))] for mark, same in groupby(marks)] if by_time else []
    return WindowChunk(
        len(texts), marks[0], marks[-1], f"{encode_value(runs)}\n[{','.join(texts)}]"
    )


def _lines(text: str) -> tuple[str, str]:
    runs, found, rows = text.partition("\n")
    if not found or not (runs[:1] == rows[:1] == "[" and runs[-1:] == rows[-1:] == "]"):
        raise _damaged("it is not two lines of JSON")
    return runs, rows


def _damaged(what: str) -> DamagedStoreError:
    return DamagedStoreError(f"a chunk of a window's tuples cannot be read: {what}")
