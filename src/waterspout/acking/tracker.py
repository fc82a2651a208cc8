"""`AckTracker`: all ackers of a topology, and the time that their trees are given.

`__acker` task n of N has the trees whose root is n modulo N, as in Storm; here the tasks are
ledgers in the driver, fed with one combined report a wave (docs/decisions/0009).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from waterspout.acking.ledger import AckLedger, Trees
from waterspout.acking.xor import Ids, no_ids

__all__ = ["AckTracker", "Decided", "TreeReport"]

# Two buckets, as Storm's spouts have: a tree times out after one to two periods.
_BUCKETS = 2


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
        self._rotated = now

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

    def expire(self, now: float) -> Trees:
        """Return the trees whose time is over; called often, with a monotonic clock."""
        expired = Trees.none()
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
