"""`RequestLine`: the queue of one function, with a lock, and who waits for its answers.

Callers stand at one end, in threads or in an event loop; at the other end somebody takes requests
and answers them: a thread of the service, or the spout of a core topology.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TypeAlias

from waterspout.drpc._calls import DrpcAnswer, DrpcError, DrpcRequest
from waterspout.drpc._queue import QueueLimits, RequestQueue

__all__ = ["Deliver", "LineCounts", "RequestLine"]

Deliver: TypeAlias = Callable[[list[DrpcAnswer]], object]
"""Is given answers, several at once where they came together. Must neither wait nor raise."""


@dataclass(slots=True)
class LineCounts:
    """What has become of the requests of a function so far."""

    answered: int = 0
    failed: int = 0
    """Told an error: also those that were late, and those at the end of the run."""
    refused: int = 0
    abandoned: int = 0
    """Their callers went away before they were told anything."""


class RequestLine:
    """The requests of one function. Every method may be called from any thread."""

    def __init__(
        self,
        function: str,
        limits: QueueLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        committed: Callable[[], int | None] = lambda: None,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self.function = function
        self.wake = wake
        """Is called when there is something to take, for whoever does not wait in `take`."""
        self._queue = RequestQueue(function, limits)
        self._clock = clock
        self._committed = committed
        self._changed = threading.Condition()
        self._callers: dict[str, Deliver] = {}
        self._counts = LineCounts()
        self._closed = False

    def call(self, request: DrpcRequest, deliver: Deliver) -> DrpcError | None:
        """Let a request wait for its answer, which is delivered once; or return why not."""
        with self._changed:
            refused = self._queue.admit(request)
            if refused is not None:
                self._counts.refused += 1
                return refused
            self._callers[request.id] = deliver
            self._changed.notify()
        self.wake()
        return None

    def abandon(self, id: str) -> None:
        """Deliver nothing for this request any more: its caller has gone."""
        with self._changed:
            if self._queue.abandon(id):
                del self._callers[id]
                self._counts.abandoned += 1

    def take(self, *, wait: bool = False) -> list[DrpcRequest]:
        """Return the requests to be answered now, all together; [] for none.

        With `wait` there is always one, until the line is closed.
        """
        with self._changed:
            while True:
                taken = self._queue.take(self._clock(), self._committed())
                if taken or self._closed or not wait:
                    return taken
                self._changed.wait()

    def answer(self, answers: Iterable[DrpcAnswer]) -> None:
        """Tell the callers of these requests; those who were told before are not told again."""
        with self._changed:
            due = [answer for answer in answers if self._queue.answer(answer.id)]
            told = self._pick_up(due)
        _deliver(told)

    def expire(self) -> float | None:
        """Tell those whose time is over; return when the next one's is."""
        with self._changed:
            told = self._pick_up(self._queue.expire(self._clock()))
            following = self._queue.next_deadline
        _deliver(told)
        return following

    def look_again(self) -> None:
        """A batch has committed: somebody may have waited for it."""
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Tell all who wait that it is over, and whoever comes later too."""
        with self._changed:
            self._closed = True
            told = self._pick_up(self._queue.close())
            self._changed.notify_all()
        _deliver(told)

    def stats(self) -> dict[str, int]:
        """Return what waits, what is worked on, and what has become of the rest."""
        with self._changed:
            now = {"waiting": self._queue.waiting, "working": self._queue.working}
            return now | asdict(self._counts)

    def _pick_up(self, answers: list[DrpcAnswer]) -> dict[Deliver, list[DrpcAnswer]]:
        """Return the answers by who takes them: one call for all that came together."""
        found: dict[Deliver, list[DrpcAnswer]] = {}
        for answer in answers:
            found.setdefault(self._callers.pop(answer.id), []).append(answer)
            if answer.error is None:
                self._counts.answered += 1
            else:
                self._counts.failed += 1
        return found


def _deliver(told: dict[Deliver, list[DrpcAnswer]]) -> None:
    for deliver, answers in told.items():
        deliver(answers)
