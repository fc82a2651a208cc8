"""How large the next batches should be, and how many at once. Decisions without I/O or clock.

A batch has a fixed cost, so a backlog is cheaper in large batches; but nothing of a batch is seen
before it commits, so a batch should not take long. The controller is told what each committed
batch held and how long it took. It learns what a batch costs whatever it holds, and what each unit
in it adds, and aims at batches that take `aim_s`:

- a spout that is behind may take more, twice what it took, or four times where that hardly matters;
  so a backlog becomes larger batches, not more of them. One that keeps up is left alone: its
  batches hold what there is;
- when batches take longer, because the store is slow or the rows are dear, spouts may take less: if
  they are behind, and else only if batches take far too long, since smaller ones cost more.
  Where the fixed cost alone is near the aim, smaller batches would only make it worse: a batch then
  may take as long again as its fixed cost, at most the aim;
- what is staged stays under a mark: targets are bounded by what their rows left for the commit, and
  over the high mark no new batch begins until the low one is reached;
- a batch that was too large for its time or for memory halves the targets, and they may grow beyond
  that only slowly.

What a batch takes is the time from the commit before it to its own, or from its own emission where
that is later: with several in flight, their work overlaps, and only the turns add up. Small
differences change nothing, and neither does one batch that is out of line: no oscillation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median

__all__ = ["BatchFacts", "SizeController", "Sizing", "SizingPolicy"]

_WINDOW = 9  # batches that the costs are learned from
_FEW = 3  # batches that a verdict on the number in flight needs
_BAND, _WIDEST_BAND = 1.3, 2.0  # factors that change nothing, at first and at most
_WIDER = 1.25  # the band after each change of direction
_MOST_GROWTH, _MOST_SHRINKAGE = 2.0, 0.25
_MOST_GROWTH_AT_FIXED_COST = 4.0  # where what a batch holds hardly adds to what it takes
_OUT_OF_LINE = 1.6
_APART, _PAIRS = 1.5, 2  # pairs of sizes that tell the fixed cost from that of a unit
_FAR_BEYOND = 2.5  # times the aim: one batch like that is enough
_MOSTLY = 0.8  # share of a turn that the fixed cost has where smaller batches are no help
_COLD = 4.0  # what the first batch of a run takes counts only if it is so far beyond the aim
_CALM = 8  # batches without a failure after which a limit is doubled
_PROGRESSIVE = 0.9  # share of the high mark that planned batches may fill


@dataclass(frozen=True, slots=True)
class SizingPolicy:
    """The bounds that the controller keeps; times in seconds, marks in staged rows."""

    aim_s: float
    pending: int | None = None
    """Batches in flight as the user said; None: the controller chooses."""
    pending_max: int = 1
    staged_high: float = math.inf
    staged_low: float = math.inf
    units: Mapping[str, str] = field(default_factory=dict)
    """What the sizes of each spout count."""


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is known of a batch that has committed; times by one clock, in seconds."""

    sizes: Mapping[str, int]
    """How much of each spout that can be sized, in the spout's own unit."""
    emitted_at: float
    committed_at: float
    processing_s: float = 0.0
    waiting_s: float = 0.0
    commit_s: float = 0.0
    staged_rows: int = 0
    behind: Collection[str] = ()
    """The spouts at which more waits than this batch has taken."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """What holds for the batches that are planned from now on, and why."""

    targets: Mapping[str, int] = field(default_factory=dict)
    """By spout; one that is not in it takes what it takes by itself."""
    pending: int = 1
    throttled: bool = False
    reason: str = "too little is known yet: spouts take what they take by themselves"


@dataclass(frozen=True, slots=True)
class _Turn:
    """A stretch of batches one after the other: what one of them held, and its turn, in seconds."""

    sizes: Mapping[str, float]
    turn_s: float


@dataclass(frozen=True, slots=True)
class _TurnCosts:
    """`fixed_s + per_load_s * load` is the turn of a batch; a load is relative to the largest."""

    fixed_s: float
    per_load_s: float
    largest: Mapping[str, float]

    def load(self, sizes: Mapping[str, float]) -> float:
        return sum(n / self.largest[s] for s, n in sizes.items() if self.largest.get(s))


class SizeController:
    """Learns from committed batches; `now` is what holds. Not thread-safe: one shell drives it.

    Each method returns the new decision if it is another, else None.
    """

    def __init__(self, policy: SizingPolicy) -> None:
        self._policy = policy
        self.now = Sizing(pending=policy.pending or 1)
        self._points: deque[_Turn] = deque(maxlen=_WINDOW)
        self._costs: _TurnCosts | None = None
        self._is_fixed_known = False
        """Whether sizes have differed enough to tell the fixed cost, as things are now."""
        self._turns: list[tuple[float, BatchFacts]] = []
        """Where each turn of the current busy stretch began, and its batch."""
        self._last_commit_at = -math.inf
        self._strange: list[_Turn] = []
        self._limits: dict[str, float] = {}
        """Sizes that were too large; doubled after a while without a failure."""
        self._calm = 0
        self._band = _BAND
        self._grew: bool | None = None
        """The direction of the last change."""
        self._seen = 0
        self._phases: deque[BatchFacts] = deque(maxlen=5)

    def pin_pending(self, n: int) -> None:
        """Keep that many batches in flight from now on."""
        self._policy = replace(self._policy, pending=n)
        self._set_pending(n, f"{n} in flight, as was said")

    def committed(self, facts: BatchFacts) -> Sizing | None:
        """Learn from a batch that has committed."""
        before = self.now
        self._seen += 1
        self._phases.append(facts)
        self._relax_limits()
        is_news = self._note_turn(facts)
        if not self._choose_pending(facts) and is_news:
            self._choose_targets(facts)
        return self._told(before)

    def too_large(self, sizes: Mapping[str, int], why: str) -> Sizing | None:
        """Learn that an attempt with so much in it took too long, or too much memory."""
        before, targets = self.now, dict(self.now.targets)
        self._calm = 0
        for spout, size in sizes.items():
            self._limits[spout] = max(1.0, size / 2)
            half = max(1, size // 2)  # at least one, also of a batch that was empty
            targets[spout] = min(targets.get(spout, half), half)
        if sizes:
            said = self._said({spout: targets[spout] for spout in sizes})
            reason = f"an attempt was too large ({why}): from now on {said}"
            self.now = replace(self.now, targets=targets, reason=reason)
        return self._told(before)

    def staged(self, rows: int) -> Sizing | None:
        """Learn how many rows wait for their commit."""
        before, policy = self.now, self._policy
        if not before.throttled and rows >= policy.staged_high:
            reason = (
                f"{rows:,} rows wait for their commit, {policy.staged_high:,.0f} are allowed: no "
                f"batch begins until they are {policy.staged_low:,.0f}"
            )
            self.now = replace(before, throttled=True, reason=reason)
        elif before.throttled and rows <= policy.staged_low:
            reason = f"{rows:,} rows wait for their commit: batches may begin again"
            self.now = replace(before, throttled=False, reason=reason)
        return self._told(before)

    def _told(self, before: Sizing) -> Sizing | None:
        now = self.now
        changed = (now.targets, now.pending, now.throttled) != (
            before.targets,
            before.pending,
            before.throttled,
        )
        return now if changed else None

    def _relax_limits(self) -> None:
        self._calm += 1
        if self._limits and self._calm >= _CALM:
            self._calm = 0
            self._limits = {spout: 2 * limit for spout, limit in self._limits.items()}

    def _note_turn(self, facts: BatchFacts) -> bool:
        """Take in how long a batch had its turn; True if something is learned from it.

        Several in flight take theirs together: one of them may wait for all the others.
        """
        if facts.emitted_at >= self._last_commit_at:
            self._turns.clear()  # nothing was in flight meanwhile
        began = max(facts.emitted_at, self._last_commit_at)
        self._last_commit_at = facts.committed_at
        if not any(facts.sizes.values()):
            self._turns.clear()
            return False
        self._turns.append((began, facts))
        together = len(self._turns)
        if together < self.now.pending:
            return False
        took = facts.committed_at - self._turns[0][0]
        sizes: dict[str, float] = {}
        for _, each in self._turns:
            for spout, size in each.sizes.items():
                sizes[spout] = sizes.get(spout, 0.0) + size / together
        self._turns.clear()
        point = _Turn(sizes, max(took / together, 1e-6))
        # The first batch of a run pays for what is loaded and compiled.
        if self._seen == 1 and point.turn_s < _COLD * self._policy.aim_s:
            return False
        return self._learn(point)

    def _learn(self, point: _Turn) -> bool:
        """Take in a point; one out of line only if the next is so too: then all has changed."""
        if self._costs is not None and len(self._points) >= _FEW:
            least, most = self._expected(point)
            if not least / _OUT_OF_LINE <= point.turn_s <= most * _OUT_OF_LINE:
                self._strange.append(point)
                is_far = point.turn_s > max(most, _FAR_BEYOND * self._policy.aim_s)
                if len(self._strange) < 2 and not is_far:
                    return False
                self._points.clear()
                self._points.extend(self._strange)
                self._strange = []
                self._band, self._grew, self._is_fixed_known = _BAND, None, False
                self._costs = self._fitted()
                return True
        self._strange = []
        self._points.append(point)
        self._costs = self._fitted()
        return True

    def _expected(self, point: _Turn) -> tuple[float, float]:
        """Return between what its turn should be: all of the cost is fixed, or nothing of it is."""
        assert self._costs is not None
        usual_s = median(each.turn_s for each in self._points)
        load = median(self._costs.load(each.sizes) for each in self._points)
        in_proportion_s = usual_s * self._costs.load(point.sizes) / max(load, 1e-9)
        return min(usual_s, in_proportion_s), max(usual_s, in_proportion_s)

    def _fitted(self) -> _TurnCosts:
        """Return the costs that fit the points: medians, so that no single one counts much."""
        largest: dict[str, float] = {}
        for point in self._points:
            for spout, size in point.sizes.items():
                largest[spout] = max(largest.get(spout, 0.0), size)
        known = _TurnCosts(0.0, 0.0, largest)
        found = [(known.load(point.sizes), point.turn_s) for point in self._points]
        slopes = [
            (t2 - t1) / (x2 - x1)
            for (x1, t1), (x2, t2) in combinations(found, 2)
            if max(x1, x2) >= _APART * min(x1, x2)
        ]
        if len(slopes) >= _PAIRS:
            self._is_fixed_known = True
            slope = max(0.0, median(slopes))
            fixed_s = median(t - slope * x for x, t in found)
        else:  # too much alike to tell: what was learned of the fixed cost still holds
            fixed_s = 0.0 if self._costs is None else self._costs.fixed_s
        fixed_s = min(max(0.0, fixed_s), 0.95 * median(t for _, t in found))
        per_load_s = median((t - fixed_s) / x for x, t in found if x > 0)
        return _TurnCosts(fixed_s, max(per_load_s, 1e-9), largest)

    def _choose_pending(self, facts: BatchFacts) -> bool:
        """Choose how many batches may be in flight; True if it is another number now."""
        policy, now = self._policy, self.now
        if policy.pending is not None or len(self._phases) < _FEW:
            return False
        processing_s = median(each.processing_s for each in self._phases)
        commit_s = median(each.commit_s for each in self._phases)
        rows = max(each.staged_rows for each in self._phases)
        most = policy.pending_max
        if rows:
            most = max(1, min(most, int(policy.staged_high // rows)))
        # So many as process while one commits, and that one.
        wanted = 1 + math.ceil(processing_s / max(commit_s, 1e-3))
        if now.pending > most:
            why = f"{rows:,} rows of a batch wait for its commit: {most} in flight"
            return self._set_pending(most, why)
        if facts.behind and now.pending < min(wanted, most):
            why = (
                f"behind; processing takes {processing_s:.2f} s and the commit {commit_s:.2f} s: "
                f"{now.pending + 1} in flight"
            )
            return self._set_pending(now.pending + 1, why)
        return False

    def _set_pending(self, n: int, reason: str) -> bool:
        if n == self.now.pending:
            return False
        self.now = replace(self.now, pending=n, reason=reason)
        self._turns.clear()
        self._points.clear()  # turns overlap otherwise now; the fixed cost is kept with the costs
        self._strange.clear()
        self._phases.clear()
        return True

    def _choose_targets(self, facts: BatchFacts) -> None:
        costs, now, aim_s = self._costs, self.now, self._policy.aim_s
        if costs is None or not any(facts.sizes.values()):
            return
        turn_s = median(p.turn_s for p in list(self._points)[-_FEW:])
        sizes = self._points[-1].sizes
        factor = self._wanted(costs) / max(costs.load(sizes), 1e-9)
        room = self._room(facts)
        is_cheap = turn_s < aim_s or costs.fixed_s > _MOSTLY * turn_s
        grows: bool | None = None
        targets: dict[str, int] = {}
        if room < min(factor, 1.0):
            targets = self._scaled(sizes, room)
            reason = f"{facts.staged_rows:,} rows of a batch wait for its commit"
        elif factor < 1 / self._band and (facts.behind or self._takes_far_too_long(turn_s)):
            grows, targets = False, self._scaled(sizes, max(factor, _MOST_SHRINKAGE))
            reason = (
                f"a batch takes {turn_s:.2f} s (its commit {facts.commit_s:.2f} s), it should take "
                f"{aim_s:g} s"
            )
        elif factor > self._band and facts.behind and is_cheap:
            grows, targets = True, self._grown(facts, sizes, min(factor, room))
            reason = (
                f"behind, and a batch takes {turn_s:.2f} s, {costs.fixed_s:.2f} s of it whatever "
                f"it holds; it should take {aim_s:g} s"
            )
        elif facts.behind and not self._is_fixed_known:
            # It may be nearly all: then much larger batches would hardly take longer.
            grows, targets = True, self._grown(facts, sizes, min(_MOST_GROWTH, room))
            reason = (
                f"behind, and it is not known how much of its {turn_s:.2f} s a batch takes "
                "whatever it holds: more, to find out"
            )
        else:
            waits = "more waits" if facts.behind else "nothing waits"
            reason = f"{waits}, and a batch takes {turn_s:.2f} s"
        changed = {spout: n for spout, n in targets.items() if n != now.targets.get(spout)}
        if changed and grows is not None:
            if self._grew is not None and self._grew != grows:
                self._band = min(_WIDEST_BAND, self._band * _WIDER)
            self._grew = grows
        said = self._said(changed) or "as before"
        self.now = replace(now, targets={**now.targets, **changed}, reason=f"{reason}: {said}")

    def _takes_far_too_long(self, turn_s: float) -> bool:
        """Whether batches are to shrink though nothing waits, which makes something wait.

        Who keeps up with larger batches may not with smaller ones. So only what lasts counts.
        """
        return turn_s > _FAR_BEYOND * self._policy.aim_s and len(self._points) > 1

    def _wanted(self, costs: _TurnCosts) -> float:
        """Return the load that a batch should have."""
        aim_s, fixed_s = self._policy.aim_s, costs.fixed_s
        return max(aim_s - fixed_s, min(fixed_s, aim_s)) / costs.per_load_s

    def _room(self, facts: BatchFacts) -> float:
        """Return by how much batches may grow before what they stage reaches the high mark."""
        if not facts.staged_rows:
            return math.inf
        most = _PROGRESSIVE * self._policy.staged_high / self.now.pending
        return most / facts.staged_rows

    def _grown(
        self, facts: BatchFacts, sizes: Mapping[str, float], factor: float
    ) -> dict[str, int]:
        """Return larger targets for the spouts that are behind, by what each took."""
        costs, last, growth = self._costs, self._points[-1], _MOST_GROWTH
        if costs is not None and costs.fixed_s > _MOSTLY * last.turn_s:
            growth = _MOST_GROWTH_AT_FIXED_COST
        grown = {}
        for spout, target in self._scaled(sizes, factor).items():
            took = facts.sizes.get(spout, 0)
            if spout in facts.behind and took:
                most = max(growth * took, self.now.targets.get(spout, 1))
                grown[spout] = max(self.now.targets.get(spout, 1), round(min(target, most)))
        return grown

    def _scaled(self, sizes: Mapping[str, float], factor: float) -> dict[str, int]:
        return {
            spout: max(1, round(min(size * factor, self._limits.get(spout, math.inf))))
            for spout, size in sizes.items()
            if size
        }

    def _said(self, targets: Mapping[str, int]) -> str:
        units = self._policy.units
        parts = [f"{spout} {_amount(n, units.get(spout, ''))}" for spout, n in targets.items()]
        return ", ".join(parts)


def _amount(n: int, unit: str) -> str:
    """Return a size in words.

    >>> _amount(48_300_000, "bytes"), _amount(1200, "rows")
    ('48.3 MB', '1,200 rows')
    """
    if unit == "bytes" and n >= 100_000:
        return f"{n / 1e6:,.1f} MB"
    return f"{n:,} {unit}".rstrip()
