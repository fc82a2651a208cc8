"""Which rows make a call over many rows fail: halves, and halves of halves. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from waterspout.errors import FailedException

__all__ = ["ROW_ERRORS", "bisect", "is_of_a_row"]

T = TypeVar("T")

ROW_ERRORS = Exception
"""What a row may be blamed for; see `is_of_a_row` for what of it is no row's fault."""


def is_of_a_row(error: Exception) -> bool:
    """Whether an error tells of the row at hand, not of the whole batch or of the machine."""
    return not isinstance(error, (FailedException, MemoryError))


def bisect(call: Callable[[int, int], T], rows: int) -> tuple[list[T], list[tuple[int, Exception]]]:
    """Call for all rows at once, or for parts of them where that fails.

    `call(start, stop)` works on a range of rows. Returns the results of the parts that
    succeeded, in order, and each row that fails alone, with its error. With k bad rows among n
    these are at most about 2 k (1 + log2 n) calls; with none, one.
    """
    results: list[T] = []
    bad: list[tuple[int, Exception]] = []
    todo = [(0, rows)]
    while todo:
        start, stop = todo.pop()
        try:
            results.append(call(start, stop))
        except ROW_ERRORS as error:
            if not is_of_a_row(error) or stop == start:
                raise
            if stop - start == 1:
                bad.append((start, error))
            else:
                middle = (start + stop) // 2
                # The first half comes next: results are to be in the order of the rows.
                todo += [(middle, stop), (start, middle)]
    return results, bad
