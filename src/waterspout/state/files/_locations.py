"""Folders that hold the files of a state: on this machine, or wherever pyarrow reaches.

What a call has written is durable when it returns: on this machine it was synced, file and
folder; on any other file system the stream was closed, which is that system's promise.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from waterspout._addresses import Secrets, check_url, resolved, shown
from waterspout._own_files import open_private, private_folder, shared_folder
from waterspout.errors import StoreError

__all__ = [
    "ArrowFolder",
    "Folder",
    "LocalFolder",
    "arrow_errors",
    "arrow_filesystem",
    "is_outage",
    "is_url",
    "local_path",
    "location_of",
    "open_folder",
    "refuse_read_only",
]

_LOCAL = re.compile(r"(?i)file://(localhost)?/")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Folder(ABC):
    """A flat folder of files that are written once. Raises OSError when the world fails."""

    key: str
    """Names the folder within a process. May hold secrets: never shown."""

    exclusive: bool
    """Whether `write_whole` refuses a name that is taken, whoever took it."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return what is in the folder now; nothing if it is not there."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a file's content; FileNotFoundError if there is none."""

    @abstractmethod
    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a file under a new name. If that fails, a torn file may be left."""

    @abstractmethod
    def write_whole(self, name: str, temporary: str, content: bytes) -> None:
        """Write a file so that it is there whole or not at all.

        Raises FileExistsError where the name is taken, if the folder is `exclusive`.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; no matter if it is gone already."""

    @abstractmethod
    def create(self) -> None:
        """Make the folder if it is not there."""

    @abstractmethod
    def inside(self, name: str) -> Folder:
        """Return a folder in this one; it need not be there yet."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return how many bytes a file has; None if there is none."""


class LocalFolder(Folder):
    """A folder of this machine's file systems (also of a network mount).

    What is made in it is for this user alone, unless it is `shared`: then the umask says for whom,
    as it does for what other programs write.
    """

    exclusive = True

    def __init__(self, path: str | Path, *, shared: bool = False) -> None:
        self._path = os.path.realpath(path)
        self._shared = shared
        self.key = f"file:{self._path}"

    @property
    def path(self) -> str:
        """Where it is."""
        return self._path

    def names(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        with open(self._at(name), "rb") as file:
            return file.read()

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        self._write(name, chunks)
        self.sync()

    def write_whole(self, name: str, temporary: str, content: bytes) -> None:
        self._write(temporary, [content])
        try:
            # Not a rename, which would replace what another process has put there.
            os.link(self._at(temporary), self._at(name))
        except FileExistsError:
            self.remove(temporary)
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.rename(self._at(temporary), self._at(name))
        else:
            self.remove(temporary)
        self.sync()

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._at(name))

    def create(self) -> None:
        missing = Path(self._path)
        while not missing.exists():
            missing = missing.parent
        if os.path.isdir(self._path):
            return
        if self._shared:
            shared_folder(Path(self._path))
        else:
            private_folder(Path(self._path))
        for level in Path(self._path).parents:
            _sync_folder(str(level))
            if level == missing:
                return

    def inside(self, name: str) -> LocalFolder:
        return LocalFolder(self._at(name), shared=self._shared)

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self._at(name)).st_size
        except FileNotFoundError:
            return None

    def sync(self) -> None:
        """Make the names in it durable."""
        _sync_folder(self._path)

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _write(self, name: str, chunks: Iterable[bytes]) -> None:
        if self._shared:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(self._at(name), flags, 0o666)
        else:
            handle = open_private(self._at(name), os.O_WRONLY | os.O_EXCL)
        with open(handle, "wb", buffering=0) as file:
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[file.write(rest) :]
            os.fsync(file.fileno())


class ArrowFolder(Folder):
    """A folder of a pyarrow file system.

    Needs listings and reads that show every file whose writing has returned, as HDFS does, and
    S3 since December 2020.
    """

    exclusive = False

    def __init__(self, filesystem: Any, path: str, key: str) -> None:
        self.filesystem = filesystem
        self.path = path.rstrip("/")
        self.key = key

    def names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        with arrow_errors():
            found = self.filesystem.get_file_info(FileSelector(self.path, allow_not_found=True))
        return [info.base_name for info in found]

    def read(self, name: str) -> bytes:
        with arrow_errors(), self.filesystem.open_input_stream(self._at(name)) as stream:
            content: bytes = stream.read()
            return content

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        with arrow_errors(), self.filesystem.open_output_stream(self._at(name)) as stream:
            for chunk in chunks:
                stream.write(chunk)

    def write_whole(self, name: str, temporary: str, content: bytes) -> None:
        self.write(temporary, [content])
        with arrow_errors():
            self.filesystem.move(self._at(temporary), self._at(name))

    def remove(self, name: str) -> None:
        with arrow_errors(), suppress(FileNotFoundError):
            self.filesystem.delete_file(self._at(name))

    def create(self) -> None:
        with arrow_errors():
            self.filesystem.create_dir(self.path, recursive=True)

    def inside(self, name: str) -> ArrowFolder:
        return ArrowFolder(self.filesystem, self._at(name), f"{self.key} {name}")

    def size(self, name: str) -> int | None:
        with arrow_errors():
            (found,) = self.filesystem.get_file_info([self._at(name)])
        return int(found.size) if found.is_file else None

    def move(self, name: str, into: ArrowFolder) -> None:
        """Give a file its place in another folder of the same file system."""
        with arrow_errors():
            self.filesystem.move(self._at(name), into._at(name))

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name


def local_path(address: str) -> Path | None:
    """Return the folder that a path or a `file://` URI names; None for any other URI."""
    if not _SCHEME.match(address):
        return Path(address).expanduser().absolute()
    if not _LOCAL.match(address):
        return None  # not even looked at: what urllib says of a URL quotes its password
    return Path(unquote(urlsplit(address).path))


def location_of(kind: str, address: str) -> str:
    """Return the one name of a folder, however its path or URI is written, without secrets."""
    path = local_path(address)
    if path is not None:
        return f"{kind}:{os.path.realpath(path)}"
    scheme, _, place = shown(address).partition("://")
    return f"{kind}:{scheme.lower()}://{place}"


def open_folder(address: str, what: str = "file state", *, shared: bool = False) -> Folder:
    """Return the folder at a path or URI, with `${NAME}` in it resolved here.

    `what` the URI is of, for errors. `shared` as in `LocalFolder`.
    """
    address = resolved(address)
    path = local_path(address)
    if path is not None:
        return LocalFolder(path, shared=shared)
    check_url(address, f"URI of a {what}")
    filesystem, inner = arrow_filesystem(address)
    return ArrowFolder(filesystem, inner, address)


def is_url(address: str) -> bool:
    """Tell whether an address begins with the name of a file system."""
    return _SCHEME.match(address) is not None


def arrow_filesystem(address: str) -> tuple[Any, str]:
    """Return the file system of pyarrow at a URI, which is resolved already, and the path in it."""
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        filesystem, inner = FileSystem.from_uri(address)
    except (ArrowException, OSError, ValueError) as error:
        said = str(error).replace(address, shown(address))
        # Not chained: what pyarrow says may quote the address with its secrets.
        raise StoreError(
            f"{shown(address)} cannot be reached: {Secrets.of(address).hidden(said)}"
        ) from None
    return filesystem, inner


def refuse_read_only(path: Path) -> None:
    """Refuse a path at which no folder can be made, or written to."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise StoreError(f"{there} is a file; a file state needs a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StoreError(f"{there} is read-only, so no state can be written to {path}")


# What file servers say; and S3, HDFS and others, in the text of an error without a number.
_AWAY_NUMBERS = (
    *(errno.ESTALE, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
    *(errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN),
)
_AWAY_TEXT = re.compile(
    r"NETWORK_CONNECTION|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT|INTERNAL_FAILURE"
    r"|HTTP status 5\d\d|timed? ?out|connection (refused|reset|closed|failure)|SafeModeException"
    r"|StandbyException|could ?n[o']t connect|could not resolve",
    re.IGNORECASE,
)


def is_outage(error: OSError) -> bool:
    """Tell whether a file system is out of reach for now."""
    if isinstance(error, FileNotFoundError | PermissionError):
        return False
    return error.errno in _AWAY_NUMBERS or _AWAY_TEXT.search(str(error)) is not None


@contextmanager
def arrow_errors() -> Iterator[None]:
    """Let pyarrow's errors be those of the operating system."""
    from pyarrow import ArrowException

    try:
        yield
    except ArrowException as error:
        raise OSError(str(error)) from error


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
