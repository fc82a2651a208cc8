"""A failure that user code raises on purpose, kept through Spark's own retries of tasks.

Spark runs a task again that has failed, and does not tell it why. So tasks leave notes beside
Spark's files on their executor. A try that follows on others reads them: where one of them has
failed on purpose it fails likewise, and calls nobody. Where all of them have begun here and none
has, a worker was lost, or user code has crashed: that is what retries are for. Where one was
elsewhere, nobody here knows why it ended: this try may still show the same error, but it may not
succeed in place of one that has failed on purpose.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyspark import SparkFiles, TaskContext

from waterspout.errors import FailedException

__all__ = ["FAILED_MARK", "Tries", "one_try"]

FAILED_MARK = "waterspout-failed:"
"""Marks, in the text that Spark passes on, an error that asks for a replay."""

_FILE = ".waterspout-tries"
_BYTES_MAX = 1_000_000
"""The notes are forgotten when there are more: tasks that are run again then count as unknown."""


@dataclass(frozen=True, slots=True)
class Tries:
    """The tries of one task on this executor; `number` is the one that is under way."""

    path: str
    task: str
    number: int

    @classmethod
    def here(cls) -> Tries | None:
        """Return those of the task that runs in this process; None in the driver."""
        context = TaskContext.get()
        if context is None:
            return None
        path = os.path.join(SparkFiles.getRootDirectory(), _FILE)
        return cls(path, f"{context.stageId()}.{context.partitionId()}", context.attemptNumber())

    def begin(self) -> bool:
        """Note that this try begins; return whether it is known how all before it have ended.

        Raises what an earlier one has raised on purpose.
        """
        known = True
        if self.number:
            found = self._read()
            for reason in found.values():
                if reason is not None:
                    raise FailedException(reason)
            known = found.keys() >= set(range(self.number))
        self._note(None)
        return known

    def failed(self, reason: str) -> None:
        """Note that this try has failed on purpose."""
        self._note(reason)

    def _note(self, reason: str | None) -> None:
        line = json.dumps([self.task, self.number, reason]).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):  # without its note, a try that follows knows less
            handle = os.open(self.path, flags, 0o600)
            try:
                if os.fstat(handle).st_size > _BYTES_MAX:
                    os.ftruncate(handle, 0)
                os.write(handle, line)  # whole: nobody's lines get mixed up
            finally:
                os.close(handle)

    def _read(self) -> dict[int, str | None]:
        """Return the tries of this task that are noted here; those that failed with a reason."""
        found: dict[int, str | None] = {}
        with suppress(OSError), open(self.path, "rb") as file:
            for line in file:
                with suppress(ValueError):  # one that is being written
                    task, number, reason = json.loads(line)
                    if task == self.task and number < self.number:
                        found[number] = reason or found.get(number)
        return found


@contextmanager
def one_try() -> Iterator[None]:
    """Run user code in a task; what it raises on purpose fails the attempt, not only this try."""
    tries = Tries.here()
    try:
        known = tries is None or tries.begin() or _speculates()
        yield
        if not known:
            raise FailedException(
                "Spark ran a task again on another machine than before, where it is not known "
                "whether it had failed on purpose"
            )
    except FailedException as error:
        if tries is not None:
            tries.failed(str(error))
        raise FailedException(f"{FAILED_MARK} {error}") from error


def _speculates() -> bool:
    """Whether a second try may be there because the first one is slow."""
    context = TaskContext.get()
    setting = None if context is None else context.getLocalProperty("spark.speculation")
    return setting == "true"
