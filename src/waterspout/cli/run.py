"""`waterspout run`: submit a topology and show how far it is, until it is done or stopped."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from waterspout._run import Run, submit
from waterspout.cli.answers import AsJson
from waterspout.cli.check import explained
from waterspout.cli.loading import load_topology
from waterspout.cli.logs import logging_to
from waterspout.cli.options import (
    ConfigFile,
    LogFormat,
    Master,
    Remote,
    Retired,
    Settings,
    Target,
    read_config,
)
from waterspout.cli.stopping import StopSignals
from waterspout.cli.telling import ForPeople, ForPrograms, Teller
from waterspout.cli.ui import PageBeside, require_page
from waterspout.cli.watching import start_waiting
from waterspout.coordination.events import CommandObeyed, Event
from waterspout.coordination.factory import make_way
from waterspout.errors import ConfigError
from waterspout.serving import require_address

__all__ = ["run"]

_LOOK_EVERY_S = 0.2
_LOOPBACK = "127.0.0.1:0"

Serve = Annotated[
    bool,
    typer.Option(
        "--serve", help="Answer questions about it over HTTP, on loopback unless -c serve says."
    ),
]
WithPage = Annotated[
    bool, typer.Option("--ui", help="Show it on a page in a browser; it is served for that.")
]


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
    log_format: Annotated[
        LogFormat,
        typer.Option(help="How is logged: lines for people, or JSON with txid and attempt."),
    ] = LogFormat.TEXT,
    serve: Serve = False,
    page: WithPage = False,
    as_json: AsJson = False,
) -> None:
    """Run a topology, on an embedded Spark unless another is named.

    Ctrl-C or SIGTERM ends it; the same command goes on where it was. With --json every event is
    a line of its own.
    """
    from waterspout.spark.starting import open_session

    if master is not None and remote is not None:
        raise ConfigError("--master and --remote exclude each other; give one of them")
    conf = read_config(config, setting, retire)
    if page:
        require_page()
    if page or serve:
        conf = conf.replace(serve=conf.serve or _LOOPBACK)
    topology = load_topology(target)
    make_way(topology.name, conf)
    explained(topology, conf)  # before a JVM is started
    if conf.serve is not None:
        require_address(conf)
    log = (log_file or _new_log_file(topology.name)).absolute()
    teller = ForPrograms() if as_json else ForPeople()
    in_json = log_format is LogFormat.JSON
    with StopSignals() as stop, teller as tell, logging_to(log, tell.warn, as_json=in_json):
        tell.starting(topology.name, log, remote=remote is not None)
        session = None
        try:
            try:
                session = open_session(
                    log,
                    master=master,
                    remote=remote,
                    connect_timeout_secs=conf.connect_timeout_secs,
                    json_logs=in_json,
                )
                running = submit(topology, session, conf)
            except KeyboardInterrupt:
                tell.never_began(topology.name)
                return
            stop.be_patient()
            tell.begun(topology, running)
            with _page(running, tell, config, setting) if page else contextlib.nullcontext():
                _watch(running, tell, stop, until_idle=until_idle)
        finally:
            stop.be_patient()
            if session is not None:
                with contextlib.suppress(Exception):  # its JVM may be gone
                    session.stop()


def _page(running: Run, tell: Teller, config: Path | None, setting: list[str] | None) -> PageBeside:
    assert running.server_url is not None
    return PageBeside(running.server_url, config, setting, tell.page, tell.warn)


def _new_log_file(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix="waterspout-")) / f"{name}.log"


def _watch(running: Run, tell: Teller, stop: StopSignals, *, until_idle: bool) -> None:
    began = time.monotonic()
    kills = _Kills()
    running.subscribe(kills)
    caught_up = start_waiting(running) if until_idle else None
    try:
        while not stop.wait(_LOOK_EVERY_S) and running.status not in ("stopped", "failed"):
            tell.look()
            if caught_up is not None and caught_up.is_set():
                break
    finally:
        running.stop()
    tell.look(last=True)
    running.await_termination()
    why = "killed" if kills.heard else "stopped" if stop.is_set else "done"
    tell.ended(why, time.monotonic() - began)


class _Kills:
    """Listens for a kill from another terminal that was carried out."""

    def __init__(self) -> None:
        self.heard = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, CommandObeyed):
            self.heard = self.heard or (event.command, event.outcome) == ("kill", "done")
