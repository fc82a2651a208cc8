"""The list of the files that a FileSpout has read, and how it is tied to the ledger.

Millions of names do not fit into a ledger, so the list stands beside it: a small database in the
topology's folder. The ledger says what the list must hold. The metadata of each batch has a tally
of all files up to and with that batch: how many they are, and the sum of the hashes of their names,
which does not depend on their order and costs a batch no more than its own files.

A list that does not fit its tally was deleted, emptied, restored from an older copy or changed. It
is never used: files would be counted twice.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waterspout._own_files import FileKind, OwnFile

__all__ = ["ReadFiles", "ReadInMemory", "StoredRead", "Tally", "path_of_list"]

_DIGEST_BYTES = 16

_KIND = FileKind(
    holds="list of files that were read",
    application_id=0x57534653,
    format=1,
    schema=(
        "CREATE TABLE IF NOT EXISTS seen (path TEXT PRIMARY KEY, txid INTEGER NOT NULL)"
        " STRICT, WITHOUT ROWID"
    ),
    unmarked="seen",
    remedy=(
        "restore it from a copy, or remove it: it is made anew from the files that were read, if "
        "they are still where they were."
    ),
)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many files, and the sum of the hashes of their names.

    >>> Tally().plus(["a", "b"]) == Tally().plus(["b"]).plus(["a"])
    True
    >>> Tally().plus(["a", "b"]) == Tally().plus(["a", "c"])
    False
    """

    files: int = 0
    digest: int = 0

    def plus(self, names: Iterable[str]) -> Tally:
        """Return the tally with more files."""
        files, digest = self.files, self.digest
        for name in names:
            files += 1
            digest += _hash(name)
        return Tally(files, digest % (1 << 8 * _DIGEST_BYTES))

    def to_json(self, txid: int) -> dict[str, Any]:
        """Return it as part of the metadata of the last batch that is in it."""
        return {"txid": txid, "files": self.files, "digest": f"{self.digest:0{2 * _DIGEST_BYTES}x}"}

    @classmethod
    def of(cls, metadata: Mapping[str, Any] | None) -> Tally | None:
        """Return the tally up to and with a batch; None if an older version planned it."""
        stored = None if metadata is None else metadata.get("read")
        return None if stored is None else cls(stored["files"], int(stored["digest"], 16))


class ReadFiles(ABC):
    """The files of committed batches, each with its txid. One thread uses it."""

    where: str
    """What errors call it."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether there ever was a list."""

    @abstractmethod
    def put(self, files: Mapping[str, int], *, forget_from: int | None = None) -> None:
        """Add files with their batches, durably, all or none.

        With `forget_from`, those of this batch and of later ones are forgotten first: they were
        rolled back.
        """

    @abstractmethod
    def names(self, before: int) -> Iterable[str]:
        """Return the files of the batches before this one."""

    @abstractmethod
    def among(self, names: list[str]) -> set[str]:
        """Return those of some files that are in the list."""

    def changed_outside(self) -> bool:
        """Whether somebody else has changed the list since this was asked last."""
        return False

    def close(self) -> None:  # noqa: B027  (optional hook)
        """Give up the file."""

    def tally(self, before: int) -> Tally:
        """Return the tally of the files of the batches before this one: from the list itself."""
        return Tally().plus(self.names(before))


class ReadInMemory(ReadFiles):
    """A list that lives as long as a ledger in memory does."""

    where = "the list of files that were read, in memory,"

    def __init__(self, kept: MutableMapping[str, object], spout_id: str) -> None:
        self._kept = kept
        self._key = f"files-{spout_id}"

    @property
    def exists(self) -> bool:
        return self._key in self._kept

    def put(self, files: Mapping[str, int], *, forget_from: int | None = None) -> None:
        listed = self._files
        if forget_from is not None:
            for name in [name for name, txid in listed.items() if txid >= forget_from]:
                del listed[name]
        listed.update(files)

    def names(self, before: int) -> Iterable[str]:
        return [name for name, txid in self._files.items() if txid < before]

    def among(self, names: list[str]) -> set[str]:
        return {name for name in names if name in self._files}

    @property
    def _files(self) -> dict[str, int]:
        listed = self._kept.setdefault(self._key, {})
        assert isinstance(listed, dict)
        return listed


class StoredRead(ReadFiles):
    """A list in a file of its own, which a copy of that one file holds whole."""

    def __init__(self, folder: Path, spout_id: str) -> None:
        path = path_of_list(folder, spout_id)
        self.where = str(path)
        self._file = OwnFile(path, _KIND)
        self._version: int | None = None

    @property
    def exists(self) -> bool:
        return self._file.exists

    def put(self, files: Mapping[str, int], *, forget_from: int | None = None) -> None:
        def write(db: sqlite3.Connection) -> None:
            if forget_from is not None:
                db.execute("DELETE FROM seen WHERE txid >= ?", (forget_from,))
            db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", files.items())

        if files or forget_from is not None:
            self._file.transaction(write, create=True)

    def names(self, before: int) -> Iterable[str]:
        return self._file.each("SELECT path FROM seen WHERE txid < ?", before)

    def among(self, names: list[str]) -> set[str]:
        asked = "SELECT path FROM seen WHERE path IN (SELECT value FROM json_each(?))"
        return {name for (name,) in self._file.query(asked, json.dumps(names))}

    def of_batches(self, txids: Iterable[int]) -> set[str]:
        """Return the files of some batches."""
        asked = "SELECT path FROM seen WHERE txid IN (SELECT value FROM json_each(?))"
        return {name for (name,) in self._file.query(asked, json.dumps([*txids]))}

    def changed_outside(self) -> bool:
        before = self._version
        ((self._version,),) = self._file.query("PRAGMA data_version")
        return before is not None and before != self._version

    def close(self) -> None:
        self._file.close()


def path_of_list(folder: Path, spout_id: str) -> Path:
    """Return where the list of a spout is."""
    return folder / f"files-{spout_id}.db"


def _hash(name: str) -> int:
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest())
