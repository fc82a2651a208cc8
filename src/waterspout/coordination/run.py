"""`Run`: a topology that runs, as Spark's StreamingQuery is a query that runs."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from waterspout._causes import in_full, told
from waterspout._config import Config
from waterspout._habits import SaysInstead
from waterspout._letters import DeadLetter
from waterspout._log_context import about
from waterspout.coordination.commands.desk import CommandDesk
from waterspout.coordination.commands.messages import Change, Reply, Verb
from waterspout.coordination.driven import DrivenLoop
from waterspout.coordination.events import Listener, RunEnded, RunIdle
from waterspout.coordination.notebook import html_of
from waterspout.coordination.progress import (
    BatchProgress,
    ErrorSummary,
    RunSnapshot,
    TimelineEntry,
    WaveProgress,
)
from waterspout.coordination.query_listener import QueryListener, listener_of
from waterspout.coordination.recording import Recorder
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import LeaseLostError, OutageError, RunFailedError
from waterspout.trident.drpc.running import RequestRunner

__all__ = ["Run", "runs"]

log = logging.getLogger(__name__)

_live: list[Run] = []
_live_lock = threading.Lock()


def runs() -> list[Run]:
    """Return the runs of this process that have not ended, in the order of their starts."""
    with _live_lock:
        return list(_live)


class Run(SaysInstead):
    """A running topology. Its own thread drives it; every method may be called from any.

    `attend` is called with the run before its first step.
    """

    _instead: ClassVar[Mapping[str, str]] = {
        "is_active": "status says running, idle, inactive, stopped or failed",
        "kill": "stop() ends it",
        "progress": "last_progress is the newest, recent_progress the latest",
        "wait": "await_termination() waits for its end, process_all_available() for the sources",
    }

    def __init__(
        self,
        loop: DrivenLoop,
        recorder: Recorder,
        store: CoordinationStore,
        config: Config,
        *,
        explain: Callable[[], str],
        close: Callable[[], None],
        letters: Callable[[], list[DeadLetter]] = list,
        letter_count: Callable[[], int] = int,
        attend: Callable[[Run], object] | None = None,
        runners: Sequence[RequestRunner] = (),
    ) -> None:
        self.name = name = loop.name
        self._id = uuid.uuid4().hex
        self._loop = loop
        self._recorder = recorder
        self._store = store
        self._config = config
        self._explain = explain
        self._close = close
        self._letters = letters
        self._letter_count = letter_count
        # What answers requests (a DrpcFunction of waterspout.drpc), by name; for the server.
        self._runners = runners
        self._functions: dict[str, Any] = {}
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._ended = self._end_is_told = False
        self._failure: BaseException | None = None
        self._server_url: str | None = None
        self._rounds = 0
        # Up to this round the loop looks at the sources without a pause: somebody waits for it.
        self._hurry_until = 1
        self._desk = CommandDesk(loop, store, config, lambda: self.snapshot())
        self._desk.begin()
        self._thread = threading.Thread(target=self._drive, name=f"waterspout-{name}", daemon=True)
        self._keeper = threading.Thread(
            target=self._keep_lease, name=f"waterspout-lease-{name}", daemon=True
        )
        with _live_lock:
            _live.append(self)
        if attend is not None:
            self._let_in(attend)
        self._thread.start()
        self._keeper.start()

    @property
    def status(self) -> str:
        """One of running, idle, inactive, stopped, failed; or "waiting for postgres, 34 s"."""
        if self._ended:
            return "failed" if self._failure is not None else "stopped"
        for outage in self._recorder.waiting_for:
            return outage.shown(time.time())
        if not self._loop.active:
            return "inactive"
        return "idle" if self._loop.is_idle else "running"

    @property
    def last_progress(self) -> BatchProgress | WaveProgress | None:
        """The newest progress; None before the first batch has committed."""
        return self.snapshot().last_progress

    @property
    def recent_progress(self) -> list[BatchProgress | WaveProgress]:
        """The progress of the batches committed last, oldest first."""
        return self._recorder.recent

    @property
    def timeline(self) -> list[TimelineEntry]:
        """When phases of recent batches started and ended, in seconds of one clock."""
        return self._recorder.timeline

    @property
    def errors(self) -> list[ErrorSummary]:
        """The latest errors of components and batches, oldest first, each with its count."""
        return list(self.snapshot().errors)

    def snapshot(self) -> RunSnapshot:
        """Return how the run stands now: what is in flight and what waits, totals, errors."""
        return replace(self._recorder.snapshot(self.status), lag=self._loop.lag)

    def subscribe(self, listener: Listener | QueryListener) -> Callable[[], None]:
        """Call `listener` with every event from now on; return a function that ends that.

        It may also be an object with the methods of Spark's StreamingQueryListener, such as
        `onQueryProgress`. It is called in the thread that drives the run, which waits for it. What
        it raises is logged and harms nobody.
        """
        return self._loop.events.subscribe(listener_of(listener, self.name, self._id))

    def _repr_html_(self) -> str:
        """Return how the run stands now, for notebooks."""
        return html_of(self.snapshot(), self.recent_progress, self.server_url)

    @property
    def server_url(self) -> str | None:
        """Where the driver answers questions about this run; None when nothing is served."""
        return self._server_url

    def served_at(self, url: str | None) -> None:
        """Take note of where this run is served; other terminals are told as well."""
        self._server_url = url
        self._desk.tell(server_url=url)

    @property
    def store(self) -> CoordinationStore:
        """Where its ledger is kept; to look at, from any thread."""
        return self._store

    def ask(
        self,
        verb: Verb,
        by: str,
        *,
        wait_s: float | None = None,
        change: Change | None = None,
        timeout_s: float = 60.0,
    ) -> Reply:
        """Give a command as another terminal would, and wait for what becomes of it.

        The reply may be that it was accepted, if it is not done within `timeout_s`.
        """
        return self._desk.ask(verb, by, wait_s, change or Change(), timeout_s)

    def exception(self) -> BaseException | None:
        """Return what stopped the run, if it stopped by itself."""
        return self._failure

    def explain(self) -> str:
        """Return the plan, the phases, and the guarantee of each state."""
        return self._explain()

    def dead_letters(self) -> list[DeadLetter]:
        """Return what could not be processed and is kept, of earlier runs as well, oldest first.

        These are messages of a core topology, or rows of a Trident topology; a transactional
        topology has none. May be called when the run has ended.
        """
        return self._letters()

    @property
    def dead_letter_count(self) -> int:
        """How many dead letters there are, without reading them."""
        return self._letter_count()

    def activate(self) -> None:
        """Let the spouts go on."""
        self._loop.active = True
        self._loop.wake()

    def deactivate(self) -> None:
        """Start no new batch; those in flight are finished."""
        self._loop.active = False
        self._loop.wake()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended; False if it has not within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._end_is_told, timeout)
        self._raise_failure()
        return self._end_is_told

    def process_all_available(self, timeout: float | None = None) -> None:
        """Wait until the sources have nothing more and every batch is committed.

        Raises what stopped the run, or TimeoutError.
        """
        with self._changed:
            # One more than the round under way, which may have looked at the sources before.
            wanted = self._rounds + 2
            self._hurry_until = max(self._hurry_until, wanted)
            self._loop.look_anew()
            done = self._changed.wait_for(
                lambda: self._end_is_told or (self._rounds >= wanted and self._loop.is_idle),
                timeout,
            )
        self._raise_failure()
        if not done:
            raise TimeoutError(f"{self.name} was not done after {timeout} s: {self.last_progress}")

    def stop(self, timeout: float | None = 60.0) -> None:
        """End the run; a batch in flight is abandoned and will be replayed by the next run."""
        self._stopping.set()
        self._loop.leave()
        self._thread.join(timeout)

    def _let_in(self, attend: Callable[[Run], object]) -> None:
        """Show the run, before its first step, to who wants to miss nothing of it.

        What that raises ends the run before it has begun.
        """
        try:
            attend(self)
        except BaseException as error:
            self._failure = error
            self._stopping.set()
            self._shut_down()
            raise

    def _drive(self) -> None:
        with about(topology=self.name):
            self._drive_to_the_end()

    def _drive_to_the_end(self) -> None:
        poll_s, idle = self._config.idle_poll_millis / 1000, False
        try:
            while not self._stopping.is_set():
                hurry = self._rounds < self._hurry_until
                self._loop.step(wait_s=0.0 if hurry else poll_s)
                idle, told_idle = self._loop.is_idle, idle
                if idle and not told_idle:
                    self._loop.events.publish(RunIdle(self.name))
                if self._desk.turn():
                    self._stopping.set()
                with self._changed:
                    self._rounds += 1
                    self._changed.notify_all()
        except BaseException as error:
            if isinstance(error, OutageError) and self._stopping.is_set():
                log.warning("run %s was told to stop while it waited: %s", self.name, error)
            else:
                self._failure = error
                log.error("run %s stopped: %s", self.name, told(error))
                log.info("why run %s stopped, in full:\n%s", self.name, in_full(error))
        finally:
            self._stopping.set()
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            failed = self._failure is not None
            self._desk.end("failed" if failed else "stopped", self._failure)
        except Exception:
            log.exception("telling the end of run %s", self.name)
        try:
            self._loop.close()
            self._close()
        except Exception:
            log.exception("closing run %s", self.name)
        finally:
            with _live_lock:
                _live.remove(self)
            self._ended = True
            self._loop.events.publish(RunEnded(self.name, self._failure))
            with self._changed:
                self._end_is_told = True
                self._changed.notify_all()

    def _keep_lease(self) -> None:
        with about(topology=self.name):
            self._renew_lease()

    def _renew_lease(self) -> None:
        interval = self._config.lease_secs / 3
        while not self._stopping.wait(interval):
            try:
                self._store.renew()
            except LeaseLostError as error:
                self._loop.abandon(error)
                return
            except Exception as error:
                # Not renewed now is not lost yet: every save checks the lease for itself.
                log.warning("the lease of %s was not renewed: %s", self.name, error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RunFailedError(
                f"run {self.name} stopped: {told(self._failure)}"
            ) from self._failure
