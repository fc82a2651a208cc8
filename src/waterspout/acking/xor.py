"""Ids of tuple trees, and how reports about them are combined. Arrays in, arrays out.

The value of a tree is the XOR of the ids of all tuples that were created in it and are not yet
acked: an id enters when its tuple is emitted and leaves when it is acked, and XOR does not care
about the order. Zero means that nothing is outstanding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = [
    "NO_ROOT",
    "Ids",
    "IdsKey",
    "combine",
    "draw",
    "draw_key",
    "draw_roots",
    "generator",
    "keyed_ids",
    "no_ids",
]

Ids = npt.NDArray[np.uint64]

IdsKey = tuple[int, int]
"""What ids can be drawn from, again and again: where they travel it goes instead of them."""

NO_ROOT = 0
"""The root of a tuple that belongs to no tree."""


def generator(seed: Sequence[int]) -> np.random.Generator:
    """Return a source of ids: the same one for the same seed, so that a retried task repeats them.

    Philox is not linear over XOR, as Mersenne Twister and xorshift are: those have sets of outputs
    whose XOR is always zero.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed))))


def draw_key(ids: np.random.Generator) -> IdsKey:
    """Return a random key."""
    first, second = ids.integers(0, 2**64, size=2, dtype=np.uint64).tolist()
    return first, second


def keyed_ids(key: IdsKey, count: int) -> Ids:
    """Return 64-bit ids, none of them zero: the same ones for the same key, wherever it gets.

    Straight from the bit generator, whose numbers numpy never changes. What a `Generator` makes of
    them may differ between the versions of two machines, and no tree would ever be whole.
    """
    ids: Ids = np.random.Philox(key=np.array(key, np.uint64)).random_raw(count)
    ids[ids == 0] = 1
    return ids


def draw(ids: np.random.Generator, count: int) -> Ids:
    """Return random 64-bit ids, none of them zero."""
    return ids.integers(1, 2**64, size=count, dtype=np.uint64)


def draw_roots(ids: np.random.Generator, count: int) -> Ids:
    """Return random roots for messages, ascending.

    What belongs to a message is sorted by its root again and again. What comes in order, or in a
    few runs that are in order, is sorted in a fraction of the time.
    """
    return np.sort(draw(ids, count))


def no_ids() -> Ids:
    """Return an empty array of ids."""
    return np.empty(0, np.uint64)


def combine(roots: Sequence[Ids], values: Sequence[Ids]) -> tuple[Ids, Ids]:
    """Return each root once, ascending, with the XOR of its values; what is zero is left out."""
    if not any(map(len, roots)):
        return no_ids(), no_ids()
    # What a message became comes in a row, as a rule: to sort that would be most of the work.
    short = [_by_runs(*pair) for pair in zip(roots, values, strict=True) if len(pair[0])]
    all_roots = np.concatenate([each for each, _ in short])
    all_values = np.concatenate([each for _, each in short])
    order = np.argsort(all_roots, kind="stable")
    distinct, combined = _by_runs(all_roots[order], all_values[order])
    kept = (combined != 0) & (distinct != NO_ROOT)
    return distinct[kept], combined[kept]


def _by_runs(roots: Ids, values: Ids) -> tuple[Ids, Ids]:
    """Return the XOR of the values of each run of equal roots."""
    starts = np.flatnonzero(np.r_[True, roots[1:] != roots[:-1]])
    return roots[starts], np.bitwise_xor.reduceat(values, starts)
