"""Outlets of a task: made for a wave, with the way to each subscriber, and sealed at its end.

Sealing turns what a task has emitted into frames, ids included. Ids are drawn for a whole box at
once, and reported to the tree when they are drawn. Storm reports them later, with the ack of the
tuple that they are anchored to. The XOR is the same; but here a tuple that a bolt holds over many
waves need not remember what was anchored to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from waterspout._safe_repr import shown
from waterspout.acking.xor import Ids, combine, draw, draw_key, keyed_ids
from waterspout.errors import EmitError
from waterspout.topology._column_batches import BatchRoute, ColumnBox, Indices, make_batch_route
from waterspout.topology._graph import Topology
from waterspout.topology._grouping import GroupingKind, Route, make_route, turn_of
from waterspout.topology._ports import UNANCHORED, Box, Outlet, nobody
from waterspout.waves.frames import ColumnLists, Frame, Unfit, anchored, edges_of

__all__ = ["Anchors", "Sealed", "cannot_travel", "first_values", "make_outlets", "seal"]


# Frames of so many tuples travel without the ids of these: they are drawn again from a key. Twice
# to begin to draw takes longer than to send fewer.
_KEYED_MIN = 256


def make_outlets(
    topology: Topology,
    task: int,
    turn: int,
    near: Callable[[str], Sequence[int]] | None = None,
) -> dict[str, Outlet]:
    """Return the outlets of a task for one wave.

    `near` names the tasks of a component that run in the same shard, later than this one. Where
    there are any, groupings that take any task are limited to these.
    """
    component = topology.component_of[task]
    context = topology.context(task)
    outlets: dict[str, Outlet] = {}
    for stream, schema in topology.components[component].streams.items():
        routes: list[Route] = []
        spread: list[BatchRoute] = []
        direct: set[int] = set()
        copies: int | None = 0
        for consumer, grouping in topology.subscribers.get((component, stream), []):
            tasks: Sequence[int] = topology.tasks[consumer.id]
            if grouping.kind is GroupingKind.DIRECT:
                direct.update(tasks)
                continue
            if near is not None and grouping.takes_any_task:
                tasks = near(consumer.id) or tasks
            copies = _more_copies(copies, grouping.kind, len(tasks))
            begin = turn_of(turn + 31 * task)
            route = make_route(
                grouping, schema.fields, tasks, context=context, stream=stream, turn=begin
            )
            routes.append(route)
            spread.append(make_batch_route(grouping, schema.fields, tasks, route, begin))
        outlets[stream] = Outlet(
            stream,
            schema.fields,
            _together(routes),
            frozenset(direct) if schema.direct else None,
            copies=1 if schema.direct else copies or None,
            spread=spread,
        )
    return outlets


def _more_copies(copies: int | None, kind: GroupingKind, tasks: int) -> int | None:
    """Return to how many tasks a tuple goes with one more subscriber; None: that differs."""
    if copies is None or kind is GroupingKind.CUSTOM:
        return None
    return copies + (tasks if kind is GroupingKind.ALL else 1)


def _together(routes: Sequence[Route]) -> Route:
    if not routes:
        return nobody
    if len(routes) == 1:
        return routes[0]

    def all_of(values: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple([task for route in routes for task in route(values)])

    return all_of


@dataclass(slots=True)
class Anchors:
    """The trees that emitted tuples may be anchored to, by the number in a box."""

    roots: Ids | None
    """By index of the input (or message); None: none is in a tree."""

    shared: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Inputs that are in several trees."""

    specials: Sequence[tuple[int, ...]] = ()
    """The roots of anchors -2, -3, ..."""


@dataclass(slots=True)
class Sealed:
    """Frames, and the ids that were created in them."""

    frames: list[Frame] = field(default_factory=list)
    roots: list[Ids] = field(default_factory=list)
    edges: list[Ids] = field(default_factory=list)
    emitted: dict[str, int] = field(default_factory=dict)
    """Calls of emit, by stream."""
    transferred: dict[str, int] = field(default_factory=dict)
    """Tuples in the frames, by stream."""


def seal(
    source: int,
    outlets: Iterable[Outlet],
    anchors: Anchors,
    ids: np.random.Generator,
    born: int = 0,
) -> Sealed:
    """Empty the outlets' boxes into frames of the wave `born`."""
    sealed = Sealed()
    for outlet in outlets:
        sealed.emitted[outlet.stream], sealed.transferred[outlet.stream] = outlet.take_counts()
        for target, box in outlet.boxes.items():
            values = ColumnLists([box.values]) if box.is_bare else box.values
            frame = Frame(source, outlet.stream, target, values, born=born)
            _close(frame, _numbers(box), anchors, ids, sealed)
        for target, chunks in outlet.chunks.items():
            for batch, numbers in _joined(chunks):
                frame = Frame(source, outlet.stream, target, batch, born=born)
                _close(frame, numbers, anchors, ids, sealed)
        outlet.clear()
    return sealed


def _numbers(box: Box) -> Indices:
    """Return what each tuple of a box is anchored to."""
    if box.anchors:
        return np.array(box.anchors, np.int64)
    return np.full(len(box.values), UNANCHORED)


def _joined(chunks: Sequence[ColumnBox]) -> list[tuple[pa.RecordBatch, Indices]]:
    """Return chunks as few batches: one, unless their columns are of several types."""
    groups: list[list[ColumnBox]] = []
    for chunk in chunks:
        if groups and groups[-1][0].batch.schema == chunk.batch.schema:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    joined = []
    for group in groups:
        batch = group[0].batch
        if len(group) > 1:
            whole = pa.Table.from_batches([chunk.batch for chunk in group]).combine_chunks()
            (batch,) = whole.to_batches()
        joined.append((batch, np.concatenate([chunk.anchors for chunk in group])))
    return joined


def _close(
    frame: Frame, numbers: Indices, anchors: Anchors, ids: np.random.Generator, sealed: Sealed
) -> None:
    """Give the tuples of a frame their ids, and note them."""
    _identify(frame, numbers, anchors, ids)
    sealed.frames.append(frame)
    if frame.roots is not None or frame.shared:
        roots, edges = anchored(frame)
        sealed.roots.append(roots)
        sealed.edges.append(edges)


def cannot_travel(topology: Topology, unfit: Unfit) -> EmitError:
    """Return the error of a tuple with a value that cannot be sent to another process."""
    frame = unfit.frame
    component = topology.component_of[frame.source]
    field = topology.fields[component][frame.stream][unfit.field]
    (values,) = frame.rows
    return EmitError(
        f"{component!r} emitted a value for field {field!r} of stream {frame.stream!r} that "
        f"cannot be sent to another process, {shown(values[unfit.field])}: {unfit.reason}"
    )


def first_values(roots: Ids, sealed: Sealed) -> Ids:
    """Return, for each root, the XOR of the ids of the tuples that its message began as."""
    known, values = combine(sealed.roots, sealed.edges)
    first = np.zeros(len(roots), np.uint64)
    if len(known):
        positions = np.minimum(np.searchsorted(known, roots), len(known) - 1)
        found = known[positions] == roots
        first[found] = values[positions[found]]
    return first


def _identify(frame: Frame, numbers: Indices, anchors: Anchors, ids: np.random.Generator) -> None:
    if anchors.roots is None and not anchors.shared and not anchors.specials:
        return
    roots = np.zeros(len(numbers), np.uint64)
    if anchors.roots is not None:
        plain = numbers >= 0
        roots[plain] = anchors.roots[numbers[plain]]
    if roots.any():
        frame.key = draw_key(ids) if len(numbers) >= _KEYED_MIN else None
        count = len(numbers)
        drawn = draw(ids, count) if frame.key is None else keyed_ids(frame.key, count)
        frame.roots, frame.edges = roots, edges_of(roots, drawn)
    if anchors.shared or anchors.specials:
        frame.shared = _shared(numbers, anchors, ids) or None


def _shared(
    numbers: Indices, anchors: Anchors, ids: np.random.Generator
) -> dict[int, dict[int, int]]:
    """Return the ids of tuples whose anchors are in several trees, or were kept."""
    found: dict[int, dict[int, int]] = {}
    for index, number in enumerate(numbers.tolist()):
        if number < UNANCHORED:
            roots: Sequence[int] = anchors.specials[-2 - number]
        elif number in anchors.shared:
            roots = list(anchors.shared[number])
        else:
            continue
        edges = draw(ids, len(roots)).tolist()
        found[index] = dict(zip(roots, edges, strict=True))
    return found
