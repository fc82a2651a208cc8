"""The partial results of windows that are still open, in a map state, run by run.

A run is what one batch has added: rows of keys, a time and partial results. It is kept in some
slots, keys `(partition, slot)` of the map, cut to a size that every store takes. Slot -1 holds the
contents: the watermark, and which run is in which slots. A slot is used again once its rows are
in no open window, so that the store does not grow.

A batch writes its own rows, not those of all keys: runs are merged into one another, key by key,
as they come, each time into one at least as large. So there are few runs, a row is rewritten a few
times, and the whole is not much larger than one row for each key of each open window.

Nothing is changed before `store`, and the map puts it under the batch's attempt: a replay finds
every slot as the batch before it left it, the watermark too.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._schema import Schema
from waterspout.errors import DamagedStoreError, TopologyError
from waterspout.state._base import MapState
from waterspout.trident.windowing.chunks import CHUNK_CHARS

__all__ = ["KEYS", "START", "VALUES", "StoredPartials", "StoredRun"]

KEYS = Schema.parse("part int, slot int")
VALUES = Schema.parse("partials string")

START = "_waterspout_start"
"""The column that says from when on the rows of a partial result are."""

_CONTENTS = -1
_FORMAT = 1
_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What the contents say of a run: its rows are read when they are needed."""

    slots: tuple[int, ...]
    rows: int
    first: int
    """The least start in it."""
    last: int


class StoredPartials:
    """What a state holds of open windows: read before a batch, changed and written with it."""

    def __init__(self, state: MapState[Any], schema: pa.Schema, shape: Mapping[str, Any]) -> None:
        self._state = state
        self._schema = schema
        self._shape = dict(shape)
        self._texts: dict[int, str] = {}
        self.runs: list[StoredRun] = []
        self.watermark: int | None = None
        """Windows that end up to here have been closed; None before the first time."""
        self.late = 0
        """How many rows were in no window, ever."""
        (contents,) = state.multi_get([_key(_CONTENTS)])
        if contents is not None:
            self._open(contents)

    def read(self, runs: Sequence[StoredRun]) -> pa.Table:
        """Return the rows of some runs, in order."""
        slots = [slot for run in runs for slot in run.slots]
        # What this batch puts into a slot reaches the map only with `store`.
        missing = [slot for slot in slots if slot not in self._texts]
        found = self._state.multi_get([_key(slot) for slot in missing]) if missing else []
        texts = self._texts | dict(zip(missing, found, strict=True))
        batches = [_decoded(texts[slot], self._schema, slot) for slot in slots]
        return pa.Table.from_batches(batches, self._schema)

    def append(self, table: pa.Table, merge: Callable[[pa.Table], pa.Table]) -> None:
        """Add a run; smaller runs before it become one with it."""
        while self.runs and self.runs[-1].rows <= table.num_rows:
            table = merge(pa.concat_tables([self.read([self.runs.pop()]), table]))
        if not table.num_rows:
            return
        starts = pc.min_max(table.column(START)).as_py()
        texts = list(_encoded(table))
        used = {slot for run in self.runs for slot in run.slots}
        free = (slot for slot in itertools.count() if slot not in used)
        slots = tuple(itertools.islice(free, len(texts)))
        self._texts |= dict(zip(slots, texts, strict=True))
        self.runs.append(StoredRun(slots, table.num_rows, starts["min"], starts["max"]))

    def store(self) -> None:
        """Put what has changed into the map."""
        runs = [[list(run.slots), run.rows, run.first, run.last] for run in self.runs]
        contents = {"format": _FORMAT, "shape": self._shape, "watermark": self.watermark}
        contents |= {"late": self.late, "runs": runs}
        used = {slot for run in self.runs for slot in run.slots}
        texts = {slot: text for slot, text in self._texts.items() if slot in used}
        texts[_CONTENTS] = json.dumps(contents, separators=(",", ":"))
        self._state.multi_put([_key(slot) for slot in texts], list(texts.values()))

    def _open(self, text: str) -> None:
        try:
            contents = json.loads(text)
            known, shape = contents["format"], contents["shape"]
            self.watermark, self.late = contents["watermark"], int(contents["late"])
            self.runs = [StoredRun(tuple(slots), *rest) for slots, *rest in contents["runs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedStoreError(f"the contents of a window cannot be read: {error}") from error
        if known != _FORMAT:
            raise DamagedStoreError(f"the window's store has format {known}; {_FORMAT} is known")
        _refuse_other_shape(shape, self._shape)


def _refuse_other_shape(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse partial results of other fields, or of panes that the windows now would cut."""
    finer = now["pane"] is not None and stored["pane"] is not None
    fits = now["pane"] % stored["pane"] == 0 if finer else now["pane"] == stored["pane"]
    same = {name: value for name, value in stored.items() if name != "pane"}
    if not fits or same != {name: value for name, value in now.items() if name != "pane"}:
        raise TopologyError(
            f"the store of a window holds {_told(stored)}, but the topology now has a window of "
            f"{_told(now)}; give the changed window another store"
        )


def _told(shape: Mapping[str, Any]) -> str:
    pane = f" in steps of {shape['pane']}" if shape["pane"] is not None else ""
    return f"({shape['fields']}) by {shape['by']}{pane}"


def _key(slot: int) -> tuple[int, int]:
    return (0, slot)


def _encoded(table: pa.Table) -> Iterator[str]:
    """Cut rows into texts of a size that every store takes."""
    for batch in table.combine_chunks().to_batches(max_chunksize=_CHUNK_ROWS):
        yield from _cut(batch)


def _cut(batch: pa.RecordBatch) -> Iterator[str]:
    text = base64.b64encode(zlib.compress(batch.serialize().to_pybytes(), 1)).decode("ascii")
    if len(text) <= CHUNK_CHARS or batch.num_rows == 1:
        yield text
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))


def _decoded(text: str | None, schema: pa.Schema, slot: int) -> pa.RecordBatch:
    if text is None:
        raise DamagedStoreError(
            f"partial results of a window are gone from the store: slot {slot} is empty. Restore "
            "the store from a copy; without it windows would lack rows."
        )
    try:
        data = zlib.decompress(base64.b64decode(text))
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    except (ValueError, zlib.error, pa.ArrowException, OSError) as error:
        raise DamagedStoreError(
            f"partial results of a window cannot be read: slot {slot}: {error}"
        ) from error
