"""Stores of rows as others might write them: one that publishes, one that can undo nothing."""

from __future__ import annotations

import fcntl
import json
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from waterspout._arrow import arrow_schema, table_of_rows
from waterspout.errors import FencedError
from waterspout.state import (
    Head,
    RowsStore,
    RowsStoreState,
    StateKind,
    check_stamp,
    takes_over,
)

_places = {}


class Place:
    """What a store keeps, for all its clients in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.head = None
        self.files = {}
        self.shown = []
        self.lines = []
        self.done = {}

    def content(self):
        """Return a copy of all there is."""
        return (self.head, dict(self.files), list(self.shown), list(self.lines), dict(self.done))

    def put_back(self, content):
        """Put a copy in the place of what there is."""
        self.head, files, shown, lines, done = content
        self.files, self.shown = dict(files), list(shown)
        self.lines, self.done = list(lines), dict(done)


class _Store(RowsStore):
    def __init__(self, place, rows, name):
        self._place = place
        self._rows = rows
        self._name = name

    def read_head(self):
        return self._place.head

    def move_head(self, expected, new):
        with self._place.lock:
            if self._place.head != expected:
                raise FencedError(f"{self._name}: the head has moved")
            self._take_over(expected, new)
            self._place.head = new

    def _take_over(self, expected, new):
        pass


class PublishedRows(_Store):
    """Tasks put files down; a manifest names those that are seen."""

    def write_rows(self, stamp, partition, rows):
        name = uuid.uuid4().hex
        self._place.files[name] = [tuple(row.values()) for row in rows.to_pylist()]
        return json.dumps({"file": name, "rows": rows.num_rows})

    def publish(self, stamp, receipts):
        with self._place.lock:
            check_stamp(self._place.head, stamp, state=self._name)
            kept = [one for one in self._place.shown if one[0] != stamp.txid]
            self._place.shown = kept + [(stamp.txid, json.loads(r)["file"]) for r in receipts]

    def _take_over(self, expected, new):
        if takes_over(expected, new):
            kept = [one for one in self._place.shown if one[0] < new.stamp.txid]
            self._place.shown = kept

    def has_rows_of(self, txid, partition):
        return any(one == txid and self._place.files.get(f) for one, f in self._place.shown)

    def read_rows(self, last, shard=0, shards=1):
        for txid, name in self._place.shown[shard::shards]:
            if txid <= last:
                yield table_of_rows(self._rows, self._place.files[name], where=self._name)


class PinnedRows(_Store):
    """A log: what is in it stays. Each partition notes with its rows which batch they are of."""

    undoes_lost_attempts = False

    def write_rows(self, stamp, partition, rows):
        with self._place.lock:
            check_stamp(self._place.head, stamp, state=self._name)
            if self._place.done.get(partition, 0) < stamp.txid:
                self._place.done[partition] = stamp.txid
                new = [tuple(row.values()) for row in rows.to_pylist()]
                self._place.lines += [(stamp.txid, row) for row in new]

    def has_rows_of(self, txid, partition):
        return any(one == txid for one, _ in self._place.lines)

    def read_rows(self, last, shard=0, shards=1):
        rows = [row for txid, row in self._place.lines[shard::shards] if txid <= last]
        if rows:
            yield table_of_rows(self._rows, rows, where=self._name)
        else:
            yield arrow_schema(self._rows).empty_table()


@dataclass(frozen=True, kw_only=True)
class _State(RowsStoreState):
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    driver_only = True
    volatile = True

    @property
    def place(self):
        return _places.setdefault(self.id, Place())

    @property
    def title(self):
        return f"{self.backend} {self.id[:8]}"

    def location(self):
        return f"{self.backend}:{self.id}"


@dataclass(frozen=True, kw_only=True)
class PublishedState(_State):
    """Recipe of rows behind a manifest."""

    backend: ClassVar[str] = "published"

    def store(self):
        return PublishedRows(self.place, self.rows, self.title)

    @property
    def seen(self):
        """What a reader of the manifest sees."""
        return [row for _, name in self.place.shown for row in self.place.files[name]]


@dataclass(frozen=True, kw_only=True)
class PinnedState(_State):
    """Recipe of rows in a log, of which nothing can be taken back."""

    kind: StateKind = StateKind.TRANSACTIONAL
    backend: ClassVar[str] = "pinned"
    pins_batches = True

    def store(self):
        return PinnedRows(self.place, self.rows, self.title)

    @property
    def seen(self):
        """What a reader of the log sees."""
        return [row for _, row in self.place.lines]


class FolderRows(RowsStore):
    """Files in a folder, and one file that names those that are seen: tasks reach it too."""

    def __init__(self, folder, rows, name):
        self._folder = Path(folder)
        self._rows = rows
        self._name = name

    def read_head(self):
        text = self._table()["head"]
        return Head.from_text(text) if text else None

    def move_head(self, expected, new):
        with self._changing() as table:
            found = Head.from_text(table["head"]) if table["head"] else None
            if found != expected:
                raise FencedError(f"{self._name}: the head has moved")
            if takes_over(expected, new):
                table["shown"] = [one for one in table["shown"] if one[0] < new.stamp.txid]
            table["head"] = new.to_text()

    def write_rows(self, stamp, partition, rows):
        name = f"{stamp.txid}-{stamp.attempt}-{partition}-{uuid.uuid4().hex}.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_text(json.dumps(rows.to_pylist()))
        return json.dumps({"file": name, "rows": rows.num_rows})

    def publish(self, stamp, receipts):
        with self._changing() as table:
            head = Head.from_text(table["head"]) if table["head"] else None
            check_stamp(head, stamp, state=self._name)
            kept = [one for one in table["shown"] if one[0] != stamp.txid]
            table["shown"] = kept + [[stamp.txid, json.loads(r)["file"]] for r in receipts]

    def _table(self):
        path = self._folder / "table"
        return json.loads(path.read_text()) if path.exists() else {"head": "", "shown": []}

    @contextmanager
    def _changing(self):
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            table = self._table()
            yield table
            new = self._folder / f"table-{uuid.uuid4().hex}"
            new.write_text(json.dumps(table))
            new.replace(self._folder / "table")


@dataclass(frozen=True, kw_only=True)
class FolderState(RowsStoreState):
    """Recipe of rows in a folder."""

    folder: str
    backend: ClassVar[str] = "folder"

    @property
    def title(self):
        return f"folder {self.folder}"

    def location(self):
        return f"folder:{self.folder}"

    def store(self):
        return FolderRows(self.folder, self.rows, self.title)

    @property
    def seen(self):
        """What a reader of the folder sees."""
        shown = self.store()._table()["shown"]
        files = [json.loads((Path(self.folder) / name).read_text()) for _, name in shown]
        return [tuple(row.values()) for rows in files for row in rows]
