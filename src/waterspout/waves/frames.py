"""Frames: the tuples that one task sends to another in a wave, by column, and their wire form.

A frame is pickled. It travels only through Spark's own channels, from our driver to our workers
and back, where the functions that run on it travel in the same way; it is never stored, and
never read from a file, a socket of ours or a database.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from waterspout._safe_repr import described
from waterspout.acking.xor import Ids, no_ids
from waterspout.topology._column_batches import rows_of
from waterspout.topology._pickling import dumps, names_what_workers_lack

__all__ = ["Frame", "Unfit", "anchored", "halves", "pack", "parted", "unpack", "weeded"]

# What a pickle always takes, whatever the value.
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


@dataclass(slots=True)
class Frame:
    """Tuples from one task to another, in the order in which they were emitted.

    They are rows, or a batch of columns, as they were emitted. `roots` and `edges` are None where
    no tuple is anchored. A tuple in several trees has root 0 there and its ids in `shared`.
    """

    source: int
    stream: str
    target: int
    values: list[tuple[Any, ...]] | pa.RecordBatch
    roots: Ids | None = None
    edges: Ids | None = None
    shared: dict[int, dict[int, int]] | None = None
    born: int = 0
    """The wave in which it was sealed: a task executes older frames first."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The values of each tuple."""
        return self.values if isinstance(self.values, list) else rows_of(self.values)

    def cut(self, start: int, end: int) -> Frame:
        """Return the tuples from `start` to before `end`."""
        if isinstance(self.values, list):
            values: Any = self.values[start:end]
        else:
            values = self.values.slice(start, end - start)
        shared = {i - start: ids for i, ids in (self.shared or {}).items() if start <= i < end}
        return replace(
            self,
            values=values,
            roots=None if self.roots is None else self.roots[start:end],
            edges=None if self.edges is None else self.edges[start:end],
            shared=shared or None,
        )

    def pick(self, indices: Sequence[int]) -> Frame:
        """Return some of the tuples, in ascending order."""
        shared = self.shared or {}
        found = {new: shared[old] for new, old in enumerate(indices) if old in shared}
        if isinstance(self.values, list):
            values = [self.values[index] for index in indices]
        else:
            values = self.values.take(pa.array(indices, pa.int64()))
        return replace(
            self,
            values=values,
            roots=None if self.roots is None else self.roots[indices],
            edges=None if self.edges is None else self.edges[indices],
            shared=found or None,
        )

    def __getstate__(self) -> tuple[Any, ...]:
        # By column: a flat list of strings is pickled much faster than a list of tuples.
        columns: Any
        if isinstance(self.values, list):
            width = len(self.values[0]) if self.values else 0
            columns = [[row[i] for row in self.values] for i in range(width)]
        else:
            columns = _to_bytes(self.values)
        return (
            *(self.source, self.stream, self.target),
            *(len(self.values), columns, self.roots, self.edges, self.shared, self.born),
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.source, self.stream, self.target, count, columns, *ids = state
        if isinstance(columns, bytes):
            self.values = _from_bytes(columns)
        else:
            self.values = list(zip(*columns, strict=True)) if columns else [()] * count
        self.roots, self.edges, self.shared, self.born = ids


def _to_bytes(batch: pa.RecordBatch) -> bytes:
    """Return a batch as bytes: of a slice only the slice, which a pickle would not do."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _from_bytes(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def pack(thing: Any, reducers: Mapping[type, Callable[[Any], Any]] | None = None) -> bytes:
    """Return the wire form of frames and of what travels with them; of some types as given.

    Objects of classes that the other side cannot import go with their class: that is slower.
    """
    try:
        packed = _pickled(thing, reducers)
    except Exception:
        return dumps(thing, reducers)
    return dumps(thing, reducers) if names_what_workers_lack(packed) else packed


def _pickled(thing: Any, reducers: Mapping[type, Callable[[Any], Any]] | None) -> bytes:
    if not reducers:
        return pickle.dumps(thing, protocol=5)
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.dispatch_table = {**copyreg.dispatch_table, **reducers}
    pickler.dump(thing)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """Read the wire form back."""
    return pickle.loads(data)  # noqa: S301  (see the module's docstring)


@dataclass(frozen=True, slots=True)
class Unfit:
    """A tuple that cannot travel: alone in its frame, with the place of the value and why."""

    frame: Frame
    field: int
    reason: str


def weeded(frames: list[Frame]) -> tuple[list[Frame], list[Unfit]]:
    """Return frames without the tuples that cannot be pickled, and these."""
    odd = [frame for frame in frames if not _is_plain(frame)]
    if not odd or _why_not([frame.rows for frame in odd]) is None:
        return frames, []
    kept: list[Frame] = []
    unfit: list[Unfit] = []
    for frame in frames:
        if not isinstance(frame.values, list):
            kept.append(frame)
            continue
        good: list[int] = []
        for index, values in enumerate(frame.values):
            for place, value in enumerate(values):
                reason = None if type(value) in _PLAIN else _why_not(value)
                if reason is not None:
                    unfit.append(Unfit(frame.cut(index, index + 1), place, reason))
                    break
            else:
                good.append(index)
        kept.append(frame if len(good) == len(frame) else frame.pick(good))
    return [frame for frame in kept if len(frame)], unfit


def _is_plain(frame: Frame) -> bool:
    if not isinstance(frame.values, list):
        return True  # Arrow has no values that could not travel
    return _PLAIN.issuperset(map(type, chain.from_iterable(frame.values)))


def _why_not(thing: Any) -> str | None:
    """Return why something cannot be pickled; None if it can."""
    try:
        pack(thing)
    except Exception as error:
        return described(error)
    return None


def anchored(frame: Frame) -> tuple[Ids, Ids]:
    """Return the roots and edges of a frame, all of them, shared ones included."""
    roots = [no_ids() if frame.roots is None else frame.roots]
    edges = [no_ids() if frame.edges is None else frame.edges]
    for ids in (frame.shared or {}).values():
        roots.append(np.fromiter(ids.keys(), np.uint64, len(ids)))
        edges.append(np.fromiter(ids.values(), np.uint64, len(ids)))
    return np.concatenate(roots), np.concatenate(edges)


def parted(frames: list[Frame], roots: Collection[int]) -> tuple[list[Frame], list[list[Frame]]]:
    """Return frames without the tuples of some trees, and the frames of each of these trees."""
    if not roots:
        return frames, []
    others: list[Frame] = []
    apart: dict[int, list[Frame]] = {root: [] for root in roots}
    for frame in frames:
        if frame.roots is None:
            others.append(frame)
            continue
        chosen = np.isin(frame.roots, np.array(list(roots), np.uint64))
        for index in np.flatnonzero(chosen).tolist():
            apart[int(frame.roots[index])].append(frame.cut(index, index + 1))
        others.append(frame.pick(np.flatnonzero(~chosen).tolist()))
    return [frame for frame in others if len(frame)], [each for each in apart.values() if each]


def halves(frames: Iterable[Frame]) -> tuple[list[Frame], list[Frame]]:
    """Return the first and the second half of all tuples; the first is not the smaller one."""
    given = list(frames)
    room = (sum(map(len, given)) + 1) // 2
    first: list[Frame] = []
    second: list[Frame] = []
    for frame in given:
        taken = min(room, len(frame))
        room -= taken
        if taken:
            first.append(frame.cut(0, taken))
        if taken < len(frame):
            second.append(frame.cut(taken, len(frame)))
    return first, second
