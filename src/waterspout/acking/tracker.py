"""`AckTracker`: all ackers of a topology, and the time that their trees are given.

`__acker` task n of N has the trees whose root is n modulo N, as in Storm; here the tasks are
ledgers in the driver, fed with one combined report a wave (docs/decisions/0009).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from waterspout.acking.xor import Ids, no_ids

__all__ = ["AckLedger", "AckTracker", "Decided", "TreeReport", "Trees"]

# Two buckets, as Storm's spouts have: a tree times out after one to two periods.
_BUCKETS = 2


@dataclass(frozen=True, slots=True)
class Trees:
    """Some trees and the spout tasks that their messages came from."""

    roots: Ids
    tasks: npt.NDArray[np.int32]

    @classmethod
    def none(cls) -> Trees:
        return cls(no_ids(), np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.roots)

    def __add__(self, other: Trees) -> Trees:
        return Trees(
            np.concatenate([self.roots, other.roots]), np.concatenate([self.tasks, other.tasks])
        )


class AckLedger:
    """One acker's pending trees: opened once, changed by XOR, removed when complete, failed or old.

    21 bytes for each tree, whatever its size: root, value, spout task, age. Rows are sorted by
    root, so that a whole wave is looked up at once. No clock in here.
    """

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


@dataclass(frozen=True, slots=True)
class TreeReport:
    """What a wave has done to trees: one combined value for each root it touched."""

    roots: Ids = field(default_factory=no_ids)
    values: Ids = field(default_factory=no_ids)
    failed: Ids = field(default_factory=no_ids)
    reset: Ids = field(default_factory=no_ids)


@dataclass(frozen=True, slots=True)
class Decided:
    """Trees whose outcome is known: each of them is in one of the two, once."""

    acked: Trees
    failed: Trees


class AckTracker:
    """Opens trees, applies reports, and tells which messages are done, failed or timed out."""

    def __init__(self, ackers: int, timeout_s: float | None, now: float) -> None:
        if ackers < 1:
            raise ValueError("without ackers nothing is tracked")
        self._ledgers = [AckLedger() for _ in range(ackers)]
        self._timeout_s = timeout_s
        self._rotated = self._looked = now

    def __len__(self) -> int:
        return sum(map(len, self._ledgers))

    @property
    def nbytes(self) -> int:
        """Bytes that all pending trees take."""
        return sum(ledger.nbytes for ledger in self._ledgers)

    def open(self, roots: Ids, values: Ids, tasks: npt.NDArray[np.int32]) -> Trees:
        """Begin to track trees; return those refused because their random root is taken."""
        refused = Trees.none()
        for ledger, mine in self._shards(roots):
            refused += ledger.open(roots[mine], values[mine], tasks[mine])
        return refused

    def apply(self, report: TreeReport) -> Decided:
        """Apply the report of a whole wave; return the trees that it ended.

        A tree that is complete is acked even if something in it has failed as well: Storm checks
        in this order, and a tuple that failed is never acked, so that the two do not meet.
        """
        for ledger, mine in self._shards(report.reset):
            ledger.reset(report.reset[mine])
        for ledger, mine in self._shards(report.roots):
            ledger.change(report.roots[mine], report.values[mine])
        acked, failed = Trees.none(), Trees.none()
        for ledger in self._ledgers:
            acked += ledger.take_complete()
        for ledger, mine in self._shards(report.failed):
            failed += ledger.take(report.failed[mine])
        return Decided(acked, failed)

    def expire(self, now: float, *, held: bool = False) -> Trees:
        """Return the trees whose time is over; called often, with a monotonic clock.

        If `held`, no time has passed for any of them since the last call.
        """
        expired = Trees.none()
        if held:
            self._rotated += now - self._looked
        self._looked = now
        if self._timeout_s is None:
            return expired
        # One rotation a call, however late it comes: a driver that was paused has given its
        # trees no time to be processed meanwhile.
        if now - self._rotated >= self._timeout_s:
            self._rotated = now
            for ledger in self._ledgers:
                expired += ledger.grow_older(_BUCKETS)
        return expired

    def _shards(self, roots: Ids) -> list[tuple[AckLedger, npt.NDArray[np.bool_]]]:
        if not len(roots):
            return []
        if len(self._ledgers) == 1:
            return [(self._ledgers[0], np.ones(len(roots), bool))]
        acker = roots % np.uint64(len(self._ledgers))
        return [(ledger, acker == n) for n, ledger in enumerate(self._ledgers)]
