"""`AckLedger`: one acker's trees, in arrays. No clock, no I/O.

21 bytes for each pending tree, whatever its size: root, value, spout task, age. Rows are sorted
by root, so that a whole wave is looked up at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from waterspout.acking.xor import Ids, no_ids

__all__ = ["AckLedger", "Trees"]


@dataclass(frozen=True, slots=True)
class Trees:
    """Some trees and the spout tasks that their messages came from."""

    roots: Ids
    tasks: npt.NDArray[np.int32]

    @classmethod
    def none(cls) -> Trees:
        """No tree at all."""
        return cls(no_ids(), np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.roots)

    def __add__(self, other: Trees) -> Trees:
        return Trees(
            np.concatenate([self.roots, other.roots]), np.concatenate([self.tasks, other.tasks])
        )


class AckLedger:
    """Pending trees: opened once, changed by XOR, removed when complete, failed or too old."""

    def __init__(self) -> None:
        self._roots: Ids = no_ids()
        self._values: Ids = no_ids()
        self._tasks: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._ages: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._roots)

    @property
    def nbytes(self) -> int:
        """Bytes that the pending trees take."""
        return self._roots.nbytes + self._values.nbytes + self._tasks.nbytes + self._ages.nbytes

    def open(self, roots: Ids, values: Ids, tasks: npt.NDArray[np.int32]) -> Trees:
        """Add trees; return those whose root is taken already, which are not added."""
        order = np.argsort(roots, kind="stable")
        roots, values, tasks = roots[order], values[order], tasks[order]
        positions = np.searchsorted(self._roots, roots)
        taken = np.r_[False, roots[1:] == roots[:-1]] if len(roots) else np.empty(0, bool)
        within = positions < len(self._roots)
        taken[within] |= self._roots[positions[within]] == roots[within]
        refused = Trees(roots[taken], tasks[taken])
        free = ~taken
        positions = positions[free]
        self._roots = np.insert(self._roots, positions, roots[free])
        self._values = np.insert(self._values, positions, values[free])
        self._tasks = np.insert(self._tasks, positions, tasks[free])
        self._ages = np.insert(self._ages, positions, np.uint8(0))
        return refused

    def change(self, roots: Ids, values: Ids) -> None:
        """XOR values, one for each root, into their trees; unknown roots are ignored."""
        positions, known = self._find(roots)
        self._values[positions] ^= values[known]

    def reset(self, roots: Ids) -> None:
        """Make trees young again."""
        positions, _ = self._find(roots)
        self._ages[positions] = 0

    def take_complete(self) -> Trees:
        """Remove and return the trees with nothing outstanding."""
        return self._take(self._values == 0)

    def take(self, roots: Ids) -> Trees:
        """Remove and return those of these trees that are pending."""
        chosen = np.zeros(len(self._roots), bool)
        positions, _ = self._find(roots)
        chosen[positions] = True
        return self._take(chosen)

    def grow_older(self, limit: int) -> Trees:
        """Let all trees age by one; remove and return those that have reached the limit."""
        self._ages += np.uint8(1)
        return self._take(self._ages >= limit)

    def _find(self, roots: Ids) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Return the rows of known roots, and which of the given ones are known."""
        positions = np.searchsorted(self._roots, roots)
        known = positions < len(self._roots)
        known[known] = self._roots[positions[known]] == roots[known]
        return positions[known], known

    def _take(self, chosen: npt.NDArray[np.bool_]) -> Trees:
        if not chosen.any():
            return Trees.none()
        taken = Trees(self._roots[chosen], self._tasks[chosen])
        kept = ~chosen
        self._roots, self._values = self._roots[kept], self._values[kept]
        self._tasks, self._ages = self._tasks[kept], self._ages[kept]
        return taken
