"""When a run obeys, and what it answers: a state machine without I/O.

It is told of requests, of the time and of how the run stands, and answers with steps for its shell
to carry out in order. It decides:

- a request for another driver than this one is refused, whatever it says;
- kill: the spouts are asked no more; the run ends when nothing is in flight, or when the wait is
  over. A second kill may only shorten the wait. Nothing else is done any more;
- rebalance: likewise up to where nothing is in flight; then the change, and on as before. If the
  wait is over first, nothing is changed;
- activate and deactivate are obeyed at once, and kept for later runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from waterspout.coordination.commands.messages import Outcome, Reply, Request, Wanted

__all__ = ["Alter", "End", "KeepWanted", "Obedience", "SetActive", "Standing", "Step", "Tell"]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands, between two steps of its loop."""

    is_drained: bool
    """Whether nothing is in flight."""
    done: str
    """How far it is, for people: "batch 41"."""
    left: str = ""
    """What the next run begins with, because it was emitted and is not done; for people."""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetActive:
    """Let the spouts go on, or hold them."""

    active: bool


@dataclass(frozen=True, slots=True)
class KeepWanted:
    """Store what is wanted, durably, under the lease."""

    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Alter:
    """Carry out the change of a request, while nothing is in flight."""

    request: Request


@dataclass(frozen=True, slots=True)
class End:
    """End the run."""

    by: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Reply a request."""

    request: Request
    reply: Reply


Step = SetActive | KeepWanted | Alter | End | Tell


class Obedience:
    """Decide over the commands for one run. Not thread-safe: the thread of the loop drives it."""

    def __init__(self, epoch: int, wanted: Wanted, *, wait_s: float) -> None:
        self._epoch = epoch
        self._wait_s = wait_s
        self.wanted = wanted
        self._kills: list[Request] = []
        self._move: Request | None = None
        self._until = float("inf")

    @property
    def is_waiting(self) -> bool:
        """Whether something was accepted that is still to be done."""
        return bool(self._kills) or self._move is not None

    def hear(self, request: Request, now: float, time: float) -> list[Step]:
        """Take a request; `now` is the clock that waits are measured by, `time` that of people."""
        if request.epoch != self._epoch:
            text = "it was meant for a driver that does not run any more; give it again"
            return [_tell(request, "refused", text, time)]
        if self._kills and request.verb != "kill":
            text = f"the run is being killed, by {self._kills[0].by}"
            return [_tell(request, "refused", text, time)]
        match request.verb:
            case "kill":
                return self._kill(request, now, time)
            case "rebalance":
                return self._rebalance(request, now, time)
            case _:
                return self._set_active(request, request.verb == "activate", time)

    def turn(self, now: float, time: float, standing: Standing) -> list[Step]:
        """Do what was waited for; the loop has made a whole step since the last call."""
        if self._kills and (standing.is_drained or now >= self._until):
            return self._end(standing, time)
        if self._move is not None and standing.is_drained:
            return [Alter(self._move)]
        if self._move is not None and now >= self._until:
            left = f" ({standing.left})" if standing.left else ""
            text = f"something was still in flight when the wait was over{left}; nothing changed"
            return self._moved("refused", text, time)
        return []

    def altered(self, error: str | None, time: float, standing: Standing) -> list[Step]:
        """Take note of what has become of a change."""
        assert self._move is not None
        if error is not None:
            return self._moved("refused", error, time)
        request = self._move
        change = request.change.over(self.wanted.change)
        self.wanted = replace(self.wanted, change=change, by=request.by, at=time)
        text = f"rebalanced after {standing.done}: {request.change}"
        return [KeepWanted(self.wanted), *self._moved("done", text, time, standing.facts)]

    def ended(self, why: str | None, time: float, standing: Standing) -> list[Step]:
        """Reply what is left, because the run has ended otherwise; `why`: with this error."""
        if why is None and self._kills:
            return self._end(standing, time)
        text = f"the run ended before, after {standing.done}{f': {why}' if why else ''}"
        left = [*self._kills, *([self._move] if self._move else [])]
        self._kills, self._move = [], None
        return [_tell(request, "refused", text, time) for request in left]

    def _kill(self, request: Request, now: float, time: float) -> list[Step]:
        steps: list[Step] = []
        if self._move is not None:
            text = f"the run is being killed, by {request.by}; nothing changed"
            steps.append(_tell(self._move, "refused", text, time))
            self._move, self._until = None, float("inf")
        wait_s = self._wait_s if request.wait_s is None else request.wait_s
        self._until = min(self._until, now + wait_s)
        self._kills.append(request)
        left_s = max(0.0, self._until - now)
        text = f"the spouts are asked no more; it ends within {left_s:g} s"
        accepted = _tell(request, "accepted", text, time, {"within_s": left_s})
        return [*steps, SetActive(False), accepted]

    def _end(self, standing: Standing, time: float) -> list[Step]:
        kills, self._kills = self._kills, []
        text = f"killed after {standing.done}"
        if standing.left:
            text += f"; {standing.left}"
        # As Storm forgets a topology that is killed; its next run begins as it is written.
        forget = [] if self.wanted == Wanted() else [KeepWanted(Wanted())]
        self.wanted = Wanted()
        told = [_tell(request, "done", text, time, standing.facts) for request in kills]
        return [*forget, End(kills[0].by), *told]

    def _rebalance(self, request: Request, now: float, time: float) -> list[Step]:
        if self._move is not None:
            text = f"another rebalance, by {self._move.by}, is not done yet; give it again"
            return [_tell(request, "refused", text, time)]
        wait_s = self._wait_s if request.wait_s is None else request.wait_s
        self._move, self._until = request, now + wait_s
        text = "the spouts are asked no more until nothing is in flight"
        return [SetActive(False), _tell(request, "accepted", text, time, {"within_s": wait_s})]

    def _moved(
        self, outcome: Outcome, text: str, time: float, facts: Mapping[str, Any] | None = None
    ) -> list[Step]:
        assert self._move is not None
        request, self._move, self._until = self._move, None, float("inf")
        return [SetActive(self.wanted.active), _tell(request, outcome, text, time, facts)]

    def _set_active(self, request: Request, active: bool, time: float) -> list[Step]:
        word = "active" if active else "inactive"
        text = f"it is {word}; so will be its next run, until it is told otherwise or killed"
        self.wanted = replace(self.wanted, active=active, by=request.by, at=time)
        keep = KeepWanted(self.wanted)
        # While something is moved, nothing may be emitted: it goes on as wanted afterwards.
        hold = [] if self._move is not None else [SetActive(active)]
        return [keep, *hold, _tell(request, "done", text, time, {"active": active})]


def _tell(
    request: Request,
    outcome: Outcome,
    text: str,
    time: float,
    facts: Mapping[str, Any] | None = None,
) -> Tell:
    return Tell(request, Reply(request.id, outcome, text, time, facts or {}))
