"""What the coordination store in ZooKeeper writes: checked records, and who holds the lease.

A record is one line of JSON that says what follows and how to check it, and the content: JSON
too, compressed where that helps. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from waterspout._own_files import open_private, private_folder
from waterspout._serde import MAX_SIZE, checksum
from waterspout.coordination.lease import Process
from waterspout.errors import (
    DamagedStoreError,
    ForeignStoreError,
    NewerFormatError,
    StoreError,
)

__all__ = ["REMEDY", "Home", "Owner", "is_seen_dead", "pack", "unpack"]

_FORMAT = 1
_MAGIC = b'{"waterspout":'
_COMPRESS_FROM = 4096
_NOTES_BYTES_MAX = 10_000

REMEDY = (
    "restore it from a copy. If there is none, the topology can only start over: delete this "
    "node with all below it (deleteall in zkCli) and empty the topology's states together."
)


def pack(name: str, content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a record."""
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    body, coding = text.encode("ascii"), "plain"
    if len(body) >= _COMPRESS_FROM:
        compressed = zlib.compress(body, 6)
        if len(compressed) < len(body):
            body, coding = compressed, "zlib"
    return _header(name, coding, body) + body


def unpack(name: str, data: bytes, path: str) -> dict[str, Any]:
    """Return the content of a record; whatever is odd about it is an error with the path."""
    if not data.startswith(_MAGIC):
        if data and not _MAGIC.startswith(data):
            raise ForeignStoreError(
                f"{path} was not written by waterspout, and is left alone; choose another root "
                "(transactional.zookeeper.root) or another name for the topology."
            )
        raise DamagedStoreError(f"the {name} in {path} is gone or cut short; {REMEDY}")
    line, _, body = data.partition(b"\n")
    damaged = DamagedStoreError(f"the {name} in {path} is damaged; {REMEDY}")
    try:
        header = json.loads(line)
        found = header["format"]
        if type(found) is int and found > _FORMAT:
            raise NewerFormatError(f"the {name} in {path}", found, _FORMAT)
        coding = header["coding"]
        # Compared as a whole: there is one spelling of a header, and every other is damage.
        if line + b"\n" != _header(name, coding, body) or coding not in ("plain", "zlib"):
            raise damaged
        content = json.loads(_decompressed(body) if coding == "zlib" else body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise damaged from error
    if not isinstance(content, dict):
        raise damaged
    return content


def _header(name: str, coding: str, body: bytes) -> bytes:
    check = checksum(f"{name}|{coding}|{body.decode('latin-1')}")
    header = {"waterspout": name, "format": _FORMAT, "coding": coding, "checksum": check}
    return json.dumps(header, separators=(",", ":")).encode() + b"\n"


def _decompressed(body: bytes) -> bytes:
    # With a bound: a few bytes can stand for more than there is memory.
    worker = zlib.decompressobj()
    text = worker.decompress(body, MAX_SIZE)
    if not worker.eof or worker.unused_data:
        raise ValueError("the compressed content does not end where it should")
    return text


@dataclass(frozen=True, slots=True)
class Owner:
    """Who took the lease last: it is held as long as the ephemeral node named by `lease` is."""

    topology: str
    epoch: int
    lease: str
    holder: Process
    session_s: float

    def to_bytes(self) -> bytes:
        """Return the record."""
        return pack("owner", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Owner:
        """Read the record; one that is not what we write is damage."""
        content = unpack("owner", data, path)
        try:
            owner = cls(**{**content, "holder": Process(**content["holder"])})
            valid = (
                type(owner.epoch) is int
                and owner.epoch >= 1
                and isinstance(owner.session_s, int | float)
                and all(isinstance(text, str) for text in (owner.topology, owner.lease))
                and uuid.UUID(hex=owner.lease).hex == owner.lease
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedStoreError(f"the owner in {path} cannot be read; {REMEDY}") from error
        if not valid:
            raise DamagedStoreError(f"the owner in {path} cannot be read; {REMEDY}")
        return owner

    @property
    def who(self) -> str:
        """The holder, for people."""
        return f"process {self.holder.pid} on host {self.holder.host}"


def is_seen_dead(holder: Process) -> bool:
    """Whether a holder certainly ended: it ran on this very machine, and runs no more."""
    return holder.is_alive() is False


class Home:
    """The local folder of a topology, and whether it knows all that the topology has done.

    Some of what survives a driver is not in ZooKeeper: a `FileSpout` keeps the list of the files
    it has read in a folder. The folder notes each lease that a driver with this folder is about
    to take; if the last one taken is not among them, that driver ran elsewhere, and the list
    here is not complete.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self._path = self.folder / "zookeeper-leases"

    def refuse_unless_complete(self, owner: Owner) -> None:
        """Raise if the last driver used another folder."""
        try:
            noted = self._path.read_text("ascii", "replace").split()
        except FileNotFoundError:
            noted = []
        except OSError as error:
            raise self._unusable(error) from error
        if owner.lease not in noted:
            raise StoreError(
                f"topology {owner.topology!r} was run last by {owner.who}, and the list of the "
                f"files it has read is in the waterspout home there, not in {self.folder}. Run it "
                f"on that host, or stop it and copy the folder {self.folder.name} of that home "
                "here. Without the list, files would be counted again."
            )

    def note(self, lease: str) -> None:
        """Make the folder, and note a lease before it is taken."""
        try:
            private_folder(self.folder)
            # Appended, because a rival with this folder may do the same just now; with a line
            # break in front, because one before us may have died in the middle.
            handle = open_private(self._path, os.O_APPEND | os.O_WRONLY)
            with open(handle, "a", encoding="ascii") as file:
                file.write(f"\n{lease}\n")
                file.flush()
                os.fsync(handle)
        except OSError as error:
            raise self._unusable(error) from error

    def forget_all_but(self, lease: str) -> None:
        """Keep the note small: called by the one that holds this lease."""
        try:
            if self._path.stat().st_size > _NOTES_BYTES_MAX:
                draft = self.folder / f".zookeeper-leases.{lease}"
                with open(
                    open_private(draft, os.O_WRONLY | os.O_TRUNC), "w", encoding="ascii"
                ) as to:
                    to.write(f"{lease}\n")
                draft.replace(self._path)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(
            f"the folder {self.folder} cannot be used: {error.strerror or error}. Choose another "
            "folder with WATERSPOUT_HOME or Config(home=...)."
        )
