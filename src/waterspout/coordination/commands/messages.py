"""What is asked of a run from outside, what it answers, and what of it outlives the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from waterspout.errors import DamagedStoreError

__all__ = ["Change", "Outcome", "Reply", "Request", "Verb", "Wanted", "from_json", "to_json"]

Verb = Literal["kill", "activate", "deactivate", "rebalance"]
Outcome = Literal["accepted", "done", "refused"]

M = TypeVar("M", "Request", "Reply", "Wanted")

_VERBS = ("kill", "activate", "deactivate", "rebalance")
_OUTCOMES = ("accepted", "done", "refused")


@dataclass(frozen=True, slots=True)
class Change:
    """What a rebalance is to change; None and nothing: as it is."""

    pending: int | None = None
    """`max_spout_pending`."""
    workers: int | None = None
    """Into how many Spark tasks a stage of a wave is divided at most."""
    parallelism: Mapping[str, int] = field(default_factory=dict)
    """By component, or by operation of Trident: on how many of them at once."""

    def __bool__(self) -> bool:
        return self != Change()

    def __str__(self) -> str:
        parts = [f"{name}={n}" for name, n in sorted(self.parallelism.items())]
        parts += [f"workers={self.workers}"] if self.workers is not None else []
        parts += [f"max_spout_pending={self.pending}"] if self.pending is not None else []
        return ", ".join(parts) or "nothing"

    def over(self, earlier: Change) -> Change:
        """Return an earlier change with this one on top."""
        return Change(
            earlier.pending if self.pending is None else self.pending,
            earlier.workers if self.workers is None else self.workers,
            {**earlier.parallelism, **self.parallelism},
        )

    def check(self) -> None:
        """Raise ValueError for what no run could be changed to."""
        numbers = {"max_spout_pending": self.pending, "workers": self.workers}
        for name, n in {**self.parallelism, **numbers}.items():
            if n is not None and (type(n) is not int or n < 1):
                raise ValueError(f"{name} is {n!r}; expected a number >= 1")


@dataclass(frozen=True, slots=True)
class Request:
    """A command for the driver that holds the lease of this epoch, and for no other."""

    id: str
    verb: Verb
    epoch: int
    by: str
    """Who asks, for people."""
    at: float
    wait_s: float | None = None
    """How long what is in flight is given to finish; None: as the run is set up."""
    change: Change = field(default_factory=Change)

    def check(self) -> None:
        """Raise ValueError if it is not what a command writes."""
        texts = isinstance(self.id, str) and isinstance(self.by, str)
        wait = 0.0 if self.wait_s is None else self.wait_s
        if not (texts and self.verb in _VERBS and type(self.epoch) is int and _is_time(self.at)):
            raise ValueError("it is no command")
        if not (_is_time(wait) and wait >= 0):
            raise ValueError(f"wait is {wait!r}; expected a number >= 0")
        self.change.check()


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request: accepted for now, or done or refused for good."""

    id: str
    outcome: Outcome
    text: str
    at: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a program wants to know of it."""

    @property
    def is_final(self) -> bool:
        """Whether there is nothing more to come."""
        return self.outcome != "accepted"

    def check(self) -> None:
        """Raise ValueError if it is not what a driver writes."""
        texts = isinstance(self.id, str) and isinstance(self.text, str)
        if not (texts and self.outcome in _OUTCOMES and _is_time(self.at)):
            raise ValueError("it is no answer")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What commands have left for later runs: Storm keeps the same for a topology."""

    active: bool = True
    change: Change = field(default_factory=Change)
    by: str = ""
    at: float = 0.0

    def check(self) -> None:
        """Raise ValueError if it is not what a driver writes."""
        if not (type(self.active) is bool and isinstance(self.by, str) and _is_time(self.at)):
            raise ValueError("it is no record of what is wanted")
        self.change.check()


def to_json(message: Request | Reply | Wanted) -> dict[str, Any]:
    """Return a message as JSON values."""
    return asdict(message)


def from_json(kind: type[M], content: object) -> M:
    """Read a message; one that nobody of ours wrote is damage, with the reason."""
    try:
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        given = dict(content)
        if "change" in given:
            given["change"] = Change(**given["change"])
        message = kind(**given)
        message.check()
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"a {kind.__name__.lower()} cannot be read: {error}") from error
    return message


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
