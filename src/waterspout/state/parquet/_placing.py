"""How files of rows come to be seen in a folder, and go again if their attempt was lost.

    txid=7/part-...parquet          what any reader of the folder sees of batch 7
    _staging/part-...parquet        what tasks have put down; readers pass over such names
    _staging/7-1-WRITER/part-...    the files of an attempt that is about to be shown
    _waterspout/                    the manifest: which files count

A file only ever moves forward, from `_staging` into the folder of its attempt and with that, by one
rename, to its batch. So whoever removes a file looks for it in this order, and finds it, though
another driver may be moving it. Nobody removes a file but by its name, which has the attempt in it:
a driver that was overtaken cannot touch what a later one has shown.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from waterspout._own_files import shared_folder
from waterspout.errors import FencedError
from waterspout.state._head import Stamp
from waterspout.state._row_files import PartName
from waterspout.state.files._format import writer_tag
from waterspout.state.files._locations import ArrowFolder, Folder, LocalFolder

__all__ = ["STAGING", "ArrowPlaces", "LocalPlaces", "Places", "batch_of", "places_in"]

STAGING = "_staging"
_BATCH = "txid="


def batch_of(txid: int) -> str:
    """Return the folder in which readers see a batch."""
    return f"{_BATCH}{txid}"


class Places(ABC):
    """The places of a table's files. Raises OSError when the world fails."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.staging = folder.inside(STAGING)

    @abstractmethod
    def show(self, stamp: Stamp, names: Sequence[str]) -> None:
        """Let readers of the folder see the files of an attempt; again: no matter.

        FencedError if one of them is gone: only who has taken over removes files.
        """

    @abstractmethod
    def hide(self, txid: int, names: Iterable[str]) -> None:
        """Remove files of lost attempts at a batch, wherever they are by now."""

    @abstractmethod
    def staged(self) -> list[str]:
        """Return all files in `_staging`, also in the folders of attempts."""

    def shown(self, txid: int) -> list[str]:
        """Return the files that readers see of a batch."""
        return self.folder.inside(batch_of(txid)).names()

    def hide_lost(
        self, txid: int, is_lost: Callable[[PartName], bool], known: Iterable[str]
    ) -> None:
        """Remove what lost attempts at a batch have left, as far as names tell; and what is known.

        Again until nothing is found: an overtaken driver may be moving files meanwhile.
        """
        todo = set(known)
        while True:
            listed = [*self.staged(), *self.shown(txid)]
            found = [name for name in map(PartName.parse, listed) if name is not None]
            todo |= {str(name) for name in found if is_lost(name)}
            if not todo:
                return
            self.hide(txid, sorted(todo))
            todo.clear()

    def forget(self, txid: int) -> None:
        """Remove what is left in `_staging` of batches up to this one, which are done."""
        for text in self.staged():
            name = PartName.parse(text)
            if name is not None and name.txid <= txid:
                self.drop(text)

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a file from `_staging` and the folders in it."""


class LocalPlaces(Places):
    """On a file system with atomic renames: all files of a batch are seen at once."""

    folder: LocalFolder

    def show(self, stamp: Stamp, names: Sequence[str]) -> None:
        target = os.path.join(self.folder.path, batch_of(stamp.txid))
        if set(names) <= set(self.shown(stamp.txid)):
            return
        gathered = os.path.join(self._staging, _attempt(stamp))
        shared_folder(Path(gathered))
        for name in names:
            self._gather(name, gathered, stamp)
        try:
            LocalFolder(gathered).sync()
            os.rename(gathered, target)
        except FileNotFoundError as error:
            raise self._overtaken(stamp, gathered) from error
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise self._overtaken(stamp, target) from error
            raise
        LocalFolder(self._staging).sync()
        self.folder.sync()

    @property
    def _staging(self) -> str:
        return os.path.join(self.folder.path, STAGING)

    def _gather(self, name: str, gathered: str, stamp: Stamp) -> None:
        try:
            os.rename(os.path.join(self._staging, name), os.path.join(gathered, name))
        except FileNotFoundError as error:
            if not os.path.exists(os.path.join(gathered, name)):
                raise self._overtaken(stamp, name) from error

    def _overtaken(self, stamp: Stamp, what: str) -> FencedError:
        return FencedError(
            f"{self.folder.path}: {stamp} cannot show its rows, another driver has taken over and "
            f"moved {what}. This one must not write any more."
        )

    def hide(self, txid: int, names: Iterable[str]) -> None:
        batch = os.path.join(self.folder.path, batch_of(txid))
        for name in names:
            self.drop(name)
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(batch, name))
        self._remove_empty(batch)

    def drop(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._staging, name))
        for attempt in self._attempts():
            if _is_of(name, attempt):  # a later one's may be empty because it was just made
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(attempt, name))
                self._remove_empty(attempt)

    def staged(self) -> list[str]:
        names = self.staging.names()
        for attempt in self._attempts():
            names += LocalFolder(attempt).names()
        return names

    def _attempts(self) -> list[str]:
        with suppress(FileNotFoundError), os.scandir(self._staging) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return []

    def _remove_empty(self, path: str) -> None:
        with suppress(FileNotFoundError):
            try:
                os.rmdir(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise


class ArrowPlaces(Places):
    """Where files are moved one by one, and a move may be a copy: on an object store."""

    folder: ArrowFolder
    staging: ArrowFolder

    def show(self, stamp: Stamp, names: Sequence[str]) -> None:
        batch = self.folder.inside(batch_of(stamp.txid))
        there = set(batch.names())
        batch.create()
        for name in names:
            if name in there:
                continue
            if self.staging.size(name) is None:
                raise FencedError(
                    f"{stamp} cannot show its rows: another driver has taken over and removed "
                    f"{name}. This one must not write any more."
                )
            self.staging.move(name, batch)

    def hide(self, txid: int, names: Iterable[str]) -> None:
        batch = self.folder.inside(batch_of(txid))
        for name in names:
            self.drop(name)
            batch.remove(name)

    def drop(self, name: str) -> None:
        self.staging.remove(name)

    def staged(self) -> list[str]:
        return self.staging.names()


def places_in(folder: Folder) -> Places:
    """Return the places of a table in a folder."""
    return LocalPlaces(folder) if isinstance(folder, LocalFolder) else ArrowPlaces(folder)


def _attempt(stamp: Stamp) -> str:
    return f"{stamp.txid}-{stamp.attempt}-{writer_tag(stamp.writer)}"


def _is_of(name: str, attempt: str) -> bool:
    """Whether a file belongs to the attempt whose folder this is."""
    part = PartName.parse(name)
    return part is not None and os.path.basename(attempt).startswith(f"{part.txid}-{part.attempt}-")
