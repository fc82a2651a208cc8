"""Which files there are: the names that count, and looks that cost what has changed.

A source may hold millions of files that were read, and a few that are new. A look does not ask for
the time of those that were read, nor the list about each of them again: of every folder it keeps 8
bytes for each of its files that were read, a hash of the name. A folder in which nothing has come
or gone since it was looked through is not even listed, where the file system tells that.

Both are only to be quick. What is found new is asked of the list of read files, so no file is read
twice; and once in a while a look believes neither, so a file that they hid is late and not lost.
"""

from __future__ import annotations

import fnmatch
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from waterspout.spouts._places import Place

__all__ = ["UNFINISHED", "FileListing", "Found", "Look", "Pattern", "has_glob"]

Found: TypeAlias = tuple[int, str, int]
"""Time in nanoseconds, name and size of a file."""

UNFINISHED = (
    *("._copying_", ".tmp", ".temp", ".part", ".partial"),
    *(".crdownload", ".filepart", ".inprogress"),
)
"""How the names of files end that somebody still writes, in any case of letters: those of HDFS's
shell, of browsers, of transfers by SFTP, of Flink, and what people write by hand."""

_AT_ONCE = 1000
_HASHED_AT_ONCE = 10_000

# The time of a folder is that of a clock that ticks, on some file systems every two seconds: what
# comes in the tick of a look might leave it as it was.
_TICK_S = 2.0

_Hashes: TypeAlias = npt.NDArray[np.int64]
_States: TypeAlias = frozenset[int]


def has_glob(path: str) -> bool:
    """Whether a path is a pattern."""
    return any(char in path for char in "*?[")


@dataclass(frozen=True, slots=True)
class _Level:
    """What one level of a pattern says of a name."""

    text: str
    matches: Callable[[str], Any] | None
    """None for `**`: any folders, or none."""

    @classmethod
    def of(cls, text: str) -> _Level:
        if text == "**":
            return cls(text, None)
        return cls(text, re.compile(fnmatch.translate(text)).match)


class Pattern:
    """A folder with all that is below it, or a glob; knows which names count.

    Names that begin with `_` or `.` do not, as with Spark's readers, unless the pattern spells them
    out; nor does what is below such a folder. A walk goes with a set of places in the pattern.

    >>> pattern = Pattern("/in/*/part-*.json")
    >>> below = pattern.step(pattern.start, "2024")
    >>> pattern.enters(below), pattern.takes(below), pattern.base
    (True, False, '/in')
    >>> [pattern.takes(pattern.step(below, name)) for name in ("part-1.json", "x", "_part-1.json")]
    [True, False, False]
    """

    def __init__(self, path: str) -> None:
        self.is_glob = has_glob(path)
        parts = path.split("/")
        first = next((i for i, part in enumerate(parts) if has_glob(part)), len(parts))
        self.base = "/".join(parts[:first]) or "/"
        self._parts = [_Level.of(part) for part in parts[first:] if part] or [_Level.of("**")]
        self._all = len(self._parts) == 1 and self._parts[0].matches is None
        last = self._parts[-1].text.lower()
        self._unfinished = tuple(end for end in UNFINISHED if not last.endswith(end))
        self.start = self._closed({0})
        self._below_all = frozenset({0, 1})

    def _closed(self, states: set[int]) -> _States:
        """Add the places that are reached because `**` may stand for no folder at all.

        The end is not one of them: where `**` comes last, it stands for the file.
        """
        for at in sorted(states):
            while at < len(self._parts) - 1 and self._parts[at].matches is None:
                at += 1
                states.add(at)
        return frozenset(states)

    def step(self, states: _States, name: str) -> _States:
        """Return the places behind a name, for one who has come to these."""
        hidden = name.startswith(("_", "."))
        if self._all:
            return frozenset() if hidden else self._below_all
        reached = set()
        for at in states:
            if at == len(self._parts):
                continue
            part = self._parts[at]
            if part.matches is not None:
                if name == part.text if hidden else part.matches(name):
                    reached.add(at + 1)
            elif not hidden:
                ends = all(later.matches is None for later in self._parts[at:])
                reached |= {at, len(self._parts)} if ends else {at}
        return self._closed(reached)

    def takes(self, states: _States) -> bool:
        """Whether a file at these places is one of the source."""
        return len(self._parts) in states

    def enters(self, states: _States) -> bool:
        """Whether there may be files below a folder at these places."""
        return any(at < len(self._parts) for at in states)

    def is_unfinished(self, name: str) -> bool:
        """Whether the name of a file says that it is still written, and nobody asks for such."""
        return name.lower().endswith(self._unfinished)


@dataclass(slots=True)
class _Folder:
    """What is remembered of a folder."""

    mark: object | None
    since: float
    """When its mark was first seen, by our own clock."""
    is_whole: bool
    """Whether nothing can have come since it was looked through, as long as the mark is this."""
    read: _Hashes
    """The hashes of the names of its files that were read."""
    below: list[tuple[str, _States]]
    odd: list[str]
    """What is no file now and may become one without a change of the folder: links."""
    unfinished: int


@dataclass(slots=True)
class _Scan:
    """What a look finds out about one folder."""

    read: list[_Hashes] = field(default_factory=list)
    below: list[tuple[str, _States]] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    unfinished: int = 0


class FileListing:
    """Finds the files that are new, look by look. Only one look goes on at a time.

    `is_read` returns which of some names were read. `clock` is monotonic.
    """

    def __init__(
        self,
        place: Place,
        path: str,
        is_read: Callable[[list[str]], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._pattern = Pattern(path)
        self._is_read = is_read
        self._clock = clock
        self._folders: dict[str, _Folder] = {}
        self._fresh: dict[str, _Folder] = {}
        self.unfinished = 0
        """How many files the last look left alone because of their names."""

    def look(
        self, skip: Collection[str] = (), *, anew: bool = False, exact: bool = False
    ) -> Iterator[list[Found]]:
        """Yield files that were not read, some at a time, without those in `skip`.

        Files of folders in which nothing has changed since the last look that was kept are left
        out, unless `anew`; `exact`: and every name is asked of the list. A look that is not
        finished, or not kept, changes nothing.
        """
        self._fresh = {}
        base, start = self._pattern.base, self._pattern.start
        if not self._pattern.is_glob and self._place.is_file(base):
            names = [self._place.name(base)]
            yield self._found_by_name([name for name in names if name not in skip])
            return
        todo = [(base, start, frozenset[object]())]
        while todo:
            folder, states, above = todo.pop()
            try:
                mark = self._place.mark(folder)
            except FileNotFoundError:
                continue
            if self._pattern.is_glob and isinstance(mark, tuple):
                # Globs follow links, which may lead back to where one came from.
                if mark[:2] in above:
                    continue
                above |= {mark[:2]}
            known = self._folders.get(folder)
            if known is not None and known.mark != mark:
                known.is_whole, known.since = False, self._clock()
            if known is not None and known.is_whole and not (anew or exact):
                self._fresh[folder] = known
                odd = [self._place.name(os.path.join(folder, name)) for name in known.odd]
                if odd:
                    yield self._found_by_name([name for name in odd if name not in skip])
            else:
                began, scan = self._clock(), _Scan()
                yield from self._scan(folder, states, None if exact else known, scan, skip)
                self._fresh[folder] = _remembered(mark, known, began, scan)
            todo += [(path, reached, above) for path, reached in self._fresh[folder].below]

    def keep(self) -> None:
        """Remember what the look that has ended found: its files are in good hands."""
        self._folders, self._fresh = self._fresh, {}
        self.unfinished = sum(folder.unfinished for folder in self._folders.values())

    def _scan(
        self,
        folder: str,
        states: _States,
        known: _Folder | None,
        scan: _Scan,
        skip: Collection[str],
    ) -> Iterator[list[Found]]:
        before = None if known is None else known.read
        entries = self._place.entries(folder)
        try:
            while some := list(islice(entries, _HASHED_AT_ONCE)):
                hashes = np.fromiter((hash(e.name) for e in some), np.int64, len(some))
                # Only names of files that were read are remembered: the others are worth a look.
                if before is not None and len(before):
                    at = np.searchsorted(before, hashes)
                    is_known = before[np.minimum(at, len(before) - 1)] == hashes
                    scan.read.append(hashes[is_known])
                    some = [some[i] for i in np.flatnonzero(~is_known)]
                yield []
                for start in range(0, len(some), _AT_ONCE):
                    yield self._unread(some[start : start + _AT_ONCE], states, scan, skip)
        finally:
            if hasattr(entries, "close"):
                entries.close()  # nobody may want the rest

    def _unread(
        self, entries: list[Any], states: _States, scan: _Scan, skip: Collection[str]
    ) -> list[Found]:
        """Return the files among some entries that were not read; note the rest."""
        pattern, named = self._pattern, dict[str, Any]()
        for entry in entries:
            reached = pattern.step(states, entry.name)
            if not reached:
                continue
            if entry.is_dir():
                if pattern.enters(reached) and (pattern.is_glob or not entry.is_symlink()):
                    scan.below.append((entry.path, reached))
            elif pattern.takes(reached):
                if pattern.is_unfinished(entry.name):
                    scan.unfinished += 1
                else:
                    named[self._place.name(entry.path)] = entry
        asked = [name for name in named if name not in skip]
        read = self._is_read(asked) if asked else set[str]()
        scan.read.append(
            np.fromiter((hash(named[name].name) for name in read), np.int64, len(read))
        )
        found = []
        for name in asked:
            if name in read:
                continue
            now = self._place.stat_entry(named[name])
            if now is None:
                scan.odd.append(named[name].name)
            else:
                found.append((now.time_ns, name, now.size))
        return found

    def _found_by_name(self, names: list[str]) -> list[Found]:
        read = self._is_read(names) if names else set[str]()
        found = []
        for name in names:
            try:
                now = None if name in read else self._place.stat(name)
            except FileNotFoundError:
                continue
            if now is not None:
                found.append((now.time_ns, name, now.size))
        return found


def _remembered(mark: object | None, known: _Folder | None, began: float, scan: _Scan) -> _Folder:
    since = began if known is None else known.since
    # Not by the folder's own time: the clock of a file server may be another.
    whole = mark is not None and known is not None and began - since >= _TICK_S
    read = np.concatenate(scan.read) if scan.read else np.empty(0, np.int64)
    return _Folder(mark, since, whole, np.sort(read), scan.below, scan.odd, scan.unfinished)


class Look:
    """One look at a source: in the thread that begins it as long as that is quick, else beside it.

    Of what it finds the oldest `keep_max` are kept; of the others it only knows how many.
    """

    def __init__(self, steps: Iterator[list[Found]], keep_max: int, *, anew: bool) -> None:
        self._steps = steps
        self._keep_max = keep_max
        self.is_anew = anew
        """Whether it finds all files, also those of folders in which nothing has changed."""
        self.began = time.monotonic()
        self.took_s = 0.0
        self.found: list[Found] = []
        self._newest: Found | None = None
        """The newest that is kept, once there are too many."""
        self.beyond_files = 0
        self.beyond_bytes = 0
        self.error: Exception | None = None
        self.is_over = False
        self._leaves = False
        self._thread: threading.Thread | None = None

    def go_on(self, cpu_s: float, wall_s: float) -> None:
        """Look for a while; if that is not enough, let a thread of its own go on."""
        if self._thread is not None or self.is_over:
            return
        cpu_until, wall_until = time.thread_time() + cpu_s, time.monotonic() + wall_s
        self._run(lambda: time.thread_time() >= cpu_until or time.monotonic() >= wall_until)
        if not self.is_over:
            self._thread = threading.Thread(target=self._run, name="waterspout-files", daemon=True)
            self._thread.start()

    def leave(self) -> None:
        """End it, whatever it has found."""
        self._leaves = True
        if self._thread is not None:
            self._thread.join(10)

    def _run(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        try:
            for found in self._steps:
                self._add(found)
                if self._leaves or is_enough():
                    break
            else:
                self._end()
        except Exception as error:
            self.error = error
            self._end()

    def _end(self) -> None:
        self.found.sort()
        self._cut()
        self.took_s = time.monotonic() - self.began
        self.is_over = True

    def _add(self, found: list[Found]) -> None:
        if self._newest is not None:
            self._give_up([each for each in found if each > self._newest])
            found = [each for each in found if each <= self._newest]
        self.found += found
        if len(self.found) >= 2 * self._keep_max:
            self._cut()

    def _cut(self) -> None:
        if len(self.found) > self._keep_max:
            self.found.sort()
            self._give_up(self.found[self._keep_max :])
            del self.found[self._keep_max :]
            self._newest = self.found[-1]

    def _give_up(self, found: list[Found]) -> None:
        self.beyond_files += len(found)
        self.beyond_bytes += sum(each[2] for each in found)
