"""A bounded pool of threads that never keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["DaemonPool"]


class DaemonPool:
    """Runs jobs in order of arrival on at most `size` threads.

    The standard library's pool waits for its threads when Python exits; a thread that waits for
    a Spark job that never ends would then keep the driver alive for ever.
    """

    def __init__(self, size: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True)
            for n in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Queue a job; the future can be cancelled until a thread takes it."""
        future: Future[None] = Future()
        self._jobs.put((future, job))
        return future

    def close(self, timeout_s: float) -> None:
        """Let the threads end after what they are doing, and wait for that a while."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout_s)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                job()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
