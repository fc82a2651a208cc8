"""`RequestQueue`: the calls of one function, from their admission to their one answer.

A state machine without I/O, lock or clock: whoever has these calls it, one call at a time.

    admit -> waiting -- take --> working -- answer --> over

A caller whose time is over, who has gone away, or whose run ends, is done with at once. If its
request waits, its place is free then. If it is worked on, nobody can call the work back: it keeps
its place among those worked on until the answer comes, which then reaches nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from waterspout.drpc._calls import DrpcAnswer, DrpcError, DrpcErrorKind, DrpcRequest

__all__ = ["QueueLimits", "RequestQueue"]

# Deadlines of requests that are over are dropped when there are so many more of them than others.
_STALE_MAX = 256


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much a function takes on."""

    waiting_max: int
    """Requests that wait; one more is refused."""

    working_max: int
    """Requests that are worked on at once."""


class RequestQueue:
    """The requests of one function. Every id is admitted once, and answered at most once."""

    def __init__(self, function: str, limits: QueueLimits) -> None:
        self._function = function
        self._limits = limits
        self._waiting: dict[str, DrpcRequest] = {}
        self._working: dict[str, DrpcRequest] = {}
        self._gone: set[str] = set()
        """Those of the working whose callers have what they get."""
        self._deadlines: list[tuple[float, str]] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many requests nobody has taken yet."""
        return len(self._waiting)

    @property
    def working(self) -> int:
        """How many were taken and are not answered; also for callers who have gone."""
        return len(self._working)

    @property
    def next_deadline(self) -> float | None:
        """When `expire` may have something to say, None: never."""
        return self._deadlines[0][0] if self._deadlines else None

    def admit(self, request: DrpcRequest) -> DrpcError | None:
        """Let a request wait, or return why not: then nothing is done about it."""
        assert request.id not in {*self._waiting, *self._working}, request
        if self._closed:
            return _ended(self._function)
        if len(self._waiting) >= self._limits.waiting_max:
            return DrpcError(
                DrpcErrorKind.UNAVAILABLE,
                f"{len(self._waiting)} requests wait for {self._function!r}, which is as many as "
                "may; ask again later, or raise drpc_queue_size",
            )
        self._waiting[request.id] = request
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.id))
        return None

    def take(self, now: float, committed: int | None = None) -> list[DrpcRequest]:
        """Return the requests to be worked on now, the oldest first, as many as there is room for.

        `committed` is the last batch that has committed. A request that must see a later one waits
        on and holds nobody up.
        """
        room = self._limits.working_max - len(self._working)
        taken: list[DrpcRequest] = []
        for request in self._waiting.values():
            if len(taken) >= room:
                break
            if _is_over(request, now):
                continue  # `expire` tells its caller
            if request.min_txid is None or _has(committed, request.min_txid):
                taken.append(request)
        for request in taken:
            del self._waiting[request.id]
            self._working[request.id] = request
        return taken

    def answer(self, id: str) -> bool:
        """Take note that a request is answered; return whether its caller is there to be told.

        Nobody is told twice: of two answers the first one counts.
        """
        if self._working.pop(id, None) is None:
            return False
        if id in self._gone:
            self._gone.discard(id)
            return False
        return True

    def abandon(self, id: str) -> bool:
        """Take note that a caller has gone; return whether it was still to be told anything."""
        if self._waiting.pop(id, None) is not None:
            return True
        if id in self._working and id not in self._gone:
            self._gone.add(id)
            return True
        return False

    def expire(self, now: float) -> list[DrpcAnswer]:
        """Return what those are told whose time is over."""
        told: list[DrpcAnswer] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, id = heapq.heappop(self._deadlines)
            why = self._why_late(id)
            if self.abandon(id):
                told.append(DrpcAnswer(id, error=DrpcError(DrpcErrorKind.TIMED_OUT, why)))
        self._forget_stale()
        return told

    def close(self) -> list[DrpcAnswer]:
        """Take nothing more; return what all those are told who still wait."""
        self._closed = True
        open_ids = list(self._open())
        error = _ended(self._function)
        return [DrpcAnswer(id, error=error) for id in open_ids if self.abandon(id)]

    def _open(self) -> Iterator[str]:
        yield from self._waiting
        yield from (id for id in self._working if id not in self._gone)

    def _why_late(self, id: str) -> str:
        waited = self._waiting.get(id)
        if waited is not None and waited.min_txid is not None:
            return f"batch {waited.min_txid} was not committed in time for {self._function!r}"
        if waited is not None:
            return f"the request waited its time for {self._function!r}, which is busy with others"
        return f"{self._function!r} was not done with the request in time"

    def _forget_stale(self) -> None:
        """Drop the deadlines of requests that are over, if these are most of them."""
        if len(self._deadlines) > 2 * (len(self._waiting) + len(self._working)) + _STALE_MAX:
            known = set(self._open())
            self._deadlines = [each for each in self._deadlines if each[1] in known]
            heapq.heapify(self._deadlines)


def _ended(function: str) -> DrpcError:
    return DrpcError(DrpcErrorKind.SHUTDOWN, f"the run of {function!r} has ended")


def _is_over(request: DrpcRequest, now: float) -> bool:
    return request.deadline is not None and request.deadline <= now


def _has(committed: int | None, txid: int) -> bool:
    return committed is not None and committed >= txid
