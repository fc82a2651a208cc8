"""The files of a batch as they were when it was planned, and what has become of them since.

The metadata of a batch has the name, the size and the time of each file, and beside them a digest
of its content. Size and time are looked at whenever the batch is read; the digest only where the
time differs: a file that was touched, or put back from a copy, is still the file that was pinned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from waterspout.errors import DataLossError, SourceError
from waterspout.spouts._places import LOCAL, FileStat, Place

__all__ = [
    "FileLook",
    "PinnedFile",
    "left_out",
    "names_of",
    "pin",
    "pinned",
    "refuse_changed",
    "repinned",
]

DIGEST_MAX_BYTES = 256_000_000
"""Files beyond it are pinned by size and time alone: planning a batch must not take minutes."""

_DIGEST_CHARS = 16
_CHUNK_BYTES = 1 << 20

Difference = Literal["gone", "unreadable", "size", "content", "time"]

_WAY_OUT = (
    "`waterspout batch show` tells more; `batch skip` goes on without it, `batch accept` takes a "
    "file as it is now."
)


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file as it was when its batch was planned; without a digest if none was made."""

    name: str
    size: int
    time_ns: int
    digest: str | None

    def look(self, place: Place = LOCAL) -> FileLook:
        """Compare it with the file that is there now."""
        try:
            now = place.stat(self.name)
        except FileNotFoundError:
            return FileLook(self, "gone", why="No such file or directory")
        except OSError as error:
            return FileLook(self, "unreadable", why=error.strerror or str(error))
        if now is None:
            return FileLook(self, "gone", why="it is no file now")
        size, time_ns = now
        if size != self.size:
            return FileLook(self, "size", size, time_ns)
        if time_ns == self.time_ns:
            return FileLook(self, None, size, time_ns)
        if self.digest is None:
            return FileLook(self, "time", size, time_ns)
        try:
            found = _digest_of(self.name, place)
        except OSError as error:
            return FileLook(self, "unreadable", why=error.strerror or str(error))
        same = found == self.digest
        return FileLook(self, None if same else "content", size, time_ns)


@dataclass(frozen=True, slots=True)
class FileLook:
    """What has become of a pinned file: how it differs now; None: it is what was pinned.

    "time" if that is another and nobody knows whether the content is.
    """

    pinned: PinnedFile
    difference: Difference | None
    size: int | None = None
    time_ns: int | None = None
    why: str = ""

    @property
    def touched(self) -> bool:
        """Whether only its time is another."""
        return self.difference is None and self.time_ns != self.pinned.time_ns

    @property
    def text(self) -> str:
        """Say it in a few words."""
        was = self.pinned
        times = f"of {_when(was.time_ns)} then, of {_when(self.time_ns)} now"
        match self.difference:
            case "gone" | "unreadable":
                return f"cannot be read: {self.why}"
            case "size":
                return f"{was.size} bytes then, {self.size} now"
            case "content":
                return f"the same size, {was.size} bytes, but other content; {times}"
            case "time":
                no_digest = "the file is too large for a digest"
                if was.size <= DIGEST_MAX_BYTES:
                    no_digest = "no digest was kept"  # by older versions, and of distant files
                return f"{times}; whether its content is the same cannot be told: {no_digest}"
        return f"the same content; {times}" if self.touched else "as it was"


def pin(files: Sequence[tuple[str, FileStat]], place: Place = LOCAL) -> dict[str, Any]:
    """Return the part of a batch's metadata that says which files it has, and how they are."""
    return {
        "files": [[name, now.size, now.time_ns] for name, now in files],
        "content": [_digest_if_small(name, now.size, place) for name, now in files],
    }


def repinned(files: Sequence[PinnedFile]) -> dict[str, Any]:
    """Return the same for files that were pinned before."""
    return {
        "files": [[file.name, file.size, file.time_ns] for file in files],
        "content": [file.digest for file in files],
    }


def pinned(metadata: Mapping[str, Any]) -> list[PinnedFile]:
    """Return the files that a batch reads; versions before kept no digest."""
    files = metadata["files"]
    content = metadata.get("content") or [None] * len(files)
    entries = zip(files, content, strict=True)
    return [PinnedFile(name, size, time_ns, digest) for (name, size, time_ns), digest in entries]


def left_out(metadata: Mapping[str, Any]) -> list[str]:
    """Return the files that count as read by a batch and are not read, because somebody said so."""
    return list(metadata.get("left_out", ()))


def names_of(metadata: Mapping[str, Any]) -> list[str]:
    """Return all files that count as read by a batch."""
    return [file[0] for file in metadata["files"]] + left_out(metadata)


def refuse_changed(
    metadata: Mapping[str, Any], place: Place, root: str, *, waits: bool = False
) -> Iterator[FileLook]:
    """Raise for the first file of a batch that is not what was pinned; yield the touched ones.

    `root` is the folder that all are in. `waits`: whether files were only taken after a while.
    """
    for file in pinned(metadata):
        look = file.look(place)
        match look.difference:
            case None:
                if look.touched:
                    yield look
            case "gone" | "unreadable":
                # Where all is gone, as when a disk is not mounted, that one file is not lost.
                lost = look.difference == "gone" and place.exists(_root(place, root, file.name))
                said = (
                    f"{file.name} belongs to a batch that is not finished, but {look.text}. Put "
                    "it back."
                )
                raise DataLossError(f"{said} {_WAY_OUT}") if lost else SourceError(said)
            case _:
                # Most likely somebody writes into the source itself.
                longer = "longer " if waits else ""
                advice = f"min_age_secs=... lets files that are still written wait {longer}first."
                raise DataLossError(
                    f"{file.name} was changed after it was put into a batch ({look.text}). Put the "
                    f"old file back; new rows go into new files. {_WAY_OUT} {advice}"
                )


def _digest_of(name: str, place: Place) -> str:
    """Return a digest of a file's content."""
    digest = hashlib.sha256()
    with place.open(name) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()[:_DIGEST_CHARS]


def _digest_if_small(name: str, size: int, place: Place) -> str | None:
    if not place.has_digests or size > DIGEST_MAX_BYTES:
        return None
    try:
        return _digest_of(name, place)
    except OSError:
        return None  # whoever reads it says what is wrong


def _root(place: Place, root: str, name: str) -> str:
    """Return a folder that is there if the source is; its path may be the one file."""
    return root.rpartition("/")[0] if place.name(root) == name else root


def _when(time_ns: int | None) -> str:
    if time_ns is None:
        return "?"
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
