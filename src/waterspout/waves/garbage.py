"""When not to look for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["leave_alone", "no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """Do not look for garbage in cycles meanwhile.

    Millions of small objects are made for a wave, or for a batch of a state, and live until it is
    over: looking through them again and again costs a fifth of the time, and a third where a state
    is written, and finds nothing. What was not looked for is looked for afterwards, once.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


_left_alone = False


def leave_alone() -> None:
    """Never again look for garbage among what is there now; for processes that only run tasks.

    Spark's Python workers look for garbage after every task, through all that was ever imported:
    tens of milliseconds for each visit of a worker, and nothing of it is ever garbage. Done once in
    a process: what comes later, bolts among it, is looked through as before.
    """
    global _left_alone
    if not _left_alone:
        _left_alone = True
        gc.collect()
        gc.freeze()
