"""Files of a directory or glob, new ones as they come: text, JSON, CSV, Parquet, ORC."""

from __future__ import annotations

import glob
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from waterspout._schema import FieldNames, Schema
from waterspout.errors import SourceError, TopologyError
from waterspout.spouts._base import BatchPlanner, BatchSpout, RunsIn, SpoutContext, SpoutKind
from waterspout.spouts._reads import FilesRead, Read

__all__ = ["FileSpout"]

_FORMATS = ("text", "json", "csv", "parquet", "orc")
_REST_PER_LISTING = 10  # listing takes at most a tenth of the time


class FileSpout(BatchSpout):
    """Emit the rows of every file below a directory (or matching a glob), once each.

    A batch is a list of files: those that came first, up to `max_files` of them and up to
    `max_bytes` and `max_rows` in all, at least one. Transactional: the list is stored with
    sizes and times, and a file that changed afterwards is an error, not other data. Files
    must be complete when they appear: write them elsewhere, then move them. Files and folders
    whose names start with `_` or `.`, and unfinished copies (`._COPYING_`), are left alone, as
    Spark's readers do.

    Text has one field, `value`; the other formats need a `schema` (DDL), except Parquet,
    whose files bring theirs.
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
        max_files: int = 1000,
        max_bytes: int = 64_000_000,
        max_rows: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        _refuse_bad_arguments(format, max_files, max_bytes, max_rows)
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
        self.max_files = max_files
        self.max_bytes = max_bytes
        self.max_rows = max_rows
        self._schema = given.require_types(where="FileSpout")
        self._options = dict(options or {})

    @property
    def schema(self) -> Schema:
        return self._schema

    def open(self, context: SpoutContext) -> BatchPlanner:
        return _FilePlanner(self, context)

    def read(self, metadata: Any) -> Read:
        """Describe the files of a batch; refuse one that is not what it was when planned."""
        paths, size = [], 0
        for name, size_bytes, time_ns in metadata["files"]:
            try:
                now = os.stat(name)
            except OSError as error:
                raise SourceError(
                    f"{name} belongs to a batch that is not finished, but cannot be read: "
                    f"{error.strerror}. Put it back."
                ) from error
            if (now.st_size, now.st_mtime_ns) != (size_bytes, time_ns):
                raise SourceError(
                    f"{name} was changed after it was put into a batch ({size_bytes} bytes then, "
                    f"{now.st_size} now). Put the old file back; new rows go into new files."
                )
            if size_bytes:  # no rows are in an empty file, whatever its format
                paths.append(name)
                size += size_bytes
        return FilesRead(self.schema, self.format, tuple(paths), size, self._options)

    def so_far(self, metadata: Any, folder: Path | None, spout_id: str) -> Any | None:
        """Return every file of a committed batch that is still there."""
        if folder is None or not (folder / f"files-{spout_id}.db").exists():
            return None
        with closing(_SeenFiles(folder, spout_id)) as seen:
            names = {*seen.all(), *(name for name, _, _ in metadata["files"])}
        gone = sorted(name for name in names if not os.path.exists(name))
        if gone:
            raise SourceError(
                f"{len(gone)} of the {len(names)} files that were read are gone, such as "
                f"{gone[0]}; without them nothing can be counted again. Put them back."
            )
        stats = [(name, os.stat(name)) for name in sorted(names)]
        return {"files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}

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
        with closing(_SeenFiles(folder, spout_id)) as seen:
            for txid in sorted(set(files.values())):
                seen.add(txid, [name for name, batch in files.items() if batch == txid])
        newest = max(files.values(), default=0)
        last = [name for name, txid in files.items() if txid == newest]
        stats = [(name, os.stat(name)) for name in last]
        return {"files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}

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
        if _is_glob(self.path):
            names = _visible(self.path, glob.glob(self.path, recursive=True))
        elif os.path.isdir(self.path):
            names = _below(self.path)
        else:
            names = [self.path]
        found = []
        for name in names:
            try:
                stat = os.stat(name)
            except FileNotFoundError:
                continue
            if os.path.isfile(name):
                found.append((stat.st_mtime_ns, os.path.abspath(name), stat.st_size))
        return sorted(found)


class _FilePlanner(BatchPlanner):
    def __init__(self, spout: FileSpout, context: SpoutContext) -> None:
        self._spout = spout
        self._seen = _SeenFiles(context.folder, context.spout_id)
        self._seen.forget_from(context.current)
        for txid, metadata in context.known.items():
            if txid < context.current:
                self._seen.add(txid, [name for name, _, _ in metadata["files"]])
        self._assigned = {f[0] for meta in context.known.values() for f in meta["files"]}
        self._waiting: list[tuple[int, str, int]] = []
        self._list_at = 0.0

    def is_ready(self, previous: Any) -> bool:
        if not self._waiting and time.monotonic() >= self._list_at:
            began = time.monotonic()
            self._list()
            took = time.monotonic() - began
            self._list_at = time.monotonic() + _REST_PER_LISTING * took
        return bool(self._waiting)

    def plan(self, txid: int, previous: Any) -> Any:
        spout, size, rows, looked_at = self._spout, 0, 0, 0
        files: list[list[Any]] = []
        for _, name, _ in self._waiting:
            if len(files) == spout.max_files:
                break
            try:
                now = os.stat(name)  # it may have grown since it was listed
            except FileNotFoundError:
                looked_at += 1  # or gone; no batch holds it yet
                continue
            count = _count_rows(name, spout.format) if spout.max_rows is not None else 0
            too_many = spout.max_rows is not None and rows + count > spout.max_rows
            if files and (size + now.st_size > spout.max_bytes or too_many):
                break
            looked_at += 1
            files.append([name, now.st_size, now.st_mtime_ns])
            size += now.st_size
            rows += count
        # Only now, so that an error above leaves no file out.
        del self._waiting[:looked_at]
        self._assigned.update(name for name, _, _ in files)
        return {"files": files}

    def holds_data(self, metadata: Any) -> bool | None:
        return bool(metadata["files"])

    def succeeded(self, txid: int, metadata: Any) -> None:
        names = [name for name, _, _ in metadata["files"]]
        self._seen.add(txid, names)
        self._assigned.difference_update(names)

    def close(self) -> None:
        self._seen.close()

    def _list(self) -> None:
        found = [f for f in self._spout.find() if f[1] not in self._assigned]
        old = self._seen.among([name for _, name, _ in found])
        self._waiting = [f for f in found if f[1] not in old]


class _SeenFiles:
    """The files of committed batches, in a small database of the spout's own."""

    def __init__(self, folder: Path | None, spout_id: str) -> None:
        path = ":memory:" if folder is None else str(folder / f"files-{spout_id}.db")
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        if folder is not None:
            os.chmod(path, 0o600)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS seen (path TEXT PRIMARY KEY, txid INTEGER NOT NULL)"
            " STRICT, WITHOUT ROWID"
        )

    def add(self, txid: int, names: list[str]) -> None:
        if not names:
            return
        self._db.execute("BEGIN IMMEDIATE")
        rows = ((name, txid) for name in names)
        self._db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", rows)
        self._db.execute("COMMIT")

    def forget_from(self, txid: int) -> None:
        """Forget the files of batches that were rolled back."""
        self._db.execute("DELETE FROM seen WHERE txid >= ?", (txid,))

    def all(self) -> list[str]:
        return [name for (name,) in self._db.execute("SELECT path FROM seen")]

    def among(self, names: list[str]) -> set[str]:
        ask = "SELECT 1 FROM seen WHERE path = ?"
        return {name for name in names if self._db.execute(ask, (name,)).fetchone()}

    def close(self) -> None:
        self._db.close()


def _refuse_bad_arguments(
    format: str, max_files: int, max_bytes: int, max_rows: int | None
) -> None:
    if format not in _FORMATS:
        raise TopologyError(f"FileSpout cannot read {format!r}; it reads {', '.join(_FORMATS)}")
    if max_files < 1 or max_bytes < 1 or (max_rows is not None and max_rows < 1):
        raise TopologyError("FileSpout: max_files, max_bytes and max_rows must be at least 1")


def _is_glob(path: str) -> bool:
    return any(char in path for char in "*?[")


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith("._COPYING_")


def _below(directory: str) -> list[str]:
    names = []
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        names += [os.path.join(folder, name) for name in files if not _is_hidden(name)]
    return names


def _visible(pattern: str, names: list[str]) -> list[str]:
    """Leave out what is hidden, or below something hidden that the pattern does not spell out."""
    spelled = set(Path(pattern).parts)
    return [n for n in names if not any(_is_hidden(p) for p in set(Path(n).parts) - spelled)]


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
