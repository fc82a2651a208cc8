"""`DrpcService`: the functions of one run, the threads that answer, and the clock.

Each function has a thread of its own, made with its first request. While it answers, those who come
wait, and are its next batch: the busier it is, the larger its batches. A function that takes long
holds up only its own callers. The spouts of core topologies take their requests themselves.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from waterspout._config import Config
from waterspout._safe_repr import described
from waterspout.drpc._calls import (
    DrpcAnswer,
    DrpcError,
    DrpcErrorKind,
    DrpcFunction,
    DrpcRequest,
)
from waterspout.drpc._lines import Deliver, RequestLine
from waterspout.drpc._queue import QueueLimits

__all__ = ["DrpcService"]

log = logging.getLogger(__name__)


class DrpcService:
    """Takes calls for the functions of a run. Every method may be called from any thread."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.monotonic,
        committed: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._limits = QueueLimits(config.drpc_queue_size, config.drpc_queue_size)
        self._timeout_s = config.drpc_request_timeout_secs
        self._clock = clock
        self._committed = committed
        self._lines: dict[str, RequestLine] = {}
        self._functions: dict[str, DrpcFunction] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._alarm = threading.Condition()
        self._alarm_at = float("inf")
        self._timer: threading.Thread | None = None
        self._closed = False

    def add(self, function: DrpcFunction) -> None:
        """Answer a function by a thread of this service."""
        self._functions[function.name] = function
        self.open_line(function.name)

    def open_line(self, function: str) -> RequestLine:
        """Return the line of a function whose requests somebody else takes."""
        assert function not in self._lines, f"{function!r} twice"
        line = self._lines[function] = RequestLine(
            function, self._limits, clock=self._clock, committed=self._committed
        )
        return line

    def functions(self) -> list[dict[str, object]]:
        """Return each function with what has become of its requests, by name."""
        return [{"name": name, **self._lines[name].stats()} for name in sorted(self._lines)]

    def has(self, function: str) -> bool:
        """Whether there is a function of this name."""
        return function in self._lines

    def call(
        self,
        function: str,
        args: str,
        deliver: Deliver,
        *,
        min_txid: int | None = None,
        timeout_s: float | None = None,
    ) -> str | DrpcError:
        """Ask for an answer, which is delivered once, and return the id of the request.

        An error says why it was not admitted: then nothing is done about it, nor delivered. A
        caller may wait shorter than the run allows, not longer.
        """
        line = self._lines.get(function)
        if line is None:
            return DrpcError(DrpcErrorKind.FAILED, self._unknown(function))
        lasts_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        deadline = self._clock() + lasts_s
        id = str(next(self._ids))
        if function in self._functions and function not in self._threads:
            self._start_thread(function)
        refused = line.call(DrpcRequest(id, args, min_txid, deadline), deliver)
        if refused is not None:
            return refused
        if deadline < self._alarm_at:
            self._set_alarm(deadline)
        return id

    def execute(
        self,
        function: str,
        args: str,
        *,
        min_txid: int | None = None,
        timeout_s: float | None = None,
    ) -> DrpcAnswer:
        """Ask and wait for the answer; it may be an error."""
        told = threading.Event()
        answers: list[DrpcAnswer] = []

        def deliver(given: list[DrpcAnswer]) -> None:
            answers.extend(given)
            told.set()

        asked = self.call(function, args, deliver, min_txid=min_txid, timeout_s=timeout_s)
        if isinstance(asked, DrpcError):
            return DrpcAnswer("", error=asked)
        told.wait()
        return answers[0]

    def abandon(self, function: str, id: str) -> None:
        """Deliver nothing for this call any more: its caller has gone."""
        self._lines[function].abandon(id)

    def look_again(self) -> None:
        """A batch has committed: requests may have waited for it."""
        for line in self._lines.values():
            line.look_again()

    def close(self) -> None:
        """Tell all who wait that the run has ended; the threads end when they are done."""
        with self._lock:
            self._closed = True
        for line in self._lines.values():
            line.close()
        with self._alarm:
            self._alarm.notify_all()

    def _unknown(self, function: str) -> str:
        known = ", ".join(sorted(self._lines)) or "none"
        return f"there is no function {function!r}; this topology has: {known}"

    def _start_thread(self, function: str) -> None:
        with self._lock:
            if function in self._threads or self._closed:
                return
            self._threads[function] = thread = threading.Thread(
                target=_answer_all,
                args=(self._lines[function], self._functions[function]),
                name=f"waterspout-drpc-{function}",
                daemon=True,
            )
        thread.start()

    def _set_alarm(self, at: float) -> None:
        with self._alarm:
            if at >= self._alarm_at or self._closed:
                return
            self._alarm_at = at
            if self._timer is None:
                self._timer = threading.Thread(
                    target=self._watch_deadlines, name="waterspout-drpc-timeouts", daemon=True
                )
                self._timer.start()
            self._alarm.notify()

    def _watch_deadlines(self) -> None:
        while True:
            with self._alarm:
                while not self._closed and (left := self._alarm_at - self._clock()) > 0:
                    self._alarm.wait(min(left, threading.TIMEOUT_MAX))
                if self._closed:
                    return
                self._alarm_at = float("inf")
            # A call meanwhile sets the alarm anew: none is missed.
            following = [line.expire() for line in self._lines.values()]
            self._set_alarm(min((at for at in following if at is not None), default=float("inf")))


def _answer_all(line: RequestLine, function: DrpcFunction) -> None:
    """Answer the requests of a function, batch by batch, until its line is closed."""
    while requests := line.take(wait=True):
        line.answer(_answers(function, requests))


def _answers(function: DrpcFunction, requests: Sequence[DrpcRequest]) -> Iterable[DrpcAnswer]:
    """Return one answer for each request, whatever the function does."""
    try:
        found = {answer.id: answer for answer in function.answer(requests)}
    except Exception as error:
        log.exception("DRPC function %r raised", function.name)
        why = f"{function.name!r} could not be asked: {described(error)}"
        return [_failed(request, why) for request in requests]
    return [
        found.get(request.id) or _failed(request, f"{function.name!r} gave no answer")
        for request in requests
    ]


def _failed(request: DrpcRequest, why: str) -> DrpcAnswer:
    return DrpcAnswer(request.id, error=DrpcError(DrpcErrorKind.UNAVAILABLE, why))
