"""Phases of batches as generators: nothing runs by itself, and whoever drives chooses what does."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

from waterspout.coordination.engine import BatchEngine, Ended, Failed, Report
from waterspout.transactional._attempt import TransactionAttempt

__all__ = ["SteppedEngine", "Steps"]

W = TypeVar("W")
Steps = Generator[None, None, Report]
"""A phase that stops wherever a crash or another batch could come between."""


@dataclass(slots=True)
class _Job:
    attempt: TransactionAttempt
    steps: Steps
    cancelled: bool = False


class SteppedEngine(BatchEngine, Generic[W]):
    """Runs phases step by step, when told to; a cancelled one goes on, unheard, as a zombie."""

    def __init__(self) -> None:
        self._jobs: list[_Job] = []
        self._work: dict[TransactionAttempt, W] = {}  # what attempts have made so far

    @property
    def waiting(self) -> int:
        """How many phases could go on."""
        return len(self._jobs)

    def step(self, choose: Callable[[int], int] = lambda n: 0) -> bool:
        """Let one phase go on by one step; `choose(n)` says which of n. False if there is none."""
        if not self._jobs:
            return False
        job = self._jobs[choose(len(self._jobs))]
        try:
            next(job.steps)
        except StopIteration as end:
            self._finish(job, end.value)
        except Exception as error:
            self._finish(job, Failed(job.attempt, error))
        return True

    def start(self, attempt: TransactionAttempt, steps: Steps) -> None:
        """Add a phase to those that could go on."""
        self._jobs.append(_Job(attempt, steps))

    def release(self, attempt: TransactionAttempt) -> None:
        self._work.pop(attempt)

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._work.pop(attempt, None)
        running = [job for job in self._jobs if job.attempt == attempt]
        for job in running:
            job.cancelled = True
        if not running:
            self.report(Ended(attempt))

    def _finish(self, job: _Job, report: Report) -> None:
        self._jobs.remove(job)
        self.report(Ended(job.attempt) if job.cancelled else report)
