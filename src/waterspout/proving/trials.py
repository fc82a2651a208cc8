"""Which trials there are: at which kill point, in which batch, and what happens there. No I/O.

A run without a fault has noted every kill point that it passed. A *place* is a point, with the
state or the bolt that it is passed for. At each place the driver is killed in the first batch, in
the last, and in one in the middle; there twice in a row, the second time in the replay, unless the
batch has committed by then and is not replayed.
Where a point is passed by Spark's tasks, their worker is killed instead, and Spark tries the task
again. And where an attempt can fail, it fails: then nobody dies, and the batch is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path

from waterspout.faults import POINTS, Fault, FaultPlan

__all__ = ["How", "Passing", "Spot", "Trial", "noting", "passings_of", "plan_trials"]

FAILING = ("processing", "processed", "write.before", "write.after")
"""Where an error is one of an attempt: in its processing phase, and while it writes."""


COMMITTED = ("mark.after", "settle.before", "settle.after", "cleanup")
"""Points of a batch that no crash undoes any more: there is no replay to be killed in."""


class How(Enum):
    """What happens at a place."""

    KILL = "driver killed"
    TWICE = "driver killed twice"
    WORKER = "worker killed"
    FAIL = "attempt failed"


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A kill point, and for which state or bolt it is passed, if it says so."""

    point: str
    state: str = ""
    component: str = ""

    def __str__(self) -> str:
        whose = self.state or self.component
        return f"{self.point} ({whose})" if whose else self.point


@dataclass(frozen=True, slots=True)
class Passing:
    """One time that a place was passed."""

    place: Spot
    txid: int
    partition: int | None = None
    in_task: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that goes wrong in a run; after it the same command is run until it is done."""

    number: int
    how: How
    at: Passing

    def __str__(self) -> str:
        part = "" if self.at.partition is None else f", partition {self.at.partition}"
        return f"{self.how.value} at {self.at.place}, batch {self.at.txid}{part}"

    def faults(self, folder: Path) -> FaultPlan:
        """Return the plan for all lives of the trial; each fault fires once, and leaves its token.

        Both faults of a driver that is killed twice are at the same place: a dead driver does not
        get to the second one, and in the next life the token of the first is taken.
        """
        action = "fail" if self.how is How.FAIL else "kill"
        where = self._where()
        return FaultPlan(
            [
                Fault(self.at.place.point, action, nth=None, where=where, token=str(token))
                for token in self.tokens(folder)
            ]
        )

    def tokens(self, folder: Path) -> list[Path]:
        """Return the files that tell which faults have fired."""
        count = 2 if self.how is How.TWICE else 1
        return [folder / f"fired-{n + 1}" for n in range(count)]

    def _where(self) -> dict[str, object]:
        place = self.at.place
        known = {
            "txid": self.at.txid,
            "state": place.state or None,
            "component": place.component or None,
            "partition": self.at.partition,
        }
        return {name: value for name, value in known.items() if value is not None}


def noting(file: Path) -> FaultPlan:
    """Return a plan that kills nobody and notes all points that are passed."""
    return FaultPlan([Fault(point, "note", nth=None, token=str(file)) for point in POINTS])


def passings_of(notes: Iterable[str], drivers: Iterable[int]) -> list[Passing]:
    """Read the notes of a run; `drivers` are the processes that were its driver.

    A point that belongs to no batch is left out: a graph that is stored before the first one.
    """
    here = set(drivers)
    found: dict[Passing, None] = {}
    for line in notes:
        note = json.loads(line)
        if note.get("txid"):
            place = Spot(note["point"], note.get("state") or "", note.get("component") or "")
            in_task = note["process"] not in here
            found[Passing(place, note["txid"], note.get("partition"), in_task)] = None
    return list(found)


def plan_trials(
    passings: Sequence[Passing], *, every: bool = False, only: Sequence[str] = ()
) -> list[Trial]:
    """Return the trials, in the order in which a batch passes their places.

    `every`: in all batches, not only the first, a middle and the last. `only`: at these points.
    """
    wanted = [passing for passing in passings if not only or passing.place.point in only]
    ordered = sorted(wanted, key=_order)
    planned: list[tuple[How, Passing]] = []
    for _, group in groupby(ordered, key=lambda passing: passing.place):
        by_batch = {txid: list(each) for txid, each in groupby(group, key=lambda p: p.txid)}
        txids = list(by_batch)
        first, middle, last = txids[0], txids[len(txids) // 2], txids[-1]
        for txid in txids if every else sorted({first, middle, last}):
            at = _middle_of(by_batch[txid])
            thorough = every or txid == middle
            twice = thorough and not at.in_task and at.place.point not in COMMITTED
            if at.in_task:
                planned.append((How.WORKER, at))
            elif every or not twice or txid in (first, last):
                planned.append((How.KILL, at))
            if twice:
                planned.append((How.TWICE, at))
            if thorough and at.place.point in FAILING:
                planned.append((How.FAIL, at))
    return [Trial(number, how, at) for number, (how, at) in enumerate(planned, 1)]


def _order(passing: Passing) -> tuple[int, Spot, int, int]:
    at = passing.place
    return (POINTS.index(at.point), at, passing.txid, passing.partition or 0)


def _middle_of(passings: Sequence[Passing]) -> Passing:
    """Choose a partition such that some are written when it happens, and others are not.

    Before the last half, or behind the first one: of two partitions, one each.
    """
    before = passings[0].place.point.endswith(".before")
    return passings[len(passings) // 2 if before else (len(passings) - 1) // 2]
