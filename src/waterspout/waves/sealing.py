"""Sealing: turning what a task has emitted in a wave into frames, ids included.

Ids are drawn for a whole box at once, and reported to the tree when they are drawn. Storm reports
them later, with the ack of the tuple that they are anchored to. The XOR is the same; but here a
tuple that a bolt holds over many waves need not remember what was anchored to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from waterspout.acking.xor import NO_ROOT, Ids, combine, draw
from waterspout.topology.ports import UNANCHORED, Box, Outlet
from waterspout.waves.frames import Frame, anchored

__all__ = ["Anchors", "Sealed", "first_values", "seal"]


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
        for target, box in outlet.boxes.items():
            frame = _frame(source, outlet.stream, target, box, anchors, ids)
            frame.born = born
            sealed.frames.append(frame)
            if frame.roots is not None or frame.shared:
                roots, edges = anchored(frame)
                sealed.roots.append(roots)
                sealed.edges.append(edges)
        outlet.boxes.clear()
    return sealed


def first_values(roots: Ids, sealed: Sealed) -> Ids:
    """Return, for each root, the XOR of the ids of the tuples that its message began as."""
    known, values = combine(sealed.roots, sealed.edges)
    first = np.zeros(len(roots), np.uint64)
    if len(known):
        positions = np.minimum(np.searchsorted(known, roots), len(known) - 1)
        found = known[positions] == roots
        first[found] = values[positions[found]]
    return first


def _frame(
    source: int,
    stream: str,
    target: int,
    box: Box,
    anchors: Anchors,
    ids: np.random.Generator,
) -> Frame:
    frame = Frame(source, stream, target, box.values)
    if anchors.roots is None and not anchors.shared and not anchors.specials:
        return frame
    numbers = np.array(box.anchors, np.int64)
    roots = np.zeros(len(numbers), np.uint64)
    if anchors.roots is not None:
        plain = numbers >= 0
        roots[plain] = anchors.roots[numbers[plain]]
    edges = draw(ids, len(numbers))
    edges[roots == NO_ROOT] = 0
    if roots.any():
        frame.roots, frame.edges = roots, edges
    if anchors.shared or anchors.specials:
        frame.shared = _shared(numbers, anchors, ids) or None
    return frame


def _shared(
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]],
    anchors: Anchors,
    ids: np.random.Generator,
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
