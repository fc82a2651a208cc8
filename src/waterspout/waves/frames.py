"""Frames: the tuples that one task sends to another in a wave, by column, and their wire form.

A frame is pickled. It travels only through Spark's own channels, from our driver to our workers
and back, where the functions that run on it travel in the same way; it is never stored, and
never read from a file, a socket of ours or a database.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterspout._safe_repr import described
from waterspout.acking.xor import NO_ROOT, Ids, IdsKey, keyed_ids, no_ids
from waterspout.topology._column_batches import rows_of
from waterspout.topology._pickling import dumps, names_what_workers_lack

__all__ = [
    "ColumnLists",
    "Frame",
    "Unfit",
    "anchored",
    "edges_of",
    "halves",
    "pack",
    "parted",
    "unpack",
    "weeded",
]

# What a pickle always takes, whatever the value.
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})

# Texts that are sent as one have this between them: hardly any has it inside.
_BETWEEN = "\0"
_TEXT = {str}

# Fewer ids are not worth a look.
_RUNS_MIN = 64


class ColumnLists:
    """The values of some tuples as lists, one for each field; there is at least one field."""

    __slots__ = ("_kinds", "lists")

    def __init__(self, lists: Sequence[list[Any]]) -> None:
        self.lists = lists
        self._kinds: list[set[type]] | None = None

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]]) -> ColumnLists:
        """Return rows by column; there is at least one."""
        return cls([list(map(itemgetter(n), rows)) for n in range(len(rows[0]))])

    def __len__(self) -> int:
        return len(self.lists[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.lists, strict=True)

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, ColumnLists) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    @property
    def kinds(self) -> list[set[type]]:
        """The types of the values of each field; looked for once."""
        if self._kinds is None:
            self._kinds = [set(map(type, values)) for values in self.lists]
        return self._kinds

    def cut(self, start: int, end: int) -> ColumnLists:
        """Return the tuples from `start` to before `end`."""
        return ColumnLists([values[start:end] for values in self.lists])

    def pick(self, indices: Sequence[int]) -> ColumnLists:
        """Return some of the tuples."""
        return ColumnLists([[values[index] for index in indices] for values in self.lists])

    def __getstate__(self) -> list[Any]:
        return [
            _as_text(values) if kinds == _TEXT else values
            for values, kinds in zip(self.lists, self.kinds, strict=True)
        ]

    def __setstate__(self, state: list[Any]) -> None:
        self.lists = [each.split(_BETWEEN) if isinstance(each, str) else each for each in state]
        self._kinds = None


_Runs = tuple[Ids, npt.NDArray[np.unsignedinteger[Any]]]


def _by_runs(ids: Ids) -> Ids | _Runs:
    """Return ids as they travel: each once, and how often it comes, where many come in a row."""
    if len(ids) < _RUNS_MIN:
        return ids
    ends = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    if 4 * len(ends) > 3 * len(ids):
        return ids
    starts = np.concatenate([[0], ends])
    lengths = np.diff(starts, append=len(ids))
    return ids[starts], lengths.astype(np.min_scalar_type(int(lengths.max())))


def edges_of(roots: Ids, ids: Ids) -> Ids:
    """Return the id of each tuple that is in a tree, and 0 for the others."""
    ids[roots == NO_ROOT] = 0
    return ids


def _as_text(values: list[str]) -> str | list[str]:
    """Return many texts as one, if they can be told apart again.

    One long text is pickled, and cut into pieces again, in a third of the time that many take.
    """
    text = _BETWEEN.join(values)
    return text if text.count(_BETWEEN) == len(values) - 1 else values


@dataclass(slots=True)
class Frame:
    """Tuples from one task to another, in the order in which they were emitted.

    They are rows, or columns, as they were emitted; what comes from elsewhere is never rows, unless
    they are empty. `roots` and `edges` are None where no tuple is anchored. A tuple in several
    trees has root 0 there and its ids in `shared`.
    """

    source: int
    stream: str
    target: int
    values: list[tuple[Any, ...]] | ColumnLists | pa.RecordBatch
    roots: Ids | None = None
    edges: Ids | None = None
    shared: dict[int, dict[int, int]] | None = None
    born: int = 0
    """The wave in which it was sealed: a task executes older frames first."""
    key: IdsKey | None = None
    """What `edges` can be drawn from again; None: they have to travel, as parts of frames do."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_batch(self) -> bool:
        """Whether its values are an Arrow batch, as they were emitted."""
        return isinstance(self.values, pa.RecordBatch)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The values of each tuple."""
        if isinstance(self.values, pa.RecordBatch):
            return rows_of(self.values)
        return self.values if isinstance(self.values, list) else list(self.values)

    @property
    def lists(self) -> Sequence[list[Any]]:
        """The values by field; none where there are no tuples."""
        if isinstance(self.values, pa.RecordBatch):
            return [column.to_pylist() for column in self.values.columns]
        if isinstance(self.values, list):
            return ColumnLists.of_rows(self.values).lists if self.values else []
        return self.values.lists

    def each(self) -> Iterator[tuple[Any, ...]]:
        """Return the values of tuple after tuple; rows that are made for it do not last."""
        return iter(self.values if isinstance(self.values, list | ColumnLists) else self.rows)

    def cut(self, start: int, end: int) -> Frame:
        """Return the tuples from `start` to before `end`."""
        if isinstance(self.values, list):
            values: Any = self.values[start:end]
        elif isinstance(self.values, ColumnLists):
            values = self.values.cut(start, end)
        else:
            values = self.values.slice(start, end - start)
        shared = {i - start: ids for i, ids in (self.shared or {}).items() if start <= i < end}
        return replace(
            self,
            values=values,
            roots=None if self.roots is None else self.roots[start:end],
            edges=None if self.edges is None else self.edges[start:end],
            shared=shared or None,
            key=None,
        )

    def pick(self, indices: Sequence[int]) -> Frame:
        """Return some of the tuples, in ascending order."""
        shared = self.shared or {}
        found = {new: shared[old] for new, old in enumerate(indices) if old in shared}
        if isinstance(self.values, list):
            values: Any = [self.values[index] for index in indices]
        elif isinstance(self.values, ColumnLists):
            values = self.values.pick(indices)
        else:
            values = self.values.take(pa.array(indices, pa.int64()))
        return replace(
            self,
            values=values,
            roots=None if self.roots is None else self.roots[indices],
            edges=None if self.edges is None else self.edges[indices],
            shared=found or None,
            key=None,
        )

    def __getstate__(self) -> tuple[Any, ...]:
        # By column: a flat list is pickled much faster than a list of tuples.
        values: Any = self.values
        if isinstance(values, list):
            values = ColumnLists.of_rows(values) if values and values[0] else len(values)
        elif not isinstance(values, ColumnLists):
            values = _to_bytes(values)
        roots = None if self.roots is None else _by_runs(self.roots)
        edges = self.edges if self.key is None else None
        return (
            *(self.source, self.stream, self.target),
            *(values, roots, edges, self.shared, self.born, self.key),
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.source, self.stream, self.target, values, *ids = state
        if isinstance(values, bytes):
            self.values = _from_bytes(values)
        else:
            self.values = [()] * values if isinstance(values, int) else values
        roots, self.edges, self.shared, self.born, self.key = ids
        self.roots = np.repeat(*roots) if isinstance(roots, tuple) else roots
        if self.key is not None and self.roots is not None:
            self.edges = edges_of(self.roots, keyed_ids(self.key, len(self.roots)))


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
        if frame.is_batch:
            kept.append(frame)
            continue
        good: list[int] = []
        for index, values in enumerate(frame.each()):
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
    if isinstance(frame.values, ColumnLists):
        return all(map(_PLAIN.issuperset, frame.values.kinds))
    if isinstance(frame.values, list):
        width = len(frame.values[0]) if frame.values else 0
        return all(
            _PLAIN.issuperset(map(type, map(itemgetter(n), frame.values))) for n in range(width)
        )
    return True  # Arrow has no values that could not travel


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
