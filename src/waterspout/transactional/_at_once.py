"""How many attempts are processed at the same time: no clock, no I/O."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["AtOnce", "Present"]


@dataclass(eq=False, slots=True)
class Present:
    most: int = 0


class AtOnce:
    """Counts those who are within, for each of them."""

    def __init__(self) -> None:
        self._present: list[Present] = []
        self._lock = threading.Lock()

    @contextmanager
    def one_more(self) -> Iterator[Present]:
        """Be within; give `most`, how many have been there at the same time, oneself among them."""
        one = Present()
        with self._lock:
            self._present.append(one)
            for each in self._present:
                each.most = max(each.most, len(self._present))
        try:
            yield one
        finally:
            with self._lock:
                self._present.remove(one)
