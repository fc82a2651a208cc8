"""The functions of a Trident topology: requests in, answers out, each by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waterspout._causes import told
from waterspout.coordination.events import BatchCommitted, Event
from waterspout.coordination.loop import BatchLoop
from waterspout.coordination.run import Run
from waterspout.drpc._calls import DrpcAnswer, DrpcError, DrpcErrorKind, DrpcRequest
from waterspout.drpc._plain import plain
from waterspout.errors import OutageError
from waterspout.transactional._ledger import Ledger
from waterspout.trident.drpc.nodes import REQUEST
from waterspout.trident.drpc.running import Patience, RequestFailure, RequestRunner

__all__ = ["Commits", "TridentFunction", "functions_of", "trident_functions", "visible"]

_LOOK_AGAIN_S = 0.1
"""How long a wait for a batch goes on without a look, should nobody have told of it."""


def visible(ledger: Ledger) -> int:
    """Return the last batch whose values a reader of any state sees; 0: none has committed.

    A batch that was marked shows when its states have been told. They have been told of the one
    before it: that is part of the claim.
    """
    last = ledger.current - 1
    return last if ledger.settled or last == 0 else last - 1


class Commits:
    """What has committed, for readers that want to see some batch, or to say what they saw.

    Told of events in the thread that drives the run; it only wakes who waits.
    """

    def __init__(self, ledger: Callable[[], Ledger], *, any_stream: bool = True) -> None:
        self._ledger = ledger
        self._any_stream = any_stream
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        """Take an event of the run."""
        if isinstance(event, BatchCommitted):
            with self._changed:
                self._changed.notify_all()

    @property
    def txid(self) -> int | None:
        """The last batch that readers see; None where no stream has batches."""
        return visible(self._ledger()) if self._any_stream else None

    def wait_for(self, txid: int, deadline: float) -> bool:
        """Wait until readers see a batch; False if they do not before the deadline."""
        if not self._any_stream:
            return False
        with self._changed:
            while visible(self._ledger()) < txid:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _LOOK_AGAIN_S))
        return True


@dataclass(frozen=True)
class TridentFunction:
    """A function of a running Trident topology (a `DrpcFunction`)."""

    runner: RequestRunner
    commits: Commits
    is_over: Callable[[], bool]
    lock: threading.Lock
    """Held while operations run: those of users need not bear several threads at once."""

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.runner.call.function

    def answer(self, requests: Sequence[DrpcRequest]) -> list[DrpcAnswer]:
        """Answer requests together; one by one, if together they fail."""
        if self.is_over():
            error = DrpcError(DrpcErrorKind.SHUTDOWN, f"the run that answers {self.name} has ended")
            return [DrpcAnswer(request.id, error=error) for request in requests]
        answers: dict[int, DrpcAnswer] = {}
        # Those who wait for no batch, or not long, are not kept waiting by the others.
        groups: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(request.min_txid or 0, []).append(index)
        for min_txid, indexes in sorted(groups.items()):
            ready = self._seeing(min_txid, indexes, requests, answers)
            if ready:
                self._run(ready, requests, answers)
        return [answers[index] for index in range(len(requests))]

    def _seeing(
        self,
        min_txid: int,
        indexes: list[int],
        requests: Sequence[DrpcRequest],
        answers: dict[int, DrpcAnswer],
    ) -> list[int]:
        """Return those whose batch is committed before their deadline; answer the others."""
        ready = []
        for index in sorted(indexes, key=lambda i: _deadline(requests[i])):
            request = requests[index]
            if not min_txid or self.commits.wait_for(min_txid, _deadline(request)):
                ready.append(index)
                continue
            seen = self.commits.txid
            why = "no stream of this topology has batches"
            if seen is not None:
                why = f"batch {min_txid} was not committed in time; the last one is {seen}"
            error = DrpcError(DrpcErrorKind.TIMED_OUT, why)
            answers[index] = DrpcAnswer(request.id, error=error, txid=seen)
        return sorted(ready)

    def _run(
        self, indexes: list[int], requests: Sequence[DrpcRequest], answers: dict[int, DrpcAnswer]
    ) -> None:
        last = max(_deadline(requests[index]) for index in indexes)
        seen = self.commits.txid  # before the states are asked: they show this batch, or a later
        found: pa.Table | RequestFailure
        found = self._locked([requests[index].args for index in indexes], last)
        over = time.monotonic() >= last
        if (
            isinstance(found, RequestFailure)
            and len(indexes) > 1
            and not _is_everyones(found, over=over)
        ):
            for index in indexes:
                self._run([index], requests, answers)
            return
        if isinstance(found, RequestFailure):
            error = _told(found, over=over)
            answers.update({i: DrpcAnswer(requests[i].id, error=error, txid=seen) for i in indexes})
            return
        rows: list[list[Any]] = [[] for _ in indexes]
        columns = [found.column(name).to_pylist() for name in self.runner.call.names]
        for number, row in zip(
            found.column(REQUEST).to_pylist(), zip(*columns, strict=True), strict=True
        ):
            rows[number].append(plain(row))
        now = time.monotonic()
        for index, tuples in zip(indexes, rows, strict=True):
            request = requests[index]
            if now > _deadline(request):
                late = DrpcError(DrpcErrorKind.TIMED_OUT, "the answer came after its deadline")
                answers[index] = DrpcAnswer(request.id, error=late, txid=seen)
            else:
                answers[index] = DrpcAnswer(request.id, tuples=tuples, txid=seen)

    def _locked(self, args: Sequence[str], deadline: float) -> pa.Table | RequestFailure:
        patience = Patience(deadline)
        left = min(patience.seconds_left, threading.TIMEOUT_MAX)
        if left <= 0 or not self.lock.acquire(timeout=left):
            return RequestFailure(TimeoutError("other requests were not done in time"))
        try:
            return self.runner.run(args, patience)
        finally:
            self.lock.release()


def trident_functions(run: Run) -> Mapping[str, TridentFunction]:
    """Return the functions of a run's topology by name; none, if it has no DRPC stream."""
    loop = run._loop
    if not run._runners or not isinstance(loop, BatchLoop):
        return {}
    commits = Commits(lambda: loop.ledger, any_stream=run._runners[0].call.has_batches)
    run.subscribe(commits)
    return functions_of(run._runners, commits, lambda: run.status in ("stopped", "failed"))


def functions_of(
    runners: Sequence[RequestRunner], commits: Commits, is_over: Callable[[], bool]
) -> Mapping[str, TridentFunction]:
    """Return the functions of a topology by name; those that share an operation take turns."""
    operations = [
        {id(o) for node in runner.call.stream.nodes for o in node.operations} for runner in runners
    ]
    locks = _locks(operations)
    made = (TridentFunction(r, commits, is_over, k) for r, k in zip(runners, locks, strict=True))
    return {function.name: function for function in made}


def _locks(used: Sequence[set[int]]) -> list[threading.Lock]:
    """Return a lock for each of these sets: the same for those that others link to each other."""
    linked: list[set[int]] = []
    for each in used:
        touched = [group for group in linked if group & each]
        linked = [group for group in linked if not group & each]
        linked.append(each.union(*touched))
    locks = [(group, threading.Lock()) for group in linked]
    return [next((k for group, k in locks if group & u), threading.Lock()) for u in used]


def _deadline(request: DrpcRequest) -> float:
    return float("inf") if request.deadline is None else request.deadline


def _is_everyones(failure: RequestFailure, *, over: bool) -> bool:
    """Whether each of the requests would fail alike: no operation of the user's did it."""
    return over or isinstance(failure.error, OutageError)


def _told(failure: RequestFailure, *, over: bool) -> DrpcError:
    kind = DrpcErrorKind.FAILED
    if isinstance(failure.error, OutageError):
        kind = DrpcErrorKind.UNAVAILABLE
    elif over and isinstance(failure.error, TimeoutError):
        kind = DrpcErrorKind.TIMED_OUT
    return DrpcError(kind, told(failure.error), failure.operation)
