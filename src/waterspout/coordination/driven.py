"""What a run drives: a loop over batches, or over waves."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from waterspout._config import Config
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.commands.obedience import Standing
from waterspout.coordination.events import EventBus, Listener
from waterspout.coordination.outages import Outages, Waits
from waterspout.errors import OutageError

__all__ = ["DrivenLoop", "Lag", "without_harm"]

log = logging.getLogger(__name__)

T = TypeVar("T")

Lag: TypeAlias = Mapping[str, Mapping[str, int]]
"""What waits at each spout: how many files, bytes, offsets, rows or messages."""

_MEASURE_S = 1.0


def without_harm(ask: Callable[[], T], name: str) -> T | None:
    """Ask a spout what is only to be shown; None if it raises."""
    try:
        return ask()
    except Exception as error:
        log.debug("the lag of %r is not known: %s", name, error)
        return None


class DrivenLoop(ABC):
    """What a run drives: a loop over batches, or over waves. One thread calls `step`."""

    def __init__(
        self, name: str, config: Config, clock: Callable[[], float], listener: Listener | None
    ) -> None:
        self.name = name
        self._clock = clock
        self.events = EventBus()
        outages = Outages(config.outage_secs, config.retry_backoff)
        self._waits = Waits(name, outages, clock, self.events.publish)
        self._leaving = threading.Event()
        self._asked_anew = threading.Event()
        self.pause: Callable[[float], bool] = self._leaving.wait
        """Waits so many seconds; True if the run is told to end meanwhile."""
        if listener is not None:
            self.events.subscribe(listener)
        self.active = True
        self.is_idle = False
        self.error: BaseException | None = None
        self._told_active = True
        self._abandoned: BaseException | None = None
        self.lag: Lag = {}
        """What waits at each spout, as it was seen last."""
        self._measure_at = float("-inf")

    def step(self, wait_s: float = 0.0) -> None:
        """Do what is due, waiting at most `wait_s` if that is nothing.

        Whatever ends the run is raised and kept in `error`; nothing is lost by it.
        """
        try:
            self._round(wait_s)
            if self._clock() >= self._measure_at:
                self._measured()
        except BaseException as error:
            self.error = error
            raise

    def _measured(self) -> Lag:
        """Look at what waits at the spouts; nothing that fails in it harms the run."""
        self._measure_at = self._clock() + _MEASURE_S
        self.lag = {name: lag for name, lag in self._measure().items() if lag}
        return self.lag

    @abstractmethod
    def _measure(self) -> Lag: ...

    @abstractmethod
    def wake(self) -> None:
        """Make a waiting `step` return. Callable from any thread."""

    def look_anew(self) -> None:
        """Be idle no more until the sources were looked at once again. Callable from any thread."""
        self._asked_anew.set()
        self.wake()

    def abandon(self, error: BaseException) -> None:
        """End the run with this error at the next step. Callable from any thread."""
        self._abandoned = error
        self.leave()

    def leave(self) -> None:
        """Wait for no service any more: the run ends. Callable from any thread."""
        self._leaving.set()
        self.wake()

    @abstractmethod
    def close(self) -> None:
        """Stop what runs, close the spouts, give up the lease."""

    @abstractmethod
    def standing(self) -> Standing:
        """Return how far it is; called between two steps."""

    @abstractmethod
    def check_change(self, change: Change) -> None:
        """Raise ConfigError, with the reason, for a change that cannot be made."""

    @abstractmethod
    def change(self, change: Change) -> None:
        """Make a change that was checked, between two steps, while nothing is in flight."""

    @abstractmethod
    def _round(self, wait_s: float) -> None: ...

    @abstractmethod
    def _activate_spouts(self, active: bool) -> None: ...

    def _insist(self, part: str, call: Callable[[], T]) -> T:
        """Call what nothing can go on without, until the services that it needs are there."""
        while True:
            try:
                answer = call()
            except OutageError as error:
                away = error
            else:
                self._waits.answered(part)
                return answer
            if self.pause(self._waits.met(part, away)):
                raise self._abandoned or away

    def _obey(self) -> None:
        """Do what other threads have asked for since the last round."""
        if self._abandoned is not None:
            raise self._abandoned
        if self.active != self._told_active:
            self._told_active = self.active
            self._activate_spouts(self._told_active)
