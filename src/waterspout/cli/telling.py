"""How `waterspout run` tells what happens: in lines for people, or in JSON for programs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

from waterspout._letters import DeadLetter
from waterspout._plain import plain
from waterspout._run import Run
from waterspout.cli.answers import print_json
from waterspout.cli.screen import Screen
from waterspout.cli.watching import Watcher, watch
from waterspout.coordination.events import CommandObeyed, Event
from waterspout.coordination.kept_letters import facts
from waterspout.topology._graph import Topology
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident._topology import TridentTopology

__all__ = ["ForPeople", "ForPrograms", "Teller", "as_line"]

_WAITING_MAX = 10_000
_LEFT_OUT = ("run", "traceback")


class Teller(ABC):
    """Is told by `waterspout run` how far it is, and tells whoever reads its output."""

    def __enter__(self) -> Teller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    @abstractmethod
    def starting(self, name: str, log: Path, *, remote: bool) -> None:
        """Say that Spark is about to be started, and where is logged to."""

    @abstractmethod
    def never_began(self, name: str) -> None:
        """Say that it was stopped while it started."""

    @abstractmethod
    def begun(self, topology: Topology | TridentTopology, run: Run) -> None:
        """Say that it runs; listen to it from now on."""

    @abstractmethod
    def look(self, *, last: bool = False) -> None:
        """Tell what is new; called a few times a second, and once at the end."""

    @abstractmethod
    def page(self, url: str) -> None:
        """Say where the page of the run is; called in any thread."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """Tell what was logged as a warning; called in any thread."""

    @abstractmethod
    def ended(self, why: str, took_s: float) -> None:
        """Say that it is over: done, stopped or killed."""


class ForPeople(Teller):
    """Lines that stay, and on a terminal one that shows how far it is."""

    def __init__(self) -> None:
        self._screen = Screen()
        self._watcher: Watcher | None = None
        self._run: Run | None = None
        self._obeyed: deque[str] = deque(maxlen=100)

    def __enter__(self) -> ForPeople:
        self._screen.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._screen.__exit__(*error)

    def starting(self, name: str, log: Path, *, remote: bool) -> None:
        of_spark = "the server has Spark's log, ours is" if remote else "Spark logs to"
        self._screen.say(f"{name}: starting; {of_spark} {log}")
        self._screen.spin("Spark is starting")

    def never_began(self, name: str) -> None:
        self._screen.say(f"{name}: stopped before it began")

    def begun(self, topology: Topology | TridentTopology, run: Run) -> None:
        self._run, self._watcher = run, watch(topology, run)
        if run.server_url is not None:
            self._screen.say(f"{run.name}: served at {run.server_url}")
        run.subscribe(self._hear)

    def look(self, *, last: bool = False) -> None:
        assert self._run is not None
        assert self._watcher is not None
        obeyed = [self._obeyed.popleft() for _ in range(len(self._obeyed))]
        for line in (*self._watcher.news(last=last), *obeyed):
            self._screen.say(line, "yellow")
        if not last:
            self._screen.show(f"{self._run.name}: {self._run.status}, {self._watcher.now()}")

    def page(self, url: str) -> None:
        self._screen.say(f"the page is at {url}")

    def warn(self, text: str) -> None:
        self._screen.warn(text)

    def ended(self, why: str, took_s: float) -> None:
        assert self._run is not None
        assert self._watcher is not None
        self._screen.say(f"{self._run.name}: {why}; {self._watcher.total()} in {took_s:.1f} s")
        for line in self._watcher.afterwards():
            self._screen.say(line)

    def _hear(self, event: Event) -> None:
        if isinstance(event, CommandObeyed):
            said = f"{event.command} by {event.by}: {event.outcome}, {event.text}"
            self._obeyed.append(f"{event.run}: {said}")


class ForPrograms(Teller):
    """A line of JSON for each event of the run, and for what the command itself has to say.

    The run is not held up by whoever reads: lines wait here, and if too many do, the oldest are
    left out, and counted in a line `Skipped`.
    """

    def __init__(self, waiting_max: int = _WAITING_MAX) -> None:
        self._waiting: deque[dict[str, Any]] = deque()
        self._waiting_max = waiting_max
        self._skipped = 0
        self._run: Run | None = None

    def starting(self, name: str, log: Path, *, remote: bool) -> None:
        _print_line("Starting", topology=name, log=str(log))

    def never_began(self, name: str) -> None:
        _print_line("Ended", topology=name, why="stopped", began=False)

    def begun(self, topology: Topology | TridentTopology, run: Run) -> None:
        self._run = run
        served = {} if run.server_url is None else {"server_url": run.server_url}
        _print_line("Started", topology=run.name, **served)
        run.subscribe(self._hear)

    def look(self, *, last: bool = False) -> None:
        for _ in range(len(self._waiting)):
            print_json(self._waiting.popleft())
        skipped, self._skipped = self._skipped, 0
        if skipped:
            _print_line("Skipped", lines=skipped)

    def page(self, url: str) -> None:
        self._add({"event": "Page", "timestamp": time.time(), "url": url})

    def warn(self, text: str) -> None:
        self._add({"event": "Warning", "timestamp": time.time(), "text": text})

    def ended(self, why: str, took_s: float) -> None:
        assert self._run is not None
        self.look()
        _print_line(
            "Ended",
            topology=self._run.name,
            why=why,
            began=True,
            seconds=round(took_s, 3),
            totals=self._run.snapshot().totals,
            dead_letters=len(self._run.dead_letters()),
        )

    def __exit__(self, *error: object) -> None:
        self.look()

    def _hear(self, event: Event) -> None:
        self._add(as_line(event))

    def _add(self, line: dict[str, Any]) -> None:
        # A deque with a bound would drop silently. One too many, by two threads, is no harm.
        if len(self._waiting) >= self._waiting_max:
            self._waiting.popleft()
            self._skipped += 1
        self._waiting.append(line)


def as_line(event: Event) -> dict[str, Any]:
    """Return an event by its name, with its fields; an attempt as `txid` and `attempt`."""
    line: dict[str, Any] = {"event": type(event).__name__, "topology": event.run}
    for name in (each.name for each in fields(event)):
        value = getattr(event, name)
        if name in _LEFT_OUT:
            continue
        if isinstance(value, TransactionAttempt):
            named = {"txid": value.transaction_id, "attempt": value.attempt_id}
            line |= named if name == "attempt" else {name: named}
        else:
            line[name] = facts(value) if isinstance(value, DeadLetter) else plain(value)
    return line


def _print_line(event: str, **known: Any) -> None:
    print_json({"event": event, "timestamp": time.time(), **known})
