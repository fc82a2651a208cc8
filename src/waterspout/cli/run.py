"""`waterspout run`: submit a topology and show how far it is, until it is done or stopped."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from waterspout._run import Run, submit
from waterspout.cli.check import explained
from waterspout.cli.loading import load_topology
from waterspout.cli.logs import logging_to
from waterspout.cli.options import (
    ConfigFile,
    Master,
    Remote,
    Retired,
    Settings,
    Target,
    read_config,
)
from waterspout.cli.screen import Screen
from waterspout.cli.stopping import StopSignals
from waterspout.cli.watching import Watcher, start_waiting, watch
from waterspout.coordination.events import CommandObeyed, Event
from waterspout.coordination.factory import make_way
from waterspout.errors import ConfigError

__all__ = ["run"]

_LOOK_EVERY_S = 0.2


def run(
    target: Target,
    config: ConfigFile = None,
    setting: Settings = None,
    master: Master = None,
    remote: Remote = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when the sources have nothing more.")
    ] = False,
    retire: Retired = None,
    log_file: Annotated[
        Path | None,
        typer.Option(help="Where is logged to; by default a temporary file, named at the start."),
    ] = None,
) -> None:
    """Run a topology, on an embedded Spark unless another is named.

    Ctrl-C or SIGTERM ends it; the same command goes on where it was.
    """
    from waterspout.spark.starting import open_session

    if master is not None and remote is not None:
        raise ConfigError("--master and --remote exclude each other; give one of them")
    conf = read_config(config, setting, retire)
    topology = load_topology(target)
    make_way(topology.name, conf)
    explained(topology, conf)  # before a JVM is started
    log = (log_file or _new_log_file(topology.name)).absolute()
    with StopSignals() as stop, Screen() as screen, logging_to(log, screen):
        of_spark = "Spark logs to" if remote is None else "the server has Spark's log, ours is"
        screen.say(f"{topology.name}: starting; {of_spark} {log}")
        screen.spin("Spark is starting")
        session = None
        try:
            try:
                session = open_session(
                    log,
                    master=master,
                    remote=remote,
                    connect_timeout_secs=conf.connect_timeout_secs,
                )
                running = submit(topology, session, conf)
            except KeyboardInterrupt:
                screen.say(f"{topology.name}: stopped before it began")
                return
            stop.be_patient()
            _watch(running, watch(topology, running), stop, screen, until_idle=until_idle)
        finally:
            stop.be_patient()
            if session is not None:
                with contextlib.suppress(Exception):  # its JVM may be gone
                    session.stop()


def _new_log_file(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix="waterspout-")) / f"{name}.log"


def _watch(
    running: Run, watcher: Watcher, stop: StopSignals, screen: Screen, *, until_idle: bool
) -> None:
    began = time.monotonic()
    obeyed = _Obeyed()
    running.subscribe(obeyed)
    caught_up = start_waiting(running) if until_idle else None
    try:
        while not stop.wait(_LOOK_EVERY_S) and running.status not in ("stopped", "failed"):
            _tell([*watcher.news(), *obeyed.news()], screen)
            screen.show(f"{running.name}: {running.status}, {watcher.now()}")
            if caught_up is not None and caught_up.is_set():
                break
    finally:
        running.stop()
    _tell([*watcher.news(last=True), *obeyed.news()], screen)
    running.await_termination()
    why = "killed" if obeyed.killed else "stopped" if stop.is_set else "done"
    took = f"{time.monotonic() - began:.1f} s"
    screen.say(f"{running.name}: {why}; {watcher.total()} in {took}")
    for line in watcher.afterwards():
        screen.say(line)


class _Obeyed:
    """Listens to what commands from other terminals come to."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=100)
        self.killed = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, CommandObeyed):
            self._lines.append(
                f"{event.run}: {event.command} by {event.by}: {event.outcome}, {event.text}"
            )
            self.killed = self.killed or (event.command, event.outcome) == ("kill", "done")

    def news(self) -> list[str]:
        """Return the lines since the last call."""
        return [self._lines.popleft() for _ in range(len(self._lines))]


def _tell(lines: Iterable[str], screen: Screen) -> None:
    for line in lines:
        screen.say(line, "yellow")
