"""Threads of the driver that take turns quickly while one of them talks to the JVM."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quick_turns"]

_QUICK_S = 0.0002

_lock = threading.Lock()
_inside = 0
_before = 0.0


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let a thread that computes give way to one that has got an answer at once, meanwhile.

    Python lets a thread compute for 5 ms while another one waits to go on. To describe a job are
    some thirty calls into the JVM of half a millisecond each, and to go on after one takes up to
    ten times as long while spouts are asked for the next wave. Nobody waits while the job runs:
    then it costs nothing. Several threads may be in here; the last one sets back what it was.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, _QUICK_S))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                sys.setswitchinterval(_before)
