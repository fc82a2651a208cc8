"""Files of a directory or glob, new ones as they come: text, JSON, CSV, Parquet, ORC."""

from __future__ import annotations

import glob
import logging
import os
import stat
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout._schema import FieldNames, Schema
from waterspout.errors import ConfigError, DamagedStoreError, SourceError, TopologyError
from waterspout.spouts._base import (
    BatchPlanner,
    BatchSpout,
    Piece,
    RunsIn,
    SpoutContext,
    SpoutKind,
)
from waterspout.spouts._malformed import OnMalformed, TooLong, chosen, records_too_long
from waterspout.spouts._pinned import (
    left_out,
    names_of,
    pin,
    pinned,
    refuse_changed,
    repinned,
)
from waterspout.spouts._read_files import ReadFiles, ReadInMemory, StoredRead, Tally
from waterspout.spouts._reads import FilesRead, Read

__all__ = ["FileSpout"]

log = logging.getLogger(__name__)

_OF_RECORDS = ("text", "json", "csv")
_FORMATS = (*_OF_RECORDS, "parquet", "orc")
_NAMES_AT_ONCE = 1000
_REST_PER_LISTING = 10  # listing takes at most a tenth of the time
_REST_PER_LOOK = 100  # and what is only for the lag a hundredth
_LOOK_S = 1.0
_OWN_FILES, _OWN_BYTES = 1000, 64_000_000  # of a batch, where nobody has said anything else
_MOST_FILES = 5_000  # whatever is asked for: their names are stored with the batch


class FileSpout(BatchSpout):
    """Emit the rows of every file below a directory (or matching a glob), once each.

    A batch is a list of files: those that came first, up to `max_files` of them and up to
    `max_bytes` and `max_rows` in all, at least one. With none of these said, the first batch has up
    to 64 MB, and the sizes of the others follow from how long batches take
    (`batch_interval_millis`). Transactional: the list is stored with
    sizes, times and digests, and a file that changed afterwards is an error, not other data; one
    of which only the time is another is still the same. Files must be complete when they appear:
    write them elsewhere, then move them. Files and folders whose names start with `_` or `.`, and
    unfinished copies (`._COPYING_`), are left alone, as Spark's readers do.

    Text has one field, `value`; the other formats need a `schema` (DDL), except Parquet,
    whose files bring theirs.

    A record of JSON or CSV that does not fit the schema, and a record of more than
    `max_record_bytes`, fails the batch, with file, line and text; with
    `on_error="dead_letter"`, or `Config(on_error="dead_letter")`, it is put aside instead. With
    `on_error="null"` there are nulls for what cannot be read.
    """

    read_in = RunsIn.JVM
    needs_folder = True
    kind = SpoutKind.TRANSACTIONAL

    def __init__(
        self,
        path: str | Path,
        format: str = "text",
        schema: FieldNames | Schema | None = None,
        *,
        max_files: int | None = None,
        max_bytes: int | None = None,
        max_rows: int | None = None,
        max_record_bytes: int = 16_000_000,
        on_error: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        _refuse_bad_arguments(format, (max_files, max_bytes, max_rows), max_record_bytes)
        given = None if schema is None else Schema.parse(schema)
        if format == "text":
            given = Schema((("value", "string"),))
        elif given is None and format == "parquet":
            given = _parquet_schema(str(path))
        elif given is None:
            raise TopologyError(
                f'FileSpout of format {format} needs a schema, for example schema="id bigint"'
            )
        self.path = str(path)
        self.format = format
        self.is_sized = max_files is None and max_bytes is None and max_rows is None
        """Whether a batch may be as large as it is asked for: nobody has said how large."""
        self.max_files = max_files or _OWN_FILES
        self.max_bytes = max_bytes or _OWN_BYTES
        self.max_rows = max_rows
        self._schema = given.require_types(where="FileSpout")
        self._options = dict(options or {})
        self.max_record_bytes = max_record_bytes
        self._on_malformed = chosen(format, self._schema, on_error, self._options)

    @property
    def schema(self) -> Schema:
        return self._schema

    def open(self, context: SpoutContext) -> BatchPlanner:
        return _FilePlanner(self, context)

    def read(self, metadata: Any) -> Read:
        """Describe the files of a batch; refuse one that is not what it was when planned."""
        for look in refuse_changed(metadata, self.path):
            log.warning("%s goes on as it is: %s", look.pinned.name, look.text)
        full = [(f.name, f.size) for f in pinned(metadata) if f.size]  # others hold no rows
        paths, size = tuple(name for name, _ in full), sum(size for _, size in full)
        found: list[TooLong] = []
        for name, bytes_in_it in full if self.format in _OF_RECORDS else ():
            found += records_too_long(name, bytes_in_it, self.max_record_bytes, self._options)
        return FilesRead(
            self.schema,
            self.format,
            paths,
            size,
            self._options,
            self._on_malformed,
            found,
            self.max_record_bytes,
        )

    def read_nothing(self) -> Read:
        return self.read({"files": []})

    def pieces(self, metadata: Any) -> list[Piece]:
        """Return the files of a batch, and how each differs from what was planned."""
        looks = [file.look() for file in pinned(metadata)]
        there = [Piece(k.pinned.name, k.text if k.difference else None) for k in looks]
        return there + [Piece(name, None, left_out=True) for name in left_out(metadata)]

    def leave_out(self, metadata: Any, names: Sequence[str]) -> Any:
        """Count some files of a batch as read without reading them."""
        kept = [file for file in pinned(metadata) if file.name not in names]
        if len(kept) == len(metadata["files"]):
            return metadata
        out = sorted({*names_of(metadata)} - {file.name for file in kept})
        return {**metadata, **repinned(kept), "left_out": out}

    def accept(self, metadata: Any) -> Any:
        """Take every file of a batch as it is now; one that is gone cannot be."""
        looks = [file.look() for file in pinned(metadata)]
        for look in looks:
            if look.size is None:
                raise ConfigError(
                    f"{look.pinned.name} {look.text}: it cannot be accepted. Put it back, or leave "
                    f"it out: skip --file {look.pinned.name}"
                )
        names = [look.pinned.name for look in looks]
        return {**metadata, **pin([(name, os.stat(name)) for name in names])}

    def on_malformed(self, conf: Config) -> OnMalformed | None:
        if self.format not in _OF_RECORDS:
            return None
        return self._on_malformed or OnMalformed(conf.on_error)

    def so_far(self, metadata: Any, folder: Path | None, spout_id: str) -> Any | None:
        """Return every file of a committed batch that is still there."""
        return self.so_far_without(metadata, folder, spout_id, (), ())

    def so_far_without(
        self,
        metadata: Any,
        folder: Path | None,
        spout_id: str,
        skipped: Collection[int],
        left_out: Collection[str],
    ) -> Any | None:
        """Return the files of all committed batches but some; those may be gone."""
        if folder is None:
            return None
        last, wanted = names_of(metadata), Tally.of(metadata)
        until = None if wanted is None else metadata["read"]["txid"]
        with closing(StoredRead(folder, spout_id)) as listed:
            if wanted is None and not listed.exists:
                return None
            names = {*listed.names(sys.maxsize if until is None else until), *last}
            if wanted is not None and Tally().plus(names) != wanted:
                raise _not_the_list(listed, Tally().plus(names), wanted, self.path)
            unread = {*listed.of_batches(skipped), *left_out}
        unread.update(last if until in skipped else ())
        names -= unread
        gone = sorted(name for name in names if not os.path.exists(name))
        if gone:
            raise SourceError(
                f"{len(gone)} of the {len(names)} files that were read are gone, such as "
                f"{gone[0]}; without them nothing can be counted again. Put them back."
            )
        return {"files": [_as_it_is(name) for name in sorted(names)]}  # once: needs no digests

    def adopt(self, folder: Path, spout_id: str, files: Mapping[str, int]) -> Any:
        """Take these files (and the batch of each) as read; return the last batch's metadata.

        For a topology that goes on where something else has stopped.
        """
        there = {name for _, name, _ in self.find()}
        outside = [name for name in files if name not in there]
        if outside:
            raise SourceError(
                f"FileSpout of {self.path} does not find {outside[0]} (and {len(outside) - 1} "
                "more), which were read. Give the spout the path that was read, and leave the "
                "files of the past where they are for now."
            )
        newest = max(files.values(), default=0)
        with closing(StoredRead(folder, spout_id)) as listed:
            listed.put(files, forget_from=0)
        return {
            "files": [_as_it_is(name) for name, txid in files.items() if txid == newest],
            "read": Tally().plus(files).to_json(newest),
        }

    def identity(self) -> Mapping[str, Any]:
        """Path, format and fields: under another path, every file would count as new."""
        return {
            "spout": "FileSpout",
            "kind": self.kind.value,
            "path": os.path.abspath(self.path),
            "format": self.format,
            "fields": str(self.schema),
        }

    def check(self) -> None:
        """See that the directory is there; an empty one is fine, files may come."""
        if not _is_glob(self.path) and not os.path.exists(self.path):
            raise SourceError(f"FileSpout: {self.path} is not there; create the directory first")
        if os.path.isdir(self.path) and not os.access(self.path, os.R_OK | os.X_OK):
            raise SourceError(f"FileSpout: the directory {self.path} cannot be listed")

    def find(self) -> list[tuple[int, str, int]]:
        """Return (time, name, size) of every file there is now, oldest first."""
        return _oldest_first(self.names())

    def names(self) -> Iterator[str]:
        """Yield the name of everything there is now that may be a file, in any order."""
        if _is_glob(self.path):
            found = glob.iglob(self.path, recursive=True)
            return map(os.path.abspath, _visible(self.path, found))
        path = os.path.abspath(self.path)
        return _below(path) if os.path.isdir(path) else iter([path])


def _oldest_first(names: Iterable[str]) -> list[tuple[int, str, int]]:
    """Return (time, name, size) of those that are files, oldest first."""
    found = []
    for name in names:
        try:
            now = os.stat(name)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(now.st_mode):
            found.append((now.st_mtime_ns, name, now.st_size))
    return sorted(found)


class _FilePlanner(BatchPlanner):
    unit = "bytes"

    def __init__(self, spout: FileSpout, context: SpoutContext) -> None:
        self._spout = spout
        self._listed: ReadFiles = (
            ReadInMemory(context.kept, context.spout_id)
            if context.folder is None
            else StoredRead(context.folder, context.spout_id)
        )
        self._current = context.current
        self._committed = self._open_list(context)
        """The tally of the files of all batches before the current one."""
        self._listed.changed_outside()
        self._planned: dict[int, Any] = {}
        self._assigned = _in_flight(context)
        self._taken = self._committed.plus(self._assigned)
        """The tally of the files of all batches, those in flight included."""
        self._waiting: list[tuple[int, str, int]] = []
        self._waiting_bytes = 0
        self._list_at = self._look_at = 0.0

    def _open_list(self, context: SpoutContext) -> Tally:
        """See that the list is the one that goes with the ledger, and bring it up to date."""
        listed, current = self._listed, context.current
        last = context.known.get(current - 1)
        wanted = Tally() if current <= context.since else Tally.of(last)
        if wanted is None and current > 2 and not listed.exists:
            raise DamagedStoreError(
                f"{listed.where} is gone, the list of the files that were read. Without it they "
                "would be counted again. Put it back, or the whole folder, as it was when the "
                "topology was stopped."
            )
        # The last batch may have been marked when the driver died, and the list not told.
        names = [] if last is None else names_of(last)
        held = listed.among(names)
        found = listed.tally(current).plus(name for name in names if name not in held)
        files, since = dict.fromkeys(names, current - 1), current
        if wanted is not None and found != wanted:
            files = {**self._made_anew(found, wanted, _in_flight(context), current - 2), **files}
            found, since = wanted, 0
        listed.put(files, forget_from=since)
        return found

    def _made_anew(
        self, found: Tally, wanted: Tally, in_flight: set[str], txid: int
    ) -> dict[str, int]:
        """Return the list as it must have been, if the files that are there prove it."""
        there = (name for _, name, _ in self._spout.find() if name not in in_flight)
        # Those that came first were read first; whether they are the ones, the digest tells.
        oldest = list(islice(there, wanted.files))
        if Tally().plus(oldest) != wanted:
            raise _not_the_list(self._listed, found, wanted, self._spout.path)
        log.warning(
            "%s did not go with the ledger and was made anew: %d files were read, and the digest "
            "shows that they are the oldest ones in %s",
            self._listed.where,
            wanted.files,
            self._spout.path,
        )
        return dict.fromkeys(oldest, txid)

    def is_ready(self, previous: Any) -> bool:
        if not self._waiting and time.monotonic() >= self._list_at:
            self._list()
        return bool(self._waiting)

    def lag(self, previous: Any) -> Mapping[str, int]:
        """Count the files that wait: those that have come since the last look as well."""
        if time.monotonic() >= self._look_at:
            self._list()
        return {"files": len(self._waiting), "bytes": self._waiting_bytes}

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        # Again for one that was not stored, because another spout of the topology failed.
        if txid not in self._planned:
            files = self._take_files(target if self._spout.is_sized else None)
            names = [name for name, _ in files]
            self._assigned.update(names)
            self._taken = self._taken.plus(names)
            self._planned[txid] = {**pin(files), "read": self._taken.to_json(txid)}
        return self._planned[txid]

    def size_of(self, metadata: Any) -> int | None:
        return sum(f.size for f in pinned(metadata)) if self._spout.is_sized else None

    def _take_files(self, target: int | None) -> list[tuple[str, os.stat_result]]:
        """Take the files of the next batch from those that wait."""
        spout, size, rows, looked_at = self._spout, 0, 0, 0
        most = spout.max_files if target is None else _MOST_FILES
        files: list[tuple[str, os.stat_result]] = []
        for _, name, _ in self._waiting:
            if len(files) == most:
                break
            _refuse_unspeakable(name)
            try:
                now = os.stat(name)  # it may have grown since it was listed
            except FileNotFoundError:
                looked_at += 1  # or gone; no batch holds it yet
                continue
            count = _count_rows(name, spout.format) if spout.max_rows is not None else 0
            too_many = spout.max_rows is not None and rows + count > spout.max_rows
            # A wish is met as nearly as files allow, a limit is kept.
            beyond = (
                size + now.st_size > spout.max_bytes
                if target is None
                else size + now.st_size / 2 > target
            )
            if files and (beyond or too_many):
                break
            looked_at += 1
            files.append((name, now))
            size += now.st_size
            rows += count
        # Only now, so that an error above leaves no file out.
        self._waiting_bytes -= sum(size for _, _, size in self._waiting[:looked_at])
        del self._waiting[:looked_at]
        return files

    def holds_data(self, metadata: Any) -> bool | None:
        return bool(metadata["files"])

    def confirm(self, metadata: Any) -> None:
        """Refuse a file that has changed while it was read."""
        for _ in refuse_changed(metadata, self._spout.path):
            pass  # the same content, told when it was read

    def succeeded(self, txid: int, metadata: Any) -> None:
        if txid < self._current:
            return  # told before
        names = names_of(metadata)
        self._listed.put(dict.fromkeys(names, txid))
        self._current = txid + 1
        self._committed = self._committed.plus(names)
        self._assigned.difference_update(names)
        self._planned.pop(txid, None)

    def close(self) -> None:
        self._listed.close()

    def _list(self) -> None:
        began = time.monotonic()
        self._find_new()
        now = time.monotonic()
        self._list_at = now + _REST_PER_LISTING * (now - began)
        self._look_at = now + max(_LOOK_S, _REST_PER_LOOK * (now - began))

    def _find_new(self) -> None:
        listed, names, new = self._listed, self._spout.names(), []
        if listed.changed_outside() and listed.tally(self._current) != self._committed:
            found = listed.tally(self._current)
            raise _not_the_list(listed, found, self._committed, self._spout.path)
        while some := list(islice(names, _NAMES_AT_ONCE)):
            fresh = [name for name in some if name not in self._assigned]
            read = listed.among(fresh)
            new += [name for name in fresh if name not in read]
        self._waiting = _oldest_first(new)
        self._waiting_bytes = sum(size for _, _, size in self._waiting)


def _refuse_unspeakable(name: str) -> None:
    """Refuse a file whose name is no text: neither the list nor Spark could name it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(
            f"the name of {os.fsencode(name)!r} is not UTF-8, so it cannot be kept that the file "
            "was read. Rename the file; the run goes on then."
        ) from None


def _as_it_is(name: str) -> list[Any]:
    now = os.stat(name)
    return [name, now.st_size, now.st_mtime_ns]


def _in_flight(context: SpoutContext) -> set[str]:
    """Return the files of the batches that were planned and have not committed."""
    known = context.known.items()
    return {name for txid, batch in known if txid >= context.current for name in names_of(batch)}


def _not_the_list(listed: ReadFiles, found: Tally, wanted: Tally, source: str) -> DamagedStoreError:
    others = "others" if found.files == wanted.files else f"{found.files}"
    return DamagedStoreError(
        f"{listed.where} is not the list that goes with the ledger: {wanted.files} files were "
        f"read, and it names {others}. With it, files would be counted twice or never. Put back "
        "the list, or the whole folder, as it was when the topology was stopped. If there is no "
        f"copy, see that {source} holds just the files that were read (put back what is gone, move "
        "what came later elsewhere), remove the list and start again: then it is made anew."
    )


def _refuse_bad_arguments(format: str, most: tuple[int | None, ...], max_record_bytes: int) -> None:
    if format not in _FORMATS:
        raise TopologyError(f"FileSpout cannot read {format!r}; it reads {', '.join(_FORMATS)}")
    if any(limit is not None and limit < 1 for limit in most):
        raise TopologyError("FileSpout: max_files, max_bytes and max_rows must be at least 1")
    if max_record_bytes < 1:
        raise TopologyError("FileSpout: max_record_bytes must be at least 1")


def _is_glob(path: str) -> bool:
    return any(char in path for char in "*?[")


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith("._COPYING_")


def _below(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    continue
                if not entry.is_dir():
                    yield entry.path
                elif not entry.is_symlink():
                    yield from _below(entry.path)
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise SourceError(f"FileSpout: the directory {directory} cannot be listed") from error


def _visible(pattern: str, names: Iterable[str]) -> Iterator[str]:
    """Leave out what is hidden, or below something hidden that the pattern does not spell out."""
    spelled = set(Path(pattern).parts)
    return (n for n in names if not any(_is_hidden(p) for p in set(Path(n).parts) - spelled))


def _count_rows(name: str, format: str) -> int:
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            return int(pq.read_metadata(name).num_rows)
        if format == "orc":
            from pyarrow import orc

            return int(orc.ORCFile(name).nrows)
    except (ValueError, OSError) as error:  # what Arrow raises for a file that is none
        raise SourceError(f"{name} cannot be read as {format}: {error}") from error
    lines, last = 0, b"\n"
    with open(name, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")


def _parquet_schema(path: str) -> Schema:
    import pyarrow.parquet as pq

    from waterspout._arrow import ddl_of

    found = FileSpout(path, "text").find()
    if not found:
        raise TopologyError(
            f"FileSpout: there is no Parquet file at {path} to take the schema from; "
            'put one there, or give schema="..."'
        )
    return ddl_of(pq.read_schema(found[0][1]))
