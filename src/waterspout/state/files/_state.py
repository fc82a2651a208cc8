"""States in files: the whole map in the driver's memory, every write in a file before it counts.

    FileState.opaque("/data/word-counts")
    FileState.opaque("s3://bucket/word-counts?region=eu-central-1")

For a state that fits in memory and has no database to go to. A batch costs what it changes: its
records go into one new file (a delta). Deltas are merged as they pile up, and the whole state is
written anew (a snapshot) once the deltas have outgrown the last one, so each record is written
a few times in its life, whatever the size of the state. A driver that starts reads the snapshot
and the deltas. The folder has no more than some `snapshot_every` files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from waterspout._addresses import Secrets, check_url, shown
from waterspout._serde import encode_key
from waterspout.errors import (
    ConfigError,
    FencedError,
    OutageError,
    StoreError,
)
from waterspout.state._base import FencedMap, Key, Keys, Records, StateKind
from waterspout.state._columns import Layout
from waterspout.state._head import Head, Stamp, check_stamp, goes_on, replaces_attempt
from waterspout.state._header import StoreHeader
from waterspout.state._kinds import OpaqueValue
from waterspout.state._local_paths import SentWithItsPath
from waterspout.state._records import RecordTexts, encode_record
from waterspout.state._store import StoreState
from waterspout.state.files._format import Manifest, StateShape
from waterspout.state.files._locations import (
    Folder,
    is_outage,
    local_path,
    location_of,
    open_folder,
    refuse_read_only,
)
from waterspout.state.files._log import FileLog, OvertakenError, log_at

__all__ = ["FileMap", "FileState"]

_CHUNK = 10_000
_WRITE_TRIES = 100

# The text of a record without a value, of any kind of state.
_EMPTY = re.compile(r"\[(?:(?P<txid>\d+),\d+,)?null[\],]")

Changes = Mapping[str, str]


class FileMap(FencedMap[Any]):
    """The records of one folder; all maps of a folder in a process share them in its memory."""

    def __init__(
        self,
        folder: Folder,
        kind: StateKind,
        layout: Layout | str,
        *,
        title: str = "the files",
        snapshot_every: int = 50,
        secrets: Secrets = Secrets(),  # noqa: B008  # it is frozen
    ) -> None:
        self._folder = folder
        self._kind = kind
        columns = layout if isinstance(layout, str) else layout.describe()
        self._shape = StateShape(kind.value, columns)
        self._title = title
        self._texts = RecordTexts(kind, title)
        self._header = StoreHeader(title, "folder", kind.value, columns)
        self._every = snapshot_every
        self._secrets = secrets
        self._log: FileLog | None = None

    @property
    def undoes_lost_attempts(self) -> bool:
        """True unless the records have no `prev` to go back to."""
        return self._kind is StateKind.OPAQUE

    def multi_get(self, keys: Keys) -> list[Any | None]:
        names = [encode_key(key) for key in keys]
        with self._opened() as log:
            self._load(log)
            texts = [log.records.get(name) for name in names]
        return [
            None if text is None else self._record(name, text)
            for name, text in zip(names, texts, strict=True)
        ]

    def multi_put(self, keys: Keys, values: Records) -> None:
        changes = self._changes(keys, values)
        self._write(lambda log, head: (head, changes), amends=True)

    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Records, read: Records | None = None
    ) -> None:
        changes = self._changes(keys, values)

        def write(log: FileLog, head: Head | None) -> tuple[Head | None, Changes]:
            check_stamp(head, stamp, state=self._title)
            return head, changes

        self._write(write)

    def multi_compare_and_put(self, keys: Keys, read: Records, values: Records) -> list[bool]:
        changes = self._changes(keys, values)
        expected = self._texts.expected(read)
        same: list[bool] = []

        def write(log: FileLog, head: Head | None) -> tuple[Head | None, Changes]:
            pairs = zip(changes, expected, strict=True)
            same[:] = [log.records.get(name) == text for name, text in pairs]
            chosen = zip(changes.items(), same, strict=True)
            return head, {name: text for (name, text), ok in chosen if ok}

        self._write(write, amends=True)
        return same

    def read_head(self) -> Head | None:
        with self._opened() as log:
            manifest = self._own(log.look())
            return None if manifest is None else manifest.head

    def move_head(self, expected: Head | None, new: Head) -> None:
        def write(log: FileLog, head: Head | None) -> tuple[Head | None, Changes]:
            if head != expected:
                raise self._header.moved(new, head)
            changes: Changes = {}
            if self.undoes_lost_attempts and replaces_attempt(expected, new):
                changes = self._undo(log.records, new.stamp.txid)
            elif goes_on(expected, new):
                # Those that were removed in this process; all others when a driver starts.
                changes = self._sweep(log, new)
            return new, changes

        self._write(write, moves=True)

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, Any]]]:
        """Yield all keys and records; to which shard a key belongs never changes."""
        with self._opened() as log:
            self._load(log)
            pairs = list(log.records.items())
        if shards > 1:
            pairs = [pair for pair in pairs if crc32(pair[0].encode("ascii")) % shards == shard]
        for start in range(0, len(pairs), _CHUNK):
            chunk = pairs[start : start + _CHUNK]
            yield [(self._texts.key(name), self._record(name, text)) for name, text in chunk]

    def check(self) -> None:
        with self._opened() as log:
            manifest = self._own(log.look())
            if manifest is not None:
                log.check_files(manifest)

    def close(self) -> None:
        """Let the records go if no other map of the folder is open; the next call reads them."""
        self._log = None

    def _changes(self, keys: Keys, values: Records) -> dict[str, str]:
        return dict(zip(map(encode_key, keys), self._texts.encode(values), strict=True))

    def _undo(self, records: Changes, txid: int) -> dict[str, str]:
        """Return what takes back all records of a batch; also those amended since."""
        begin, changes = f"[{txid},", {}
        for name in [name for name, text in records.items() if text.startswith(begin)]:
            record = self._record(name, records[name])
            old = OpaqueValue(0, 0, record.prev)
            changes[name] = "" if record.prev is None else encode_record(self._kind, old)
        return changes

    def _sweep(self, log: FileLog, head: Head) -> Changes:
        """Return what lets go of records without a value that no later attempt can want back."""
        if log.removed is None:
            log.removed = {name for name, text in log.records.items() if _EMPTY.match(text)}
        found = {name: _EMPTY.match(log.records.get(name, "")) for name in log.removed}
        txid = head.stamp.txid
        gone = {name for name, old in found.items() if old and int(old["txid"] or 0) < txid}
        # A witness was removed outside of any batch, and will be asked for.
        gone -= {key for _, key in head.witnesses}
        log.removed = {name for name, old in found.items() if old and name not in gone}
        return dict.fromkeys(gone, "")

    def _record(self, name: str, text: str) -> Any:
        if self._kind is StateKind.OPAQUE:
            try:
                # Most records by far: four whole numbers, or three and no value before.
                txid, attempt, value, prev = text[1:-1].split(",")
                before = None if prev == "null" else int(prev)
                return OpaqueValue(int(txid), int(attempt), int(value), before)
            except ValueError:
                pass
        return self._texts.decode(name, text)

    def _load(self, log: FileLog) -> Manifest | None:
        if not self._folder.exclusive and log.is_mine:
            # Only this process writes there, and a stale one is refused when it does.
            return self._own(log.manifest)
        return self._own(log.load())

    def _own(self, manifest: Manifest | None) -> Manifest | None:
        if manifest is not None:
            self._header.refuse_other(manifest.shape.kind, manifest.shape.layout)
        return manifest

    def _write(
        self,
        write: Callable[[FileLog, Head | None], tuple[Head | None, Changes]],
        *,
        moves: bool = False,
        amends: bool = False,
    ) -> None:
        """Publish what `write` makes of the newest head; again if another process was faster."""
        with self._opened() as log:
            for _ in range(_WRITE_TRIES):
                manifest = self._own(log.load())
                head = None if manifest is None else manifest.head
                new, changes = write(log, head)
                if log.removed is not None:
                    log.removed |= {name for name, text in changes.items() if _EMPTY.match(text)}
                if not moves and not changes:
                    return
                if amends and head is not None and not (self._folder.exclusive or log.is_mine):
                    raise FencedError(
                        f"{self._title}: {head.stamp.writer.owner!r} writes here from another "
                        "process, and this file system cannot put two of them in order. Write "
                        "outside of batches from the driver's process."
                    )
                try:
                    log.publish(self._shape, new, changes, self._every)
                except OvertakenError:
                    continue
                if moves and new is not None:
                    log.mine = new.stamp.writer
                return
        raise StoreError(f"{self._title} change faster than they can be written")

    @contextmanager
    def _opened(self) -> Iterator[FileLog]:
        """Give out the log of the folder, locked; turn errors of the file system into ours."""
        if self._log is None or self._log.pid != os.getpid():
            self._log = log_at(self._folder, self._title)
        log = self._log
        with log.lock:
            try:
                yield log
            except OSError as error:
                secrets = self._secrets
                text = (
                    f"{self._title} cannot be used: {secrets.hidden(str(error))}. What was being "
                    "written counts as a whole or not at all; once the cause is gone, run it again."
                )
                found = OutageError("files", text) if is_outage(error) else StoreError(text)
                raise found from secrets.cause(error)


@dataclass(frozen=True)
class FileState(SentWithItsPath, StoreState):
    """Recipe of a state in the driver's memory, kept in a folder of files.

    `path` is a local path or any URI that pyarrow knows: `file:///...`, `hdfs://...`,
    `s3://bucket/folder?region=...`; `${NAME}` in it is taken from the environment.
    `snapshot_every` is how many deltas may pile up before they are merged; more are fewer bytes
    written and more files read when a driver starts. `cache` is of no use: the state is in
    memory anyway.
    """

    path: str | Path = field(repr=False)
    snapshot_every: int = 50

    backend = "files"
    fenced = True
    driver_only = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "path", str(self.path))
        every = self.snapshot_every
        if not isinstance(every, int) or isinstance(every, bool) or not 1 <= every <= 10_000:
            raise ConfigError(f"snapshot_every is a number of deltas (1 to 10,000), not {every!r}")
        if not self.path:
            raise ConfigError("a file state needs the path of its folder")
        if local_path(str(self.path)) is None:
            check_url(str(self.path), "URI of a file state")

    @property
    def title(self) -> str:
        path = str(self.path)
        return f"the files in {path if local_path(path) else shown(path)}"

    def backing(self) -> FileMap:
        return FileMap(
            open_folder(str(self.path)),
            self.kind,
            self.columns,
            title=self.title,
            snapshot_every=self.snapshot_every,
            secrets=Secrets() if local_path(str(self.path)) else Secrets.of(str(self.path)),
        )

    def check(self) -> None:
        path = local_path(str(self.path))
        if path is not None:
            refuse_read_only(path)
        super().check()

    def location(self) -> str:
        return location_of("files", str(self.path))
