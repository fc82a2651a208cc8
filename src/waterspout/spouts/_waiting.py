"""Files that were found and are in no batch yet: in which order, how many, which are too young.

No I/O: it is told what was found, and what time it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import merge

from waterspout.spouts._listing import Found
from waterspout.spouts._places import FileStat

__all__ = ["WaitingFiles"]


@dataclass(slots=True)
class _Young:
    """A file that was changed not long ago, as it was seen last."""

    seen: FileStat
    since: float
    """When it was first seen like this, by our own clock."""


class WaitingFiles:
    """Keeps files oldest first, at most `keep_max` of them; of the others only how many there are.

    A file is too young while `min_age_s` have not passed since its last change: by its own time,
    or, since that may be any, since it was first seen as it is.
    """

    def __init__(self, keep_max: int, min_age_s: float = 0.0) -> None:
        self._keep_max = keep_max
        self._min_age_s = min_age_s
        self.ready: list[Found] = []
        """Those that may go into a batch, oldest first. Who takes some calls `taken`."""
        self._ready_bytes = 0
        self._young: dict[str, _Young] = {}
        self._beyond_files = 0
        self._beyond_bytes = 0

    @property
    def files(self) -> int:
        """How many files wait, the young ones and those that are not kept included."""
        return len(self.ready) + len(self._young) + self._beyond_files

    @property
    def bytes(self) -> int:
        """How large they are together, as they were when they were found."""
        young = sum(each.seen.size for each in self._young.values())
        return self._ready_bytes + young + self._beyond_bytes

    @property
    def young(self) -> int:
        """How many of them are too young."""
        return len(self._young)

    @property
    def names(self) -> set[str]:
        """The names of those that are kept."""
        return {found[1] for found in self.ready} | self._young.keys()

    @property
    def is_short(self) -> bool:
        """Whether only files are left that are not kept: they have to be found again."""
        return self._beyond_files > 0 and not self.ready and not self._young

    def add(
        self,
        found: Iterable[Found],
        beyond: tuple[int, int],
        *,
        anew: bool,
        wall_s: float,
        now: float,
    ) -> None:
        """Take in what a look has found.

        `beyond` is how many files (and bytes) more it met; if it looked `anew`, at all that there
        are.
        """
        files, size = beyond
        if anew:
            self._beyond_files = self._beyond_bytes = 0
        last = self.ready[-1] if self.ready and self._beyond_files else None
        known, new = self.names, []
        for each in found:
            time_ns, name, bytes_in_it = each
            if name in known:
                continue
            is_young = not self._is_old(time_ns, wall_s)
            if is_young and len(self._young) < self._keep_max:
                self._young[name] = _Young(FileStat(bytes_in_it, time_ns), now)
            elif is_young or (last is not None and each > last):
                # Of those that are not kept some are older: they come first, when found again.
                files, size = files + 1, size + bytes_in_it
            else:
                new.append(each)
        self.ready = list(merge(self.ready, sorted(new)))
        cut = self.ready[self._keep_max :]
        del self.ready[self._keep_max :]
        self._beyond_files += files + len(cut)
        self._beyond_bytes += size + sum(found[2] for found in cut)
        self._ready_bytes = sum(found[2] for found in self.ready)

    def taken(self, count: int) -> None:
        """Forget the first ones: they are in a batch, or gone."""
        self._ready_bytes -= sum(found[2] for found in self.ready[:count])
        del self.ready[:count]

    def is_settled(self, found: Found, seen: FileStat, wall_s: float) -> bool:
        """Whether a file that was ready, and is this now, may go into a batch as it is."""
        return seen == (found[2], found[0]) or self._is_old(seen.time_ns, wall_s)

    def put_back(self, name: str, seen: FileStat, now: float) -> None:
        """Let a file wait again that has changed since it was ready."""
        self._young[name] = _Young(seen, now)

    def due(self, wall_s: float, now: float) -> list[str]:
        """Return the young files that may be old enough now, to be looked at once more."""
        return [
            name
            for name, young in self._young.items()
            if self._is_old(young.seen.time_ns, wall_s) or now - young.since >= self._min_age_s
        ]

    def looked(self, seen: Mapping[str, FileStat | None], now: float) -> None:
        """Learn what young files that were due are now; None: no file any more."""
        old = []
        for name, what in seen.items():
            young = self._young[name]
            if what is not None and what != young.seen:
                self._young[name] = _Young(what, now)
                continue
            del self._young[name]
            if what is not None:
                old.append((what.time_ns, name, what.size))
        if old:
            self.ready = list(merge(self.ready, sorted(old)))
            self._ready_bytes += sum(found[2] for found in old)

    def _is_old(self, time_ns: int, wall_s: float) -> bool:
        return not self._min_age_s or wall_s - time_ns / 1e9 >= self._min_age_s
