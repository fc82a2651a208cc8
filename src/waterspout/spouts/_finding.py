"""When the driver looks for files, and how long: never so long that the loop would stand still."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from waterspout.spouts._listing import FileListing, Found, Look
from waterspout.spouts._places import FileStat, Place
from waterspout.spouts._waiting import WaitingFiles

__all__ = ["FileFinder", "seen"]

_REST_PER_LISTING = 10  # listing takes at most a tenth of the time
_REST_PER_LOOK = 100  # and what is only for the lag a hundredth
_LOOK_S = 1.0
_HERE_CPU_S, _HERE_WALL_S = 0.05, 2.0  # a look that takes longer goes on in a thread of its own
_EXACT_S = 3600.0  # how often a look trusts nothing that it remembers
_YOUNG_S = 0.05  # how often files that are too young are looked at, at most

KEEP_MAX = 200_000
"""How many files wait by name, some 50 MB; more are counted, and found again when it is time."""


class FileFinder:
    """The files of a source that are in no batch yet. One thread uses it.

    `is_read` returns which of some names are on the list of the files that were read; it is
    also asked by another thread.
    """

    def __init__(
        self,
        place: Place,
        path: str,
        is_read: Callable[[list[str]], Collection[str]],
        min_age_s: float = 0.0,
    ) -> None:
        self._place = place
        self._listing = FileListing(place, path, is_read)
        self._waiting = WaitingFiles(KEEP_MAX, min_age_s)
        self._looking: Look | None = None
        self._back: list[tuple[str, FileStat]] = []
        self._lost_sight = False
        self._wanted = False
        self._list_at = self._look_at = self._young_at = 0.0
        self._exact_at = time.monotonic() + _EXACT_S

    @property
    def ready(self) -> list[Found]:
        """Those that may go into a batch, oldest first."""
        return self._waiting.ready

    @property
    def may_list(self) -> bool:
        """Whether it is time to look for files to read."""
        return self._wanted or self._waiting.is_short or time.monotonic() >= self._list_at

    @property
    def may_look(self) -> bool:
        """Whether it is time to look only to tell how many there are."""
        return time.monotonic() >= self._look_at

    @property
    def is_drained(self) -> bool:
        """Whether no file waits, and nobody looks for more just now, or should."""
        return not self._wanted and self._looking is None and not self._waiting.files

    @property
    def counts(self) -> Mapping[str, int]:
        """How many files wait, and how large they are; which of them are not to be read yet."""
        aside = {
            "young_files": self._waiting.young,
            "unfinished_files": self._listing.unfinished,
        }
        told = {unit: count for unit, count in aside.items() if count}
        return {"files": self._waiting.files, "bytes": self._waiting.bytes, **told}

    def look_anew(self) -> None:
        """Let no look count that began before now, and let the next one wait for nothing."""
        self._wanted = True

    def begin(self, in_batches: Iterable[str]) -> None:
        """Begin to look, unless a look goes on. Files that are in batches are none of ours."""
        if self._looking is not None:
            return
        waiting, now = self._waiting, time.monotonic()
        exact = now >= self._exact_at
        if exact:
            self._exact_at = now + _EXACT_S
        anew = exact or waiting.is_short or self._lost_sight
        self._lost_sight = self._wanted = False
        # Whatever gets into a batch while it looks is among them: only what waits can.
        skip = waiting.names.union(in_batches)
        steps = self._listing.look(skip, anew=anew, exact=exact)
        self._looking = Look(steps, KEEP_MAX, anew=anew)

    def go_on(self) -> None:
        """Look on, for 50 ms of CPU at most; take in what was found, if the look is over.

        Raises what went wrong in the look, also in its own thread.
        """
        look = self._looking
        if look is not None:
            look.go_on(_HERE_CPU_S, _HERE_WALL_S)
        if look is not None and look.is_over:
            self._looking = None
            self._take_in(look)
        self._look_at_young()

    def still_ready(self, found: Found) -> FileStat | None:
        """Return what a file is now that was found; None if it is gone, or has to wait again."""
        now = seen(self._place, found[1])
        if now is None:
            self._lost_sight = True
        elif not self._waiting.is_settled(found, now, time.time()):
            self._back.append((found[1], now))
            return None
        return now

    def take(self, count: int) -> None:
        """Let the first ones go that are ready: they are in a batch, gone, or wait again."""
        names = {found[1] for found in self._waiting.ready[:count]}
        self._waiting.taken(count)
        for name, now in self._back:
            if name in names:
                self._waiting.put_back(name, now, time.monotonic())
        self._back = []

    def close(self) -> None:
        """End the look that goes on."""
        if self._looking is not None:
            self._looking.leave()
            self._looking = None

    def _take_in(self, look: Look) -> None:
        now = time.monotonic()
        self._list_at = now + _REST_PER_LISTING * look.took_s
        self._look_at = now + max(_LOOK_S, _REST_PER_LOOK * look.took_s)
        if look.error is not None:
            self._lost_sight = self._lost_sight or look.is_anew
            raise look.error
        self._waiting.add(
            look.found,
            (look.beyond_files, look.beyond_bytes),
            anew=look.is_anew,
            wall_s=time.time(),
            now=now,
        )
        self._listing.keep()

    def _look_at_young(self) -> None:
        """See which of the files that were too young have stayed as they were."""
        now = time.monotonic()
        if not self._waiting.young or now < self._young_at:
            return
        due = self._waiting.due(time.time(), now)
        looks = {name: seen(self._place, name) for name in due}
        self._lost_sight = self._lost_sight or None in looks.values()
        self._waiting.looked(looks, now)
        self._young_at = now + _YOUNG_S


def seen(place: Place, name: str) -> FileStat | None:
    """Return what a file is now; None if it is gone, or no file."""
    try:
        return place.stat(name)
    except FileNotFoundError:
        return None
