"""Reading a log on executors: ranges in, tuples with fresh trees out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from waterspout.acking.xor import Ids, draw_roots, no_ids
from waterspout.errors import EmitError
from waterspout.topology._column_batches import Indices, as_indices
from waterspout.topology._ports import UNANCHORED, Outlet
from waterspout.waves.outlets import Anchors, Sealed, first_values, seal

__all__ = ["LogRange", "LogRead", "OpenedLog", "halved", "read_log"]

_NO_LIMIT = np.iinfo(np.int64).max

LogRange = tuple[Any, int, int]
"""Partition, first offset, offset after the last."""


@dataclass(frozen=True, slots=True)
class LogRead:
    """What one task of a log's spout has to read in a wave."""

    task: int
    ranges: tuple[LogRange, ...]
    tracked: bool
    messages: int
    """About how many they are; offsets need not count them."""


@dataclass(slots=True)
class OpenedLog:
    """The messages that were read, by range: offsets, roots, and the first value of each tree."""

    task: int
    ranges: list[LogRange]
    offsets: list[npt.NDArray[np.int64]]
    roots: list[Ids]
    values: list[Ids]


def read_log(
    spout: Any,
    read: LogRead,
    outlets: Mapping[str, Outlet],
    ids: np.random.Generator,
    born: int = 0,
) -> tuple[OpenedLog, Sealed]:
    """Emit every message of the ranges, each the root of a tree of its own."""
    opened = OpenedLog(read.task, [], [], [], [])
    whole = Sealed()
    outlet = outlets["default"]
    for partition, start, end in read.ranges:
        batches = spout.read_batch(partition, start, end)
        if batches is None:
            offsets = _emit_each(spout.read(partition, start, end), outlet, tracked=read.tracked)
        else:
            offsets = _emit_batches(batches, outlet, tracked=read.tracked)
        roots = draw_roots(ids, len(offsets)) if read.tracked else no_ids()
        sealed = seal(read.task, outlets.values(), Anchors(roots), ids, born)
        opened.ranges.append((partition, start, end))
        opened.offsets.append(offsets)
        opened.roots.append(roots)
        opened.values.append(first_values(roots, sealed))
        whole.frames += sealed.frames
        for name, count in sealed.emitted.items():
            whole.emitted[name] = whole.emitted.get(name, 0) + count
            sent = whole.transferred.get(name, 0) + sealed.transferred[name]
            whole.transferred[name] = sent
    return opened, whole


def _emit_each(
    messages: Iterable[tuple[int, Sequence[Any]]], outlet: Outlet, *, tracked: bool
) -> Indices:
    offsets: list[int] = []
    for offset, values in messages:
        outlet.put(values, len(offsets) if tracked else UNANCHORED)
        offsets.append(offset)
    return np.array(offsets, np.int64)


def _emit_batches(batches: Iterable[tuple[Any, Any]], outlet: Outlet, *, tracked: bool) -> Indices:
    found: list[Indices] = []
    count = 0
    for numbers, columns in batches:
        batch = outlet.batch(columns)
        offsets = as_indices(numbers, "the offsets", _NO_LIMIT)
        if len(offsets) != batch.num_rows:
            raise EmitError(
                f"read_batch gave {len(offsets)} offsets and {batch.num_rows} messages; there is "
                "one offset for each message"
            )
        first, count = count, count + len(offsets)
        anchors = np.arange(first, count) if tracked else np.full(len(offsets), UNANCHORED)
        outlet.send_batch(batch, anchors)
        found.append(offsets)
    return np.concatenate([np.empty(0, np.int64), *found])


def halved(reads: Sequence[LogRead]) -> tuple[list[LogRead], list[LogRead]]:
    """Return the first and the second half of what is to be read: of the ranges, or of the one."""
    single = [
        LogRead(read.task, (each,), read.tracked, max(1, read.messages // len(read.ranges)))
        for read in reads
        for each in read.ranges
    ]
    if len(single) > 1:
        middle = (len(single) + 1) // 2
        return single[:middle], single[middle:]
    (read,) = single
    ((partition, start, end),) = read.ranges
    cut = (start + end + 1) // 2
    messages = max(1, read.messages // 2)
    return (
        [replace(read, ranges=((partition, start, cut),), messages=messages)],
        [replace(read, ranges=((partition, cut, end),), messages=messages)],
    )
