"""Which rows make a call over many rows fail: found by halves, and halves of halves. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from waterspout.errors import FailedException

__all__ = ["bisect"]

T = TypeVar("T")


def bisect(call: Callable[[int, int], T], rows: int) -> tuple[list[T], list[tuple[int, Exception]]]:
    """Call for all rows at once; where that fails, for each half of them, and so on.

    `call(start, stop)` works on a range of rows. Returns the results of the ranges that
    succeeded, in order, and each row that fails alone, with its error. With k bad rows among n
    these are at most about 2 k (1 + log2 n) calls; with none, one. An error that tells of the
    whole batch or of the machine, not of a row, is raised at once.
    """
    results: list[T] = []
    bad: list[tuple[int, Exception]] = []
    todo = [(0, rows)]
    while todo:
        start, stop = todo.pop()
        try:
            results.append(call(start, stop))
        except (FailedException, MemoryError):
            raise
        except Exception as error:
            if stop == start:
                raise
            if stop - start == 1:
                bad.append((start, error))
            else:
                middle = (start + stop) // 2
                # The first half comes next, so that results are in the order of the rows.
                todo += [(middle, stop), (start, middle)]
    return results, bad
