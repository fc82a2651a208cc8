"""Where the files of a spout are, as the driver sees them: here, or wherever pyarrow reaches.

A file has one name everywhere: what Spark is told to read, what the list of read files holds and
what errors say. On this machine it is its absolute path, elsewhere a URL without secrets.
"""

from __future__ import annotations

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from waterspout._addresses import Secrets, check_url, resolved, shown
from waterspout.errors import OutageError, SourceError, StoreError, TopologyError
from waterspout.state.files._locations import (
    arrow_errors,
    arrow_filesystem,
    is_outage,
    is_url,
    local_path,
)

__all__ = [
    "LOCAL",
    "ArrowPlace",
    "FileStat",
    "LocalPlace",
    "Place",
    "address_of",
    "place_of",
    "shown_path",
]

_MANGLED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,}:/[^/]")
# What Hadoop calls a file system, and what pyarrow does.
_SAME = {"s3a": "s3", "s3n": "s3"}
_WITHOUT_HOST = ("s3", "gs", "gcs")
_CONTAINER_AS_USER = ("abfs", "abfss", "wasb", "wasbs")


class FileStat(NamedTuple):
    """What tells whether a file is still the one that it was."""

    size: int
    time_ns: int


class Place(ABC):
    """A file system, and how the driver looks into it. Any thread may."""

    has_digests: bool
    """Whether files are near enough to be read once more, for a digest of their content."""

    @abstractmethod
    def mark(self, folder: str) -> object | None:
        """Return what changes whenever something comes into a folder; None if nothing tells.

        Raises FileNotFoundError if there is no such folder.
        """

    @abstractmethod
    def entries(self, folder: str) -> Iterator[Any]:
        """Yield what is in a folder: objects with `name`, `path`, `is_dir()` and `is_symlink()`."""

    @abstractmethod
    def stat_entry(self, entry: Any) -> FileStat | None:
        """Return what an entry is now; None if it is gone, or no file."""

    @abstractmethod
    def name(self, path: str) -> str:
        """Return the name of the file at a path of this place."""

    @abstractmethod
    def stat(self, name: str) -> FileStat | None:
        """Return what a file is now, None if it is no file; FileNotFoundError if it is gone."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file to read it, from anywhere in it."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is anything at a path."""

    @abstractmethod
    def is_file(self, path: str) -> bool:
        """Whether there is a file at a path."""


@dataclass(frozen=True)
class LocalPlace(Place):
    """This machine's file systems, network mounts among them."""

    has_digests = True

    def mark(self, folder: str) -> object | None:
        try:
            now = os.stat(folder)
        except NotADirectoryError as error:
            raise FileNotFoundError(folder) from error
        if not stat.S_ISDIR(now.st_mode):
            raise FileNotFoundError(folder)
        # The time of a folder can be set by anybody, as rsync does; that of the change cannot.
        return (now.st_dev, now.st_ino, now.st_mtime_ns, now.st_ctime_ns)

    def entries(self, folder: str) -> Iterator[Any]:
        try:
            return os.scandir(folder)  # no generator around it: there may be millions
        except (FileNotFoundError, NotADirectoryError):
            return iter(())  # it was there a moment ago
        except PermissionError as error:
            raise SourceError(f"FileSpout: the directory {folder} cannot be listed") from error

    def stat_entry(self, entry: Any) -> FileStat | None:
        try:
            return self.stat(entry.path)
        except FileNotFoundError:
            return None

    def name(self, path: str) -> str:
        return path

    def stat(self, name: str) -> FileStat | None:
        now = os.stat(name)
        return FileStat(now.st_size, now.st_mtime_ns) if stat.S_ISREG(now.st_mode) else None

    def open(self, name: str) -> BinaryIO:
        return open(name, "rb")

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)


LOCAL = LocalPlace()


@dataclass(frozen=True, slots=True)
class _ArrowEntry:
    name: str
    path: str
    info: Any

    def is_dir(self) -> bool:
        from pyarrow.fs import FileType

        return bool(self.info.type == FileType.Directory)

    def is_symlink(self) -> bool:
        return False


class ArrowPlace(Place):
    """A file system of pyarrow: an object store, HDFS, or one that somebody has made.

    `prefix` is what stands before a path in the names of files. The file system is looked for when
    it is first used: to find the region of a bucket takes a call to its server.
    """

    # Its files would travel through the driver once more.
    has_digests = False

    def __init__(self, prefix: str, address: str, filesystem: Any = None) -> None:
        self._prefix = prefix
        self._address = address
        self._filesystem = filesystem

    def mark(self, folder: str) -> object | None:
        return None

    def entries(self, folder: str) -> Iterator[Any]:
        from pyarrow.fs import FileSelector

        with self._errors():
            found = self._files.get_file_info(FileSelector(folder, allow_not_found=True))
        for info in found:
            yield _ArrowEntry(info.base_name, info.path, info)

    def stat_entry(self, entry: Any) -> FileStat | None:
        return _stat(entry.info)

    def name(self, path: str) -> str:
        return self._prefix + path

    def stat(self, name: str) -> FileStat | None:
        from pyarrow.fs import FileType

        info = self._info(self._path(name))
        if info.type == FileType.NotFound:
            raise FileNotFoundError(2, "No such file or directory", name)
        return _stat(info)

    def open(self, name: str) -> BinaryIO:
        with self._errors():
            found: BinaryIO = self._files.open_input_file(self._path(name))
        return found

    def exists(self, path: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._info(path).type != FileType.NotFound)

    def is_file(self, path: str) -> bool:
        return _stat(self._info(path)) is not None

    def _info(self, path: str) -> Any:
        with self._errors():
            return self._files.get_file_info(path)

    def _path(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    @property
    def _files(self) -> Any:
        if self._filesystem is None:
            scheme, rest = resolved(self._address).split("://", 1)
            try:
                self._filesystem, _ = arrow_filesystem(f"{_SAME.get(scheme, scheme)}://{rest}")
            except StoreError as error:
                raise SourceError(
                    f"FileSpout: {error} Give filesystem=..., one of pyarrow.fs, where pyarrow "
                    "cannot find it by its URL."
                ) from None
        return self._filesystem

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what a file system says into our errors, without secrets."""
        try:
            with arrow_errors():
                yield
        except FileNotFoundError:
            raise
        except OSError as error:
            said = Secrets.of(self._address).hidden(str(error))
            text = f"FileSpout: {shown(self._address)} cannot be read: {said}"
            if is_outage(error):
                raise OutageError(self._address.partition("://")[0], text) from None
            raise SourceError(text) from None


def _stat(info: Any) -> FileStat | None:
    from pyarrow.fs import FileType

    if info.type != FileType.File:
        return None
    return FileStat(info.size, info.mtime_ns or 0)


def address_of(path: str | Path) -> str:
    """Return what a user gave as a path: an absolute path of this machine, or a URL.

    >>> address_of("file:///data/in"), address_of("s3a://bucket/in/")
    ('/data/in', 's3a://bucket/in')
    """
    text = str(path)
    if isinstance(path, Path) and _MANGLED.match(text):
        raise TopologyError(
            f"FileSpout: a Path cannot hold a URL, it has become {text!r}; give the URL as text"
        )
    if not is_url(text):
        return os.path.abspath(text)
    here = local_path(text)
    if here is not None:
        return os.path.abspath(here)
    if text.partition("://")[0].lower() in _CONTAINER_AS_USER:
        raise TopologyError(
            "FileSpout cannot name files of Azure: Spark and pyarrow write their URLs otherwise. "
            "Read them with a DataFrameSpout, or mount the container"
        )
    check_url(text, "URL of a FileSpout")
    return text.rstrip("/")


def shown_path(address: str) -> str:
    """Return an address without secrets; a path of this machine has none."""
    return shown(address) if is_url(address) else address


def place_of(address: str, filesystem: Any = None) -> tuple[Place, str]:
    """Return the place of an address, and the path of the address there."""
    if not is_url(address):
        here = LOCAL if filesystem is None else ArrowPlace("file://", address, filesystem)
        return here, address
    # `${NAME}` may stand for a bucket as well as for a password, and names have the bucket.
    scheme, hosts_and_path = shown(resolved(address)).split("://", 1)
    if _SAME.get(scheme, scheme) in _WITHOUT_HOST:
        # What stands where a host would is the bucket, a part of the path.
        return ArrowPlace(f"{scheme}://", address, filesystem), hosts_and_path
    host, _, path = hosts_and_path.partition("/")
    return ArrowPlace(f"{scheme}://{host}", address, filesystem), f"/{path}"
