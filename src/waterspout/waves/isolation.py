"""Which message kills its worker? A search by halving: decisions without I/O.

A wave whose workers die is run again once: it may have been chance. Then it is run in pieces, each
of which is divided again if its workers die, until one message is left. When that has killed its
worker alone, twice, a wave without any tuple says whether workers can live at all. If they can, the
message is guilty and fails. It comes again as a suspect, and is run apart from all others: it does
no harm to innocent ones again, and any number of killers is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from waterspout.errors import WorkerLostError
from waterspout.waves.frames import Frame, halves
from waterspout.waves.logs import LogRead, halved

__all__ = ["AfterFailure", "Guilty", "Isolation", "Load"]


@dataclass(frozen=True, slots=True)
class Load:
    """What a wave begins with; kept to run it again."""

    frames: list[Frame] = field(default_factory=list)
    reads: list[LogRead] = field(default_factory=list)
    is_suspect: bool = False
    """It has killed a worker alone before."""

    is_probe: bool = False
    """There is nothing in it: all bolts are taken up, to see whether workers live."""

    @property
    def tuples(self) -> int:
        """About how many tuples there are in it."""
        return sum(map(len, self.frames)) + sum(read.messages for read in self.reads)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be executed or read."""
        return not self.frames and not self.reads

    @property
    def is_single(self) -> bool:
        """Whether it cannot be divided any further."""
        ranges = [each for read in self.reads for each in read.ranges]
        sizes = [end - start for _, start, end in ranges]
        return sum(map(len, self.frames)) + sum(sizes) <= 1

    def halves(self) -> tuple[Load, Load]:
        """Return it in two; neither is empty."""
        if self.frames and self.reads:
            return Load(self.frames), Load(reads=self.reads)
        if self.frames:
            first, second = halves(self.frames)
            return Load(first), Load(second)
        early, late = halved(self.reads)
        return Load(reads=early), Load(reads=late)


@dataclass(frozen=True, slots=True)
class Guilty:
    """A load of one message that kills its worker, and how that looked."""

    load: Load
    error: BaseException


class AfterFailure(Enum):
    """What follows on a wave that failed."""

    AGAIN = "again"
    """It is run again, after a pause."""

    PIECES = "pieces"
    """It is done with; what `take` returns comes next."""

    GIVE_UP = "give up"
    """The run ends: it is not the message."""


class Isolation:
    """Told of every wave that failed or went through; says what to run next."""

    def __init__(self, max_retries: int) -> None:
        self._max_retries = max_retries
        self._pieces: list[Load] = []
        self._accused: Guilty | None = None
        self._searching = False
        self.failures = 0
        """Of the load at hand, in a row."""

    @property
    def is_on(self) -> bool:
        """Whether a wave has failed, and not all of it was run again with success yet."""
        return self._searching or self.failures > 0

    @property
    def has_pieces(self) -> bool:
        """Whether `take` has something to return."""
        return bool(self._pieces)

    def put_apart(self, suspects: Iterable[Load]) -> None:
        """Run these alone."""
        self._pieces += suspects
        self._searching = self._searching or bool(self._pieces)

    def take(self) -> Load:
        """Return what to run next."""
        return self._pieces.pop()

    def failed(self, load: Load, error: BaseException) -> AfterFailure:
        """Say what follows on a wave that failed as a whole."""
        self.failures += 1
        if self.failures <= self._tries_more(load, error):
            return AfterFailure.AGAIN
        if load.is_empty or not isinstance(error, WorkerLostError):
            return AfterFailure.GIVE_UP
        self.failures, self._searching = 0, True
        if load.is_single:
            self._accused = Guilty(load, error)
            self._pieces.append(Load(is_probe=True))
        else:
            first, second = load.halves()
            self._pieces += [second, first]
        return AfterFailure.PIECES

    def _tries_more(self, load: Load, error: BaseException) -> int:
        """Return how often a load is run again as it is."""
        if load.is_empty or not isinstance(error, WorkerLostError):
            return self._max_retries
        if load.is_single:
            return 0 if load.is_suspect else 1
        return 0 if self._searching else min(1, self._max_retries)

    def went_through(self, load: Load) -> Guilty | None:
        """Take note that a wave is done; return the message whose guilt that proves, if any."""
        guilty = self._accused if load.is_probe else None
        if guilty is not None:
            self._accused = None
        self.failures, self._searching = 0, self.has_pieces
        return guilty
