"""The sources of a drawn topology: a log, files in a folder, emitters in Storm's form."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.semantics.drawn_cases import OPAQUE, Row, Source
from waterspout.spouts._base import SpoutKind
from waterspout.spouts.files import FileSpout
from waterspout.testing import MemoryLog
from waterspout.transactional import (
    OpaqueEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedTransactionalSpout,
    PartitionEmitter,
)
from waterspout.trident import Stream, TridentTopology

FIELDS = "k string, g string, id bigint"


class Feed(ABC):
    """A source as it is in the world, and what committed batches say of it."""

    def __init__(self, name: str, source: Source, rng: random.Random) -> None:
        self.name = name
        self._source = source
        self._random = rng
        self.parts = [list(part) for part in source.parts]
        self.off: set[int] = set()
        self.sized = False

    @abstractmethod
    def stream(self, topology: TridentTopology) -> Stream:
        """Return the stream of its spout."""

    @abstractmethod
    def rows(self, metadata: Any) -> list[Row]:
        """Return what a committed batch held."""

    @abstractmethod
    def unread(self, batches: Sequence[Any]) -> list[str]:
        """Return what of the source is in none of the committed batches."""

    @abstractmethod
    def misread(self, batches: Sequence[Any]) -> list[str]:
        """Return what is in two of them, or in the wrong one."""

    def bring_late_rows(self) -> None:
        """Let the rest come."""
        for part, rows in zip(self.parts, self._source.late, strict=True):
            part.extend(rows)

    def switch(self, is_off: Callable[[], bool]) -> None:
        """Switch partitions off and on."""
        self.off = {part for part in range(len(self.parts)) if is_off()}

    def take(self) -> int:
        """Return how many rows of a partition are taken now."""
        return self._random.randint(1, self._source.take) if self._random.random() < 0.9 else 0


class LogFeed(Feed):
    """Partitions of a log."""

    def stream(self, topology: TridentTopology) -> Stream:
        kind = SpoutKind(self._source.kind)
        self._log = MemoryLog(
            FIELDS, self.parts, kind=kind, take=lambda _: self.take(), sized=self.sized
        )
        self._log.disabled = self.off
        return topology.new_stream(self.name, self._log)

    def switch(self, is_off: Callable[[], bool]) -> None:
        super().switch(is_off)
        self._log.disabled = self.off

    def rows(self, metadata: Any) -> list[Row]:
        parts = zip(self.parts, metadata["ranges"], strict=True)
        return [row for part, (start, end) in parts for row in part[start:end]]

    def unread(self, batches: Sequence[Any]) -> list[str]:
        nothing = [[0, 0]] * len(self.parts)
        ends = [end for _, end in (batches[-1]["ranges"] if batches else nothing)]
        there = [len(part) for part in self.parts]
        return [] if ends == there else [f"{self.name} is read up to {ends} of {there}"]

    def misread(self, batches: Sequence[Any]) -> list[str]:
        at, wrong = [0] * len(self.parts), []
        for metadata in batches:
            if [start for start, _ in metadata["ranges"]] != at:
                wrong.append(f"{self.name}: {metadata} does not begin at {at}")
            at = [end for _, end in metadata["ranges"]]
        return wrong


class FilesFeed(Feed):
    """Files in a folder."""

    def __init__(self, name: str, source: Source, rng: random.Random, folder: Path) -> None:
        super().__init__(name, source, rng)
        self._folder = folder / f"files-{name}"
        self._folder.mkdir()
        self._write(source.parts, "early")

    def stream(self, topology: TridentTopology) -> Stream:
        limits = {} if self.sized else {"max_files": self._source.take}
        spout = FileSpout(self._folder, **limits)
        return topology.new_stream(self.name, spout).map(_parsed, FIELDS)

    def bring_late_rows(self) -> None:
        self._write(self._source.late, "late")

    def switch(self, is_off: Callable[[], bool]) -> None:
        pass

    def rows(self, metadata: Any) -> list[Row]:
        return [_parsed(line) for name in self._held([metadata]) for line in _lines(name)]

    def unread(self, batches: Sequence[Any]) -> list[str]:
        return sorted({str(path) for path in self._folder.iterdir()} - set(self._held(batches)))

    def misread(self, batches: Sequence[Any]) -> list[str]:
        times = Counter(self._held(batches))
        return [f"{name} was read twice" for name, number in times.items() if number > 1]

    def _write(self, files: Sequence[Sequence[Row]], name: str) -> None:
        for n, rows in enumerate(files):
            text = "".join(f"{k} {g} {number}\n" for k, g, number in rows)
            (self._folder / f"{name}{n}").write_text(text)

    def _held(self, batches: Sequence[Any]) -> list[str]:
        return [file[0] for metadata in batches for file in metadata["files"]]


def _parsed(value: str) -> Row:
    k, g, number = value.split()
    return k, g, int(number)


def _lines(name: str) -> list[str]:
    return Path(name).read_text().splitlines()


class EmittedFeed(Feed):
    """Partitions that emitters in Storm's form read; they leave some rows out."""

    def stream(self, topology: TridentTopology) -> Stream:
        _FEEDS[self.name] = self
        spout = (_OpaqueTail if self._source.kind == OPAQUE else _Tail)(self.name)
        return topology.new_stream(self.name, spout, FIELDS)

    def range_after(self, partition: int, last: Any) -> list[int]:
        """Return the range that is read now."""
        start = 0 if last is None else last[1]
        if partition in self.off:
            return [start, start]
        return [start, min(len(self.parts[partition]), start + self.take())]

    def kept(self, partition: int, start: int, end: int) -> list[Row]:
        """Return the rows of a range that are emitted."""
        return [row for row in self.parts[partition][start:end] if row[1] != "z"]

    def rows(self, metadata: Any) -> list[Row]:
        return [row for p, (a, b) in self._ranges(metadata) for row in self.kept(p, a, b)]

    def unread(self, batches: Sequence[Any]) -> list[str]:
        left = []
        for partition, end in self._ends(batches).items():
            left += [str(row) for row in self.kept(partition, end, len(self.parts[partition]))]
        return left

    def misread(self, batches: Sequence[Any]) -> list[str]:
        wrong = []
        for n, metadata in enumerate(batches):
            ends = self._ends(batches[:n])
            for partition, (start, _) in self._ranges(metadata):
                at = ends[partition]
                if start < at or self.kept(partition, at, start):
                    wrong.append(f"{self.name}: {metadata} does not begin at {ends}")
        return wrong

    def _ranges(self, metadata: Any) -> list[tuple[int, Any]]:
        return [(p, entry[1]) for p, entry in enumerate(metadata) if entry[1] is not None]

    def _ends(self, batches: Sequence[Any]) -> dict[int, int]:
        ends = dict.fromkeys(range(len(self.parts)), 0)
        for metadata in batches:
            ends.update({partition: end for partition, (_, end) in self._ranges(metadata)})
        return ends


_FEEDS: dict[str, EmittedFeed] = {}
"""By name: a spout is pickled, what it reads is not."""


class _Spout:
    output_fields = ("tx", "k", "g", "id")

    def __init__(self, name: str) -> None:
        self.name = name

    def get_coordinator(self, conf, context):
        return _Coordinator(self.name)


class _Tail(_Spout, PartitionedTransactionalSpout):
    def get_emitter(self, conf, context):
        return _Emitter(self.name)


class _OpaqueTail(_Spout, OpaquePartitionedTransactionalSpout):
    def get_emitter(self, conf, context):
        return _OpaqueEmitter(self.name)


class _Named:
    def __init__(self, name: str) -> None:
        self.feed = _FEEDS[name]

    def num_partitions(self):
        return len(self.feed.parts)

    def emit_range(self, attempt, collector, partition, found):
        for row in self.feed.kept(partition, *found):
            collector.emit([attempt, *row])


class _Coordinator(_Named, PartitionCoordinator):
    pass


class _Emitter(_Named, PartitionEmitter):
    def emit_partition_batch_new(self, attempt, collector, partition, last):
        found = self.feed.range_after(partition, last)
        self.emit_range(attempt, collector, partition, found)
        return found if found[1] > found[0] else None

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        self.emit_range(attempt, collector, partition, metadata)


class _OpaqueEmitter(_Named, OpaqueEmitter):
    def emit_partition_batch(self, attempt, collector, partition, last):
        found = self.feed.range_after(partition, last)
        self.emit_range(attempt, collector, partition, found)
        return found if found[1] > found[0] else None


def feed_of(name: str, source: Source, rng: random.Random, folder: Path) -> Feed:
    """Return the feed of a source."""
    if source.form == "files":
        return FilesFeed(name, source, rng, folder)
    return (EmittedFeed if source.form == "emitters" else LogFeed)(name, source, rng)
