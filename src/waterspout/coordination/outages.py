"""Services that cannot be reached for now: how long each is waited for, and when it is too long.

`Outages` decides, without I/O. `Waits` keeps one for a run: it has the clock, and tells.

An outage begins with the first error and is over when the same *part* of a run is through: the
states when a batch is settled, the ledger when it is stored, a spout when it can be asked. That a
service answers in between does not end it: one that takes connections and no writes is away too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from waterspout._backoff import Backoff
from waterspout._safe_repr import described
from waterspout.coordination.events import Event, ServiceAway, ServiceBack
from waterspout.errors import OutageError, SpoutCrash

__all__ = ["LEDGER", "STATES", "WAVE", "Outages", "Waits", "gave_up", "outage_of"]

log = logging.getLogger(__name__)

# A pause of nothing would be for ever: unlike retries, these are not counted.
_PAUSE_MIN_S = 0.01

# Parts of a run; a spout is one of its own.
STATES, LEDGER, WAVE = "states", "ledger", "wave"


@dataclass(frozen=True, slots=True)
class _Met:
    since: float
    tries: int
    again_at: float


class Outages:
    """Which services are away, by the part of a run that needs them. No clock, no I/O.

    >>> outages = Outages(60.0, Backoff(1.0, 10.0))
    >>> [outages.met("states", "redis", now) for now in (100.0, 101.0, 103.0, 155.0, 159.0)]
    [1.0, 2.0, 4.0, 5.0, 1.0]
    >>> outages.met("states", "redis", 160.0) is None
    True
    """

    def __init__(self, limit_s: float, backoff: Backoff) -> None:
        self.limit_s = limit_s
        self._backoff = Backoff(
            max(backoff.first_s, _PAUSE_MIN_S), max(backoff.longest_s, _PAUSE_MIN_S)
        )
        self._met: dict[tuple[str, str], _Met] = {}

    def met(self, part: str, service: str, now: float) -> float | None:
        """Take note of an error; return after how long to try again, None if it was long enough.

        The last try comes when the time is just over.
        """
        known = self._met.get((part, service)) or _Met(now, 0, now)
        left_s = known.since + self.limit_s - now
        if left_s <= 0:
            return None
        tries = known.tries + 1
        pause_s = min(self._backoff.pause_s(tries), left_s)
        self._met[part, service] = _Met(known.since, tries, now + pause_s)
        return pause_s

    def is_away(self, part: str) -> bool:
        """Whether a part waits for something."""
        return any(part == waiting for waiting, _ in self._met)

    def away_s(self, part: str, service: str, now: float) -> float:
        """Return for how long a part has been waiting for a service."""
        known = self._met.get((part, service))
        return 0.0 if known is None else now - known.since

    def pause_s(self, part: str, service: str, now: float) -> float:
        """Return how much is left of the pause before the next try."""
        known = self._met.get((part, service))
        return 0.0 if known is None else max(0.0, known.again_at - now)

    def answered(self, part: str, now: float) -> dict[str, float]:
        """Take note that a part is through; return for how long it has waited for which service."""
        over = {service: now - met.since for (p, service), met in self._met.items() if p == part}
        for service in over:
            del self._met[part, service]
        return over


class Waits:
    """The outages of one run: notes them, tells of them, and says when it is enough."""

    def __init__(
        self,
        run: str,
        outages: Outages,
        clock: Callable[[], float],
        publish: Callable[[Event], None],
    ) -> None:
        self._run = run
        self._outages = outages
        self._clock = clock
        self._publish = publish

    def met(self, part: str, error: OutageError) -> float:
        """Note that a service is away; return after how long to try again.

        Raises if it has been away for as long as a run waits.
        """
        service, now = error.service, self._clock()
        pause_s = self._outages.met(part, service, now)
        away_s = self._outages.away_s(part, service, now)
        if pause_s is None:
            raise gave_up(error, away_s, self._outages.limit_s) from error
        log.warning("%s: waiting for %s, %.0f s: %s", self._run, service, away_s, error)
        self._publish(ServiceAway(self._run, service, str(error), away_s, pause_s))
        return pause_s

    def noted(self, part: str, error: OutageError | None) -> None:
        """Note what somebody waits for who tries again without being told; None: for nothing."""
        if error is None:
            self.answered(part)
        elif not self._outages.pause_s(part, error.service, self._clock()):
            self.met(part, error)

    def is_away(self, part: str) -> bool:
        """Whether a part waits for something."""
        return self._outages.is_away(part)

    def answered(self, part: str) -> None:
        """Note that a part is through."""
        if not self._outages.is_away(part):
            return
        for service, away_s in self._outages.answered(part, self._clock()).items():
            log.warning("%s: %s is back after %.0f s", self._run, service, away_s)
            self._publish(ServiceBack(self._run, service, away_s))


def gave_up(error: OutageError, away_s: float, limit_s: float) -> OutageError:
    """Return the error that ends a run."""
    return OutageError(
        error.service,
        f"{error.service} was away for {away_s:.0f} s, and outage_secs is {limit_s:g}. Nothing is "
        f"lost: once it is back, the same command goes on. The last error was: {error}",
    )


def outage_of(error: BaseException, source: str) -> OutageError | None:
    """Return the error of a spout as an outage of what it reads, if it is one."""
    found = error.__cause__ if isinstance(error, SpoutCrash) and error.__cause__ else error
    if isinstance(found, OutageError):
        return found
    if not isinstance(found, ConnectionError | TimeoutError):
        return None
    outage = OutageError(f"the source of {source!r}", described(found))
    outage.__cause__ = found
    return outage
