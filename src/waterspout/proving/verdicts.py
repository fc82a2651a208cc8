"""What all trials together say: by kill point, and of each state beside its promise. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from waterspout.proving.comparing import Discrepancy
from waterspout.proving.subject import ProvedState, Subject
from waterspout.proving.trials import How, Spot, Trial

__all__ = ["Ending", "PointRow", "Proof", "StateVerdict", "TrialResult"]

_SHOWN_MAX = 3


class Ending(Enum):
    """How a trial ended."""

    EXACT = "exact"
    DIFFERS = "differs"
    NOT_REACHED = "not reached"
    DID_NOT_END = "did not end"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial has shown: faults that fired, processes that it took, and what differs."""

    trial: Trial
    fired: int
    lives: int
    seconds: float = 0.0
    error: str | None = None
    """Why the topology did not get to its end, if it did not."""
    differences: Mapping[str, Sequence[Discrepancy]] = field(default_factory=dict)
    """By the labels of the states that differ."""
    folder: str | None = None
    """Where everything is kept, if it is."""

    @property
    def was_reached(self) -> bool:
        """Whether what was to happen did happen; else the trial has shown nothing."""
        return self.fired == (2 if self.trial.how is How.TWICE else 1)

    def outcome(self, label: str) -> Ending:
        """Return what the trial says of a state."""
        if self.error is not None:
            return Ending.DID_NOT_END
        if not self.was_reached:
            return Ending.NOT_REACHED
        return Ending.DIFFERS if self.differences.get(label) else Ending.EXACT


@dataclass(frozen=True, slots=True)
class PointRow:
    """The trials at one place."""

    place: Spot
    results: Sequence[TrialResult]

    @property
    def batches(self) -> list[int]:
        """The batches in which something happened."""
        return sorted({result.trial.at.txid for result in self.results})

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(r.fired for r in self.results if r.trial.how is not How.FAIL)

    @property
    def failures(self) -> int:
        """How many attempts were made to fail."""
        return sum(r.fired for r in self.results if r.trial.how is How.FAIL)

    def seen(self, label: str) -> str:
        """Say what was seen of a state: `exact`, or how many trials say something else."""
        outcomes = [result.outcome(label) for result in self.results]
        told = [
            f"{outcomes.count(each)} {each.value if each is not Ending.DIFFERS else 'differ'}"
            for each in (Ending.DIFFERS, Ending.DID_NOT_END, Ending.NOT_REACHED)
            if each in outcomes
        ]
        if Ending.EXACT in outcomes:
            told.insert(0, "exact" if not told else f"{outcomes.count(Ending.EXACT)} exact")
        return ", ".join(told)


@dataclass(frozen=True, slots=True)
class StateVerdict:
    """What was promised of a state and what was seen of it."""

    state: ProvedState
    exact: int
    differ: int
    unfinished: int
    trials: int
    examples: Sequence[tuple[TrialResult, Sequence[Discrepancy]]]

    @property
    def held(self) -> bool:
        """Whether the promise held, and something was seen at all."""
        if not self.state.exact:
            return not self.unfinished
        return self.exact > 0 and not self.differ and not self.unfinished

    @property
    def text(self) -> str:
        """The verdict in words."""
        seen = self.exact + self.differ
        parts = []
        if self.state.exact and not self.differ:
            word = "proved" if self.exact and not self.unfinished else "not proved"
            parts.append(f"exactly-once: {word} in {_trials(self.exact)}")
        elif self.state.exact:
            parts.append(f"exactly-once was promised: {self.differ} of {_trials(seen)} differ")
        else:
            tail = f"{self.differ} of {_trials(seen)} differ" if self.differ else "no trial differs"
            parts.append(f"not exactly-once (as explain() says): {tail}")
        if self.unfinished:
            parts.append(f"{_trials(self.unfinished)} did not end")
        if (left := self.trials - seen - self.unfinished) > 0:
            parts.append(f"{_trials(left)} not reached")
        return "; ".join(parts)


@dataclass(frozen=True)
class Proof:
    """All trials of a topology."""

    subject: Subject
    results: Sequence[TrialResult]

    @property
    def holds(self) -> bool:
        """Whether every promise held, in trials that showed something."""
        return bool(self.results) and all(verdict.held for verdict in self.verdicts)

    @property
    def rows(self) -> list[PointRow]:
        """The trials by place, in the order in which a batch passes them."""
        by_place: dict[Spot, list[TrialResult]] = {}
        for result in sorted(self.results, key=lambda each: each.trial.number):
            by_place.setdefault(result.trial.at.place, []).append(result)
        return [PointRow(place, results) for place, results in by_place.items()]

    @property
    def verdicts(self) -> list[StateVerdict]:
        """One for each state."""
        return [self._verdict(state) for state in self.subject.states]

    @property
    def kills(self) -> int:
        """How many processes were killed in all."""
        return sum(row.kills for row in self.rows)

    @property
    def failures(self) -> int:
        """How many attempts were made to fail."""
        return sum(row.failures for row in self.rows)

    @property
    def not_reached(self) -> list[Trial]:
        """The trials in which what was to happen did not, which have shown nothing."""
        return [r.trial for r in self.results if r.error is None and not r.was_reached]

    @property
    def broken(self) -> list[TrialResult]:
        """The trials that break a promise: a state differs that must not, or there was no end."""
        promised = {state.label for state in self.subject.states if state.exact}
        return [
            result
            for result in self.results
            if result.error is not None
            or any(result.outcome(label) is Ending.DIFFERS for label in promised)
        ]

    def _verdict(self, state: ProvedState) -> StateVerdict:
        outcomes = [result.outcome(state.label) for result in self.results]
        differing = [r for r in self.results if r.outcome(state.label) is Ending.DIFFERS]
        return StateVerdict(
            state,
            outcomes.count(Ending.EXACT),
            len(differing),
            outcomes.count(Ending.DID_NOT_END),
            len(outcomes),
            [(r, r.differences[state.label]) for r in differing[:_SHOWN_MAX]],
        )

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {
            "topology": self.subject.name,
            "proved": self.holds,
            "kills": self.kills,
            "failed_attempts": self.failures,
            "states": [_state_document(verdict) for verdict in self.verdicts],
            "points": [_row_document(row, self.subject.states) for row in self.rows],
            "trials": [_trial_document(result) for result in self.results],
        }


def _state_document(verdict: StateVerdict) -> dict[str, Any]:
    state = verdict.state
    return {
        "state": state.name,
        "label": state.label,
        "store": state.store,
        "stand_in": state.instead or None,
        "promise": "exactly-once" if state.exact else "not exactly-once",
        "why": state.why,
        "held": verdict.held,
        "exact": verdict.exact,
        "differ": verdict.differ,
        "verdict": verdict.text,
    }


def _row_document(row: PointRow, states: Iterable[ProvedState]) -> dict[str, Any]:
    return {
        "point": row.place.point,
        "for": row.place.state or row.place.component or None,
        "batches": row.batches,
        "trials": len(row.results),
        "kills": row.kills,
        "failed_attempts": row.failures,
        "seen": {state.label: row.seen(state.label) for state in states},
    }


def _trial_document(result: TrialResult) -> dict[str, Any]:
    at = result.trial.at
    return {
        "point": at.place.point,
        "for": at.place.state or at.place.component or None,
        "batch": at.txid,
        "partition": at.partition,
        "what": result.trial.how.value,
        "fired": result.fired,
        "reached": result.was_reached,
        "lives": result.lives,
        "seconds": round(result.seconds, 1),
        "error": result.error,
        "differs": {
            label: [
                {"key": each.key, "got": each.got, "expected": each.expected}
                for each in found[:_SHOWN_MAX]
            ]
            for label, found in result.differences.items()
            if found
        },
        "folder": result.folder,
    }


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count:,} trials"
