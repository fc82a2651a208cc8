"""Being asked to stop: SIGINT, SIGTERM and SIGHUP, for as long as a command runs."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["StopSignals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Notes that a signal came. At first, and when a second one comes, it also interrupts.

    While something starts there is nothing to be ended in order: KeyboardInterrupt is raised.
    After `be_patient` the first signal is only noted, for whoever looks at `wait`.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._patient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        if self._before[signal.SIGHUP] is signal.SIG_IGN:
            del self._before[signal.SIGHUP]  # it was started with nohup
        self._install()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def is_set(self) -> bool:
        """Whether a signal came."""
        return self._asked.is_set()

    def be_patient(self) -> None:
        """From now on only note the first signal. Spark, too, sets a handler: it goes."""
        self._patient = True
        self._install()

    def wait(self, timeout_s: float) -> bool:
        """Wait a while for a signal; return whether one came."""
        return self._asked.wait(timeout_s)

    def _install(self) -> None:
        for number in self._before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self._asked.is_set()
        self._asked.set()
        if again or not self._patient:
            raise KeyboardInterrupt
