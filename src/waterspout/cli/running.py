"""`waterspout list`, `show`, `kill`, `activate`, `deactivate` and `rebalance`: what runs elsewhere.

They reach a run through its coordination store: the home that it was started with, or ZooKeeper.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from waterspout._config import Config
from waterspout._schema import check_topology_id
from waterspout.cli.answers import AsJson, print_json
from waterspout.cli.failures import FAILED
from waterspout.cli.loading import load_topology, names_a_file
from waterspout.cli.options import ConfigFile, Home, Settings, TopologyArgument, config_at
from waterspout.cli.screen import harmless, print_table
from waterspout.coordination.commands.messages import Change, Verb
from waterspout.coordination.commands.outside import (
    ask,
    looked_at,
    open_topology,
    seen,
)
from waterspout.coordination.commands.sights import COLUMNS, RIGHT, facts, lines, row
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import CommandError, ConfigError

__all__ = ["activate", "deactivate", "kill", "list_topologies", "rebalance", "show"]

Wait = Annotated[
    float | None,
    typer.Option(
        "-w", "--wait", metavar="SECONDS", min=0.0, show_default=False,
        help="How long what is in flight is given to finish; by default the message timeout.",
    ),
]  # fmt: skip
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.0,
        help="How long the driver may be silent before this command gives up.",
    ),
]  # fmt: skip


def list_topologies(
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """List the topologies of a home, or of a ZooKeeper, and how they stand."""
    conf = config_at(home, config, setting)
    sights = looked_at(conf)
    if as_json:
        print_json({"topologies": [facts(sight) for sight in sights]})
    elif sights:
        print_table(COLUMNS, [row(sight) for sight in sights], right=RIGHT)
    else:
        where = conf.home_path().absolute() if conf.zookeeper_servers is None else "ZooKeeper"
        typer.echo(f"nothing has run in {where}")


def show(
    topology: TopologyArgument,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Show how a topology stands, and where its next run would go on."""
    conf = config_at(home, config, setting)
    with _open(topology, conf) as (name, store):
        sight = seen(name, store)
    if as_json:
        print_json(facts(sight))
        return
    for label, text in lines(sight):
        typer.echo(f"{label:<16}{harmless(text)}".rstrip())


def kill(
    topology: TopologyArgument,
    wait: Wait = None,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """End a run: its spouts are asked no more, what is in flight is finished, then it ends.

    What is not finished when the wait is over, the next run emits again.
    """
    _give(topology, "kill", config_at(home, config, setting), timeout, as_json, wait)


def activate(
    topology: TopologyArgument,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Let the spouts of a run go on."""
    _give(topology, "activate", config_at(home, config, setting), timeout, as_json)


def deactivate(
    topology: TopologyArgument,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Ask the spouts of a run no more; what is in flight is finished. Later runs begin so, too."""
    _give(topology, "deactivate", config_at(home, config, setting), timeout, as_json)


def rebalance(
    topology: TopologyArgument,
    parallelism: Annotated[
        list[str] | None,
        typer.Option(
            "-e", "--parallelism", metavar="COMPONENT=N", show_default=False,
            help="On how many tasks at once a bolt runs, or a named operation of Trident.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "-n", "--workers", metavar="N", min=1, show_default=False,
            help="Into how many Spark tasks a stage of spouts and bolts is divided at most.",
        ),
    ] = None,
    pending: Annotated[
        int | None,
        typer.Option(
            "--pending", metavar="N", min=1, show_default=False,
            help="max_spout_pending: batches in flight, or messages of a spout task on the way.",
        ),
    ] = None,
    wait: Wait = None,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:  # fmt: skip
    """Change how a run is spread, when nothing is in flight; later runs keep it."""
    change = Change(pending, workers, dict(_numbered(text) for text in parallelism or ()))
    if not change:
        raise ConfigError("give what is to change: -e COMPONENT=N, -n N or --pending N")
    conf = config_at(home, config, setting)
    _give(topology, "rebalance", conf, timeout, as_json, wait, change)


def _give(
    target: str,
    verb: Verb,
    conf: Config,
    timeout_s: float,
    as_json: bool,
    wait_s: float | None = None,
    change: Change | None = None,
) -> None:
    """Give a command, wait for what becomes of it, and tell."""
    told = _say_meanwhile if sys.stderr.isatty() else lambda text: None
    outcome: dict[str, Any] = {"command": verb}
    with _open(target, conf) as (name, store):
        outcome["topology"] = name
        try:
            answer = ask(
                name, store, verb, wait_s=wait_s, change=change, timeout_s=timeout_s, told=told
            )
            outcome |= {"outcome": "done", "text": answer.text, **answer.facts}
        except CommandError as error:
            outcome |= {"outcome": "refused", "text": str(error)}
    refused = outcome["outcome"] == "refused"
    if as_json:
        print_json(outcome)
    else:
        problem = "error: " if refused else ""
        typer.echo(f"{problem}{name}: {harmless(outcome['text'])}", err=refused)
    if refused:
        raise typer.Exit(FAILED)


def _say_meanwhile(text: str) -> None:
    typer.echo(harmless(text), err=True)


@contextmanager
def _open(target: str, conf: Config) -> Iterator[tuple[str, CoordinationStore]]:
    name = load_topology(target).name if names_a_file(target) else check_topology_id(target)
    with open_topology(name, conf) as store:
        yield name, store


def _numbered(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"-e {text} is not COMPONENT=N, such as -e split=4")
    return name, int(number)
