"""Boxes in layers, from top to bottom: none overlaps another, few lines cross. Pure functions.

The usual steps: long edges are cut by points in each layer between, layers are ordered by where
their neighbours are, and places are the nearest to those of the neighbours that keep the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Box", "Laid", "lay_out"]

_ROUNDS = 16
_BESIDE = 28.0
"""Between two boxes of a layer."""

_POINT = 14.0
"""The width that a passing edge takes."""


@dataclass(frozen=True, slots=True)
class Box:
    """Something to be placed; edges are given as pairs of indexes, the upper one first."""

    layer: int
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Laid:
    """Where things are: the middle of each box, and where each edge passes each layer."""

    xs: tuple[float, ...]
    passes: tuple[tuple[float, ...], ...]
    """For each edge its x in each layer between its ends."""

    left: float
    right: float


@dataclass(slots=True)
class _Spot:
    width: float
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    is_point: bool = False


def lay_out(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> Laid:
    """Place boxes in their layers; every edge must lead to a lower layer."""
    spots = [_Spot(box.width) for box in boxes]
    layers: list[list[int]] = [[] for _ in range(1 + max(box.layer for box in boxes))]
    for index, box in enumerate(boxes):
        layers[box.layer].append(index)
    chains = [_cut(spots, layers, boxes, edge) for edge in edges]
    layers = _ordered(spots, layers)
    xs = _placed(spots, layers)
    return Laid(
        tuple(xs[: len(boxes)]),
        tuple(tuple(xs[spot] for spot in chain) for chain in chains),
        min(x - spot.width / 2 for x, spot in zip(xs, spots, strict=True)),
        max(x + spot.width / 2 for x, spot in zip(xs, spots, strict=True)),
    )


def _cut(
    spots: list[_Spot], layers: list[list[int]], boxes: Sequence[Box], edge: tuple[int, int]
) -> list[int]:
    """Put a point into every layer that an edge passes; return the points."""
    before, last = edge
    points = []
    for layer in range(boxes[before].layer + 1, boxes[last].layer):
        points.append(len(spots))
        layers[layer].append(len(spots))
        spots.append(_Spot(_POINT, is_point=True))
    for point in [*points, last]:
        spots[before].down.append(point)
        spots[point].up.append(before)
        before = point
    return points


def _ordered(spots: Sequence[_Spot], layers: list[list[int]]) -> list[list[int]]:
    """Return the layers in an order in which few edges cross."""
    best, fewest = layers, _crossings(spots, layers)
    current = [list(layer) for layer in layers]
    for turn in range(_ROUNDS):
        downward = turn % 2 == 0
        numbers = range(1, len(current)) if downward else range(len(current) - 2, -1, -1)
        for number in numbers:
            beside = current[number - 1] if downward else current[number + 1]
            rank = {spot: place for place, spot in enumerate(beside)}
            current[number] = _by_neighbours(spots, current[number], rank, downward)
        crossings = _crossings(spots, current)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in current], crossings
    return best


def _by_neighbours(
    spots: Sequence[_Spot], layer: Sequence[int], rank: dict[int, int], downward: bool
) -> list[int]:
    def middle(place: int, spot: int) -> float:
        near = spots[spot].up if downward else spots[spot].down
        return sum(rank[one] for one in near) / len(near) if near else float(place)

    keys = {spot: (middle(place, spot), place) for place, spot in enumerate(layer)}
    return sorted(layer, key=keys.__getitem__)


def _crossings(spots: Sequence[_Spot], layers: Sequence[Sequence[int]]) -> int:
    count = 0
    for upper, lower in pairwise(layers):
        rank = {spot: place for place, spot in enumerate(lower)}
        ends = [sorted(rank[one] for one in spots[spot].down) for spot in upper]
        count += sum(
            a > b for i, first in enumerate(ends) for later in ends[i + 1 :] for a in first
            for b in later
        )  # fmt: skip
    return count


def _placed(spots: Sequence[_Spot], layers: Sequence[Sequence[int]]) -> list[float]:
    """Return the middle of each spot: near its neighbours, in order, none over another."""
    xs = [0.0] * len(spots)
    for layer in layers:
        _settle(spots, layer, xs, [0.0] * len(layer))
    for turn in range(_ROUNDS):
        downward = turn % 2 == 0
        for layer in layers if downward else layers[::-1]:
            near = [spots[spot].up if downward else spots[spot].down for spot in layer]
            wanted = [_mean(xs, one or [spot]) for one, spot in zip(near, layer, strict=True)]
            _settle(spots, layer, xs, wanted)
    rods = _rods(spots)
    for turn in range(3 * _ROUNDS):
        targets = dict[int, float]()
        for rod, outside in rods:
            # First to where the neighbours are, at last only straight.
            where = _mean(xs, outside if outside and turn < _ROUNDS else rod)
            targets |= dict.fromkeys(rod, where)
        for layer in layers:
            _settle(spots, layer, xs, [targets[spot] for spot in layer])
    return xs


def _rods(spots: Sequence[_Spot]) -> list[tuple[list[int], list[int]]]:
    """Return what should stand straight below each other, with the neighbours at the ends."""
    rods = []
    seen: set[int] = set()
    for first in range(len(spots)):
        if first in seen:
            continue
        rod = [first]
        while (above := _only(spots, rod[0], down=False)) is not None:
            rod.insert(0, above)
        while (below := _only(spots, rod[-1], down=True)) is not None:
            rod.append(below)
        seen.update(rod)
        rods.append((rod, spots[rod[0]].up + spots[rod[-1]].down))
    return rods


def _only(spots: Sequence[_Spot], spot: int, *, down: bool) -> int | None:
    """Return the neighbour on one side, if both have only each other there."""
    near = spots[spot].down if down else spots[spot].up
    if len(near) != 1:
        return None
    back = spots[near[0]].up if down else spots[near[0]].down
    return near[0] if len(back) == 1 else None


def _mean(xs: Sequence[float], spots: Sequence[int]) -> float:
    return sum(xs[spot] for spot in spots) / len(spots)


def _settle(
    spots: Sequence[_Spot], layer: Sequence[int], xs: list[float], wanted: Sequence[float]
) -> None:
    """Move a layer's spots as near as possible to where they are wanted, apart from each other.

    Spots that would overlap become a block, which goes where its spots want it on average.
    """
    offsets = [0.0]
    for left, right in pairwise(layer):
        apart = (spots[left].width + spots[right].width) / 2 + _BESIDE
        offsets.append(offsets[-1] + apart)
    blocks: list[tuple[float, float, int]] = []  # where, how heavy, how many spots
    for place, spot in enumerate(layer):
        weight = 4.0 if spots[spot].is_point else 1.0  # a bent line looks worse than a moved box
        block = (wanted[place] - offsets[place], weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            where, heavy, many = blocks.pop()
            total = heavy + block[1]
            block = ((where * heavy + block[0] * block[1]) / total, total, many + block[2])
        blocks.append(block)
    place = 0
    for where, _, many in blocks:
        for _ in range(many):
            xs[layer[place]] = where + offsets[place]
            place += 1
