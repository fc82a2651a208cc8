"""A simulated topology for the size controller: costs, noise and steps; no thread, no clock.

Batches process together at the speed that the machine has for them, and commit one by one. A rate
of arrival and the costs may change at given times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from waterspout.transactional._sizing import BatchFacts, SizeController, Sizing

IDLE_S = 0.05


@dataclass(frozen=True)
class Costs:
    """What a batch costs, in seconds: whatever it holds, and for each unit in it."""

    fixed_s: float = 0.2
    unit_s: float = 1e-5
    commit_fixed_s: float = 0.05
    commit_unit_s: float = 1e-6
    staged_per_unit: float = 0.0

    def turn_s(self, size: float) -> float:
        """How long a batch takes that is alone."""
        fixed_s = self.fixed_s + self.commit_fixed_s
        return fixed_s + (self.unit_s + self.commit_unit_s) * size


@dataclass
class _Batch:
    size: int
    target: int | None
    emitted_at: float
    work_s: float
    processed_at: float = math.inf
    began_commit_at: float = math.inf
    behind: bool = False


@dataclass(frozen=True)
class Committed:
    """What a simulation tells of a batch."""

    at: float
    size: int
    target: int | None
    latency_s: float
    pending: int
    backlog: float


@dataclass
class World:
    """One spout named "s", one store, one machine."""

    controller: SizeController
    costs: Callable[[float], Costs]
    rate: Callable[[float], float]
    own_size: int = 1000
    piece: int = 1
    pinned: bool = False
    """Whether the size is fixed, as where the user has said it: the controller hears of none."""
    lanes: float = 1.0
    """How many batches the machine processes at full speed."""
    noise: float = 0.1
    seed: int = 0
    backlog: float = 0.0
    now: float = 0.0
    done: list[Committed] = field(default_factory=list)
    decisions: list[Sizing] = field(default_factory=list)
    staged_most: float = 0.0
    in_flight_most: int = 0
    _flight: list[_Batch] = field(default_factory=list)
    _left_of_commit_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run(self, until: float) -> World:
        """Let time pass."""
        while self.now < until:
            self._emit()
            self._pass(min(self._until_next(), until - self.now, 0.25))
        return self

    def sizes(self, since: float = 0.0) -> list[int]:
        """The sizes of the batches that have committed since then."""
        return [each.size for each in self.done if each.at >= since]

    def throughput(self, since: float) -> float:
        """Units per second."""
        return sum(self.sizes(since)) / (self.now - since)

    def _noisy(self) -> float:
        return math.exp(self._random.gauss(0.0, self.noise)) if self.noise else 1.0

    def _emit(self) -> None:
        now = self.controller.now
        while len(self._flight) < now.pending and not now.throttled and self.backlog >= 1:
            target = None if self.pinned else now.targets.get("s")
            pieces = max(1, round((target or self.own_size) / self.piece))
            size = int(min(pieces * self.piece, self.backlog))
            self.backlog -= size
            costs = self.costs(self.now)
            work_s = (costs.fixed_s + costs.unit_s * size) * self._noisy()
            batch = _Batch(size, target, self.now, work_s)
            batch.behind = self.backlog > 0.1 * size
            self._flight.append(batch)
            self.in_flight_most = max(self.in_flight_most, len(self._flight))

    def _processing(self) -> list[_Batch]:
        return [batch for batch in self._flight if batch.processed_at == math.inf]

    def _speed(self) -> float:
        return min(1.0, self.lanes / max(1, len(self._processing())))

    def _until_next(self) -> float:
        ends = [batch.work_s / self._speed() for batch in self._processing()]
        if self._committing() is not None:
            ends.append(self._left_of_commit_s)
        return max(1e-6, min([IDLE_S, *ends]))

    def _committing(self) -> _Batch | None:
        head = self._flight[0] if self._flight else None
        if head is None or head.processed_at == math.inf:
            return None
        if head.began_commit_at == math.inf:
            head.began_commit_at = self.now
            costs = self.costs(self.now)
            took = costs.commit_fixed_s + costs.commit_unit_s * head.size
            self._left_of_commit_s = took * self._noisy()
        return head

    def _pass(self, seconds: float) -> None:
        head, speed = self._committing(), self._speed()
        processing = self._processing()
        self.backlog += self.rate(self.now) * seconds
        self.now += seconds
        for batch in processing:
            batch.work_s -= seconds * speed
            if batch.work_s <= 1e-9:
                batch.processed_at = self.now
        if head is not None:
            self._left_of_commit_s -= seconds
            if self._left_of_commit_s <= 1e-9:
                self._commit(self._flight.pop(0))
        self._tell(self.controller.staged(self._staged()))

    def _staged(self) -> int:
        per_unit = self.costs(self.now).staged_per_unit
        held = sum(b.size for b in self._flight if b.processed_at < math.inf) * per_unit
        self.staged_most = max(self.staged_most, held)
        return round(held)

    def _commit(self, batch: _Batch) -> None:
        facts = BatchFacts(
            {} if self.pinned else {"s": batch.size},
            batch.emitted_at,
            self.now,
            batch.processed_at - batch.emitted_at,
            batch.began_commit_at - batch.processed_at,
            self.now - batch.began_commit_at,
            round(batch.size * self.costs(self.now).staged_per_unit),
            ("s",) if batch.behind else (),
        )
        self._tell(self.controller.committed(facts))
        pending = self.controller.now.pending
        latency_s = self.now - batch.emitted_at
        self.done.append(
            Committed(self.now, batch.size, batch.target, latency_s, pending, self.backlog)
        )

    def _tell(self, decision: Sizing | None) -> None:
        if decision is not None:
            self.decisions.append(decision)


def turns(targets: list[Mapping[str, int]], at_least: float = 1.0) -> int:
    """How often the targets change from rising to falling or back, small steps left out."""
    values = [each["s"] for each in targets if "s" in each]
    signs = []
    for before, after in pairwise(values):
        if max(before, after) >= at_least * min(before, after) and before != after:
            signs.append(after > before)
    return sum(one != other for one, other in pairwise(signs))
