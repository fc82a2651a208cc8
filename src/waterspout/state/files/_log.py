"""A state in memory and its files: what one process knows of them, and how it adds to them.

Nothing here relies on a file system that compares and sets. Who may write is told by names:

- The head is the head file of the highest epoch, and of that the one with the highest number.
  A driver of an older epoch can only add files that no newer head names, so nobody reads them.
- A new driver first writes a claim, then looks again. An old one that was in the middle of a
  write looks after it, for a newer head or claim. Whichever looks last sees the other: either
  the new driver goes on from the old one's write, or the old one is refused. Where both look last,
  the new one withdraws its claim, and the old one waits for that.
- Two drivers of one epoch (two homes): the later of the two claims is refused, or both are.
- A data file counts once a head names it. The head has its checksum, so a file that is torn,
  lost or exchanged is found out.
- A file is removed only by a driver that has looked after its own head was in place, and only
  if it belongs to that head or an earlier one, and that head does not name it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from weakref import WeakValueDictionary

from waterspout._backoff import Backoff
from waterspout._connections import PerProcess
from waterspout.errors import DamagedStoreError, FencedError, ForeignStoreError, StoreError
from waterspout.state._head import Head, Writer
from waterspout.state.files._format import (
    DataFile,
    Manifest,
    Name,
    StateShape,
    decode_records,
    encode_records,
    writer_tag,
)
from waterspout.state.files._locations import Folder

__all__ = ["FileLog", "OvertakenError", "first_to_merge", "log_at"]

_READ_TRIES = 20
_SNAPSHOT_RECORDS = 250_000  # of one file
_LINE = 64  # ids of heads that a head remembers
_CLAIM_LOOKS = 12
_CLAIM_PAUSES = Backoff(0.002, 0.2)  # half a second in all
_NOBODY = writer_tag(None)
_LEAST_SNAPSHOT = 1 << 20  # bytes of deltas that are read faster than it is worth to save


class OvertakenError(Exception):
    """Raised when another process has added a head since this one looked: look again."""


def first_to_merge(sizes: list[int], every: int) -> int:
    """Return which files the next write replaces: those from this one on become one file.

    `sizes` are the bytes of the snapshot, of each delta, and of what is to be written. The last
    one alone is the common case; 0 means a new snapshot. A file is only merged with newer ones
    that are as large together, so each byte is written again once for every doubling, whatever
    the size of the state; and there are never more than `every` deltas.

    >>> first_to_merge([100, 30, 20, 5], 50), first_to_merge([100, 30, 1, 1, 1], 3)
    (3, 2)
    """
    newest = len(sizes) - 1
    if sum(sizes[1:]) > max(sizes[0], _LEAST_SNAPSHOT):
        return 0
    if newest <= every:
        return newest
    for i in range(newest):
        if sizes[i] <= sum(sizes[i + 1 :]):
            return i
    return max(newest - 1, 0)


class FileLog:
    """The records of one folder in this process's memory, and the head they belong to.

    Not for use without its `lock`. `records` is always what `_files` hold: texts of records by
    texts of keys. `removed` are keys that may be left without a value; None: nobody has looked.
    `mine` is the driver for whom this process moved the head last, `manifest` the
    head and its files as they were seen last.
    """

    def __init__(self, folder: Folder, title: str) -> None:
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self.records: dict[str, str] = {}
        self.removed: set[str] | None = None
        self.mine: Writer | None = None
        self._folder = folder
        self._title = title
        self._files: tuple[DataFile, ...] = ()
        self._name: Name | None = None
        self.manifest: Manifest | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the records are loaded, and are those of a driver in this process."""
        head = None if self.manifest is None else self.manifest.head
        return head is not None and head.stamp.writer == self.mine

    def look(self) -> Manifest | None:
        """Return the newest head and its list of files; None where nothing was written."""
        for _ in range(_READ_TRIES):
            newest = self._newest(self._names())
            if newest is None:
                self._name, self.manifest = None, None
                return None
            if newest != self._name:
                try:
                    raw = self._folder.read(str(newest))
                except FileNotFoundError:
                    continue  # replaced since it was listed
                manifest = Manifest.from_bytes(raw, where=self._where(newest))
                self._name, self.manifest = newest, manifest
            return self.manifest
        raise self._too_fast()

    def load(self) -> Manifest | None:
        """Bring the records up to the newest head; return it."""
        missing: tuple[Name | None, str] | None = None
        for _ in range(_READ_TRIES):
            manifest = self.look()
            try:
                self._read_files(() if manifest is None else manifest.files)
            except FileNotFoundError as error:
                if missing == (self._name, str(error)):
                    raise self._lost_file(error) from error
                # A driver may have replaced it since; then there is a newer head.
                missing = (self._name, str(error))
            else:
                return manifest
        raise self._too_fast()

    def check_files(self, manifest: Manifest) -> None:
        """Raise if a file is missing that the newest head names, without reading them all."""
        there = set(self._folder.names())
        if {file.name for file in manifest.files} - there:
            self.load()

    def _read_files(self, files: tuple[DataFile, ...]) -> None:
        if files[: len(self._files)] != self._files:
            self.records, self._files = {}, ()
        for file in files[len(self._files) :]:
            changes, removes = self._read_file(file)
            self._apply(changes, removes)
            self._files += (file,)

    def _read_file(self, file: DataFile) -> tuple[dict[str, str], bool]:
        raw = self._folder.read(file.name)
        return decode_records(raw, file, where=f"{self._title}: {file.name}")

    def _apply(self, changes: Mapping[str, str], removes: bool) -> None:
        if not self.records and not removes:
            self.records = dict(changes)
            return
        self.records.update(changes)
        if removes:
            for key, text in changes.items():
                if not text:
                    del self.records[key]

    def _names(self) -> list[Name]:
        """Return our files in the folder; raise if it is not ours, or has lost its head."""
        found = self._folder.names()
        names = [name for name in map(Name.parse, found) if name is not None]
        if any(name.what == "head" for name in names):
            return names
        if any(name.what == "data" for name in names):
            # A head is written before the first record and removed last: someone took it away.
            raise DamagedStoreError(
                f"{self._title}: there are records but no head. Restore the folder from a copy."
            )
        if len(names) != len(found):
            raise ForeignStoreError(
                f"{self._title}: the folder has files that waterspout did not make. Use another."
            )
        return names

    def _newest(self, names: list[Name]) -> Name | None:
        heads = sorted((n for n in names if n.what == "head"), key=lambda n: n.position)
        if len(heads) > 1 and heads[-1].position == heads[-2].position:
            raise DamagedStoreError(
                f"{self._title}: {heads[-1]} and {heads[-2]} are of two drivers that did not see "
                "each other; which of them counts is unknown. Restore the folder from a copy."
            )
        return heads[-1] if heads else None

    def publish(
        self, shape: StateShape, head: Head | None, changes: Mapping[str, str], every: int
    ) -> None:
        """Make this the head, with these changes, or raise. Nothing may come between `load` and it.

        Raises OvertakenError if another process was faster, FencedError if it may write no more.
        Any other error leaves open whether it was done; the next `load` finds out.
        """
        if self._name is None:
            self._create(shape)
        assert self._name is not None
        assert self.manifest is not None
        before = self.manifest
        writer = None if head is None else head.stamp.writer
        epoch = 0 if writer is None else writer.epoch
        name = Name("head", epoch, self._name.seq + 1, writer_tag(writer))
        if (self._name.epoch, self._name.tag) != (name.epoch, name.tag):
            self._announce(name)
        snapshot, deltas = self._write_changes(before, name, shape, head, changes, every)
        line = (secrets.token_hex(4), *before.line)[:_LINE]
        manifest = Manifest(shape, head, snapshot, deltas, line)
        # If this fails, only another look at the folder tells whether the head is there.
        self._name, self.manifest = None, None
        self._place(name, manifest)
        names = self._confirm(name, line[0])
        self._apply(changes, "" in changes.values())
        self._files = manifest.files
        if self._name is None:
            self._name, self.manifest = name, manifest
        self._sweep(names, name, manifest)

    def _create(self, shape: StateShape) -> None:
        # Written before any record, so that records without a head are known to have lost it.
        self._folder.create()
        name, manifest = Name("head", 0, 0, _NOBODY), Manifest(shape)
        self._place(name, manifest)
        self._name, self.manifest = name, manifest

    def _place(self, name: Name, manifest: Manifest) -> None:
        temporary = Name("temp", name.epoch, name.seq, secrets.token_hex(8))
        try:
            self._folder.write_whole(str(name), str(temporary), manifest.to_bytes())
        except (FileExistsError, FileNotFoundError) as error:
            # The name is taken; or the one who has it has already swept our temporary file.
            raise OvertakenError from error

    def _announce(self, head: Name) -> None:
        claim = Name("claim", head.epoch, head.seq, head.tag)
        with suppress(FileExistsError):  # of a try that failed
            self._folder.write(str(claim), [b"{}\n"])
        names = self._names()
        rivals = [
            name
            for name in names
            if name.what == "claim"
            and (name.epoch > head.epoch or (name.epoch == head.epoch and name.tag != head.tag))
        ]
        if rivals:
            self._folder.remove(str(claim))
            raise FencedError(
                f"{self._title}: a driver of epoch {head.epoch} was refused, because another one "
                f"is at work here (see {rivals[0]}). Stop one of the two."
            )
        if self._newest(names) != self._name:
            self._folder.remove(str(claim))
            raise OvertakenError

    def _confirm(self, mine: Name, identity: str) -> list[Name]:
        """Look again, now that the head is in place; return what is there."""
        names = self._look_past_claims(mine)
        for name in names:
            if name.what in ("head", "claim") and name.epoch > mine.epoch:
                raise self._refused(mine, f"a driver of epoch {name.epoch}")
        newest = self._newest(names)
        if newest != mine:
            # Another process writes for the same driver and is further on. If it went on from our
            # head, all is well; if not, its sweep had freed the name that we took.
            followed = self.look()
            if newest is not None and newest.seq - mine.seq >= _LINE:
                raise self._too_fast()
            if followed is None or identity not in followed.line:
                raise OvertakenError
        return names

    def _refused(self, mine: Name, by: str) -> FencedError:
        return FencedError(
            f"{self._title}: a write of epoch {mine.epoch} was refused; {by} has taken over. This "
            "one must not write any more."
        )

    def _look_past_claims(self, mine: Name) -> list[Name]:
        """Return what is there, once it is told what becomes of a newer driver's claim.

        Whoever claims looks for our head. If it was there, the claim is withdrawn; if not, a newer
        head comes, which then removes the claim, and ours: so ours must be there when the claim is
        gone, in a look that began after it was. A claim that stays is that of a driver that died,
        or is slow.
        """
        names = self._names()
        for failures in range(1, _CLAIM_LOOKS):
            newer = {name.what for name in names if name.epoch > mine.epoch}
            if "claim" not in newer or "head" in newer:
                break
            time.sleep(_CLAIM_PAUSES.pause_s(failures))
            names = self._names()
            if not any(name.what == "claim" and name.epoch > mine.epoch for name in names):
                names = self._names()
                heads = [name for name in names if name.what == "head"]
                if not any(n.epoch == mine.epoch and n.seq >= mine.seq for n in heads):
                    raise self._refused(mine, "a newer driver")
        return names

    def _sweep(self, names: list[Name], mine: Name, manifest: Manifest) -> None:
        """Remove what neither this head nor any later one can need."""
        keep = {file.name for file in manifest.files} | {str(mine)}
        for name in names:
            if name.position <= mine.position and str(name) not in keep:
                # The write is done even if one cannot be removed; the next write tries again.
                with suppress(OSError):
                    self._folder.remove(str(name))

    def _write_changes(
        self,
        before: Manifest,
        name: Name,
        shape: StateShape,
        head: Head | None,
        changes: Mapping[str, str],
        every: int,
    ) -> tuple[tuple[DataFile, ...], tuple[DataFile, ...]]:
        if not changes:
            return before.snapshot, before.deltas
        by = "no batch" if head is None else f"{head.stamp.writer.owner}, {head.stamp}"
        size = sum(map(len, changes)) + sum(map(len, changes.values())) + 2 * len(changes)
        sizes = [sum(file.size for file in before.snapshot)]
        sizes += [file.size for file in before.deltas] + [size]
        first = first_to_merge(sizes, every)
        if first == 0:
            whole = {k: text for k, text in {**self.records, **changes}.items() if text}
            items, files = iter(whole.items()), []
            while chunk := dict(islice(items, _SNAPSHOT_RECORDS)):
                files.append(self._write_file(name, shape, by, chunk))
            return tuple(files), ()
        merged = self._merged(before.deltas[first - 1 :])
        delta = self._write_file(name, shape, by, {**merged, **changes} if merged else changes)
        return before.snapshot, (*before.deltas[: first - 1], delta)

    def _merged(self, deltas: tuple[DataFile, ...]) -> dict[str, str]:
        merged: dict[str, str] = {}
        for file in deltas:
            try:
                merged |= self._read_file(file)[0]
            except FileNotFoundError as error:
                if self._newest(self._names()) != self._name:
                    raise OvertakenError from error
                raise self._lost_file(error) from error
        return merged

    def _write_file(
        self, head: Name, shape: StateShape, by: str, records: Mapping[str, str]
    ) -> DataFile:
        name = str(Name("data", head.epoch, head.seq, secrets.token_hex(8)))
        size, check, chunks = 0, "", encode_records(shape, by, records)

        def written() -> Iterator[bytes]:
            nonlocal size, check
            for chunk, check in chunks:  # noqa: B007  (the last one counts)
                size += len(chunk)
                yield chunk

        self._folder.write(name, written())
        return DataFile(name, size, check)

    def _where(self, name: Name) -> str:
        return f"{self._title}: {name}"

    def _lost_file(self, error: FileNotFoundError) -> DamagedStoreError:
        return DamagedStoreError(
            f"{self._title}: {self._name} names a file that is not there ({error}). "
            "Restore the folder from a copy."
        )

    def _too_fast(self) -> StoreError:
        return StoreError(f"{self._title}: the files change faster than they can be read")


class _Logs:
    """The logs of one process by folder, each for as long as a state uses it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: WeakValueDictionary[str, FileLog] = WeakValueDictionary()


_logs = PerProcess(_Logs)


def log_at(folder: Folder, title: str) -> FileLog:
    """Return this process's log of a folder: one for all its states, as long as one is open."""
    logs = _logs.get()
    with logs.lock:
        log = logs.open.get(folder.key)
        if log is None:
            log = logs.open[folder.key] = FileLog(folder, title)
        return log
