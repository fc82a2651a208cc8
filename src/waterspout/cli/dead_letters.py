"""`waterspout dead-letters`: what could not be processed, and sending it through again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._safe_repr import shown
from waterspout._schema import check_topology_id
from waterspout.cli.answers import AsJson, confirm, print_json
from waterspout.cli.failures import FAILED
from waterspout.cli.loading import load_topology, names_a_file
from waterspout.cli.options import ConfigFile, Home, Settings, TopologyArgument, config_at
from waterspout.cli.screen import counted, harmless, print_table
from waterspout.coordination.kept_letters import (
    Asking,
    KeptLetters,
    facts,
    kept_letters,
    status_of,
    when,
    why_not,
)
from waterspout.errors import ConfigError
from waterspout.topology._graph import Topology

__all__ = ["dead_letters"]

_CELL_MAX = 60
_VALUE_MAX = 10_000

dead_letters = typer.Typer(
    name="dead-letters",
    help="Look at what could not be processed, send it through again, or drop it.",
    no_args_is_help=True,
)

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="The ids that `list` shows.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Every letter.")]


@dead_letters.command("list")
def list_letters(
    topology: TopologyArgument,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The oldest N only.")] = 100,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """List dead letters, oldest first."""
    with _open(topology, home, config, setting) as found:
        letters = found.all()
    oldest = letters[:limit]
    if as_json:
        listed = [facts(letter) for letter in oldest]
        print_json({"topology": found.name, "total": len(letters), "letters": listed})
    elif not letters:
        typer.echo(f"{found.name}: no dead letters")
    else:
        rows = [_cells(letter) for letter in oldest]
        right = ("batch" if oldest[0].is_row else "id", "failures")
        print_table(tuple(rows[0]), [tuple(row.values()) for row in rows], right=right)
        if len(letters) > limit:
            typer.echo(f"the oldest {limit:,} of {len(letters):,}; --limit shows more")


@dead_letters.command()
def show(
    topology: TopologyArgument,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that `list` shows.")],
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Show everything about a dead letter."""
    with _open(topology, home, config, setting) as found:
        (letter,) = found.chosen([id])
    if as_json:
        print_json({"topology": found.name, **facts(letter)})
        return
    error = letter.error.split("\n")
    for label, *lines in (
        ("letter", f"{letter.id} of topology {found.name}"),
        *(_about_row(letter) if letter.is_row else _about_message(letter)),
        ("failures", f"{letter.failures:,}"),
        ("first failed", when(letter.first_failed)),
        ("last failed", when(letter.last_failed)),
        ("replay", _replay(letter)),
        ("error", *error, *(letter.trace.split("\n") if letter.trace else ())),
    ):
        for line in lines:
            typer.echo(f"{label:<14}{harmless(line)}".rstrip())
            label = ""


@dead_letters.command()
def replay(
    topology: TopologyArgument,
    ids: Ids = None,
    everything: All = False,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=JSON", help="A new value for a field of a row (Trident).",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:  # fmt: skip
    """Send dead letters through the topology again; one that fails again comes back."""
    with _open(topology, home, config, setting) as found:
        changes = _changes(values or ())
        outcome = found.replay(_chosen(found, ids, everything), changes, skip=everything)
    _tell(found, "replay", outcome, as_json=as_json)
    if outcome.problem:
        raise typer.Exit(FAILED)


@dead_letters.command()
def drop(
    topology: TopologyArgument,
    ids: Ids = None,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Remove dead letters for good: what they hold is lost."""
    with _open(topology, home, config, setting) as found:
        letters = _chosen(found, ids, everything)
        if letters:
            what = counted(len(letters), "dead letter")
            confirm(f"Drop {what} of {found.name} for good?", yes=yes, as_json=as_json)
        outcome = found.drop(letters, skip=everything)
    _tell(found, "drop", outcome, as_json=as_json)


@contextmanager
def _open(
    target: str, home: Path | None, file: Path | None, settings: Sequence[str] | None
) -> Iterator[KeptLetters]:
    conf = config_at(home, file, settings)
    name, is_trident = _topology(target, conf)
    with kept_letters(name, conf, is_trident=is_trident) as found:
        yield found


def _chosen(found: KeptLetters, ids: Sequence[str] | None, everything: bool) -> list[DeadLetter]:
    if bool(ids) == everything:
        raise ConfigError("give the ids of letters, or --all")
    return found.chosen(ids or None)


def _tell(found: KeptLetters, action: str, outcome: Asking, *, as_json: bool) -> None:
    if as_json:
        print_json({"topology": found.name, "action": action, **asdict(outcome)})
        return
    if outcome.text:
        typer.echo(f"{found.name}: {harmless(outcome.text)}")
    if outcome.problem:
        typer.echo(outcome.problem, err=True)


def _topology(target: str, conf: Config) -> tuple[str, bool]:
    """Return the name of a topology, and whether it is known to be one of Trident."""
    if names_a_file(target):
        found = load_topology(target)
        return found.name, not isinstance(found, Topology)
    name, home = check_topology_id(target), conf.home_path().absolute()
    if not (home / name).is_dir():
        known = sorted(p.name for p in home.iterdir() if p.is_dir()) if home.is_dir() else []
        there = f"it has {', '.join(known)}" if known else "nothing has run there"
        raise ConfigError(
            f"there is no topology {name!r} in the waterspout home {home}; {there}. Another home "
            "is named by --home or WATERSPOUT_HOME"
        )
    return name, False


def _changes(settings: Sequence[str]) -> dict[str, str]:
    changes: dict[str, str] = {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals or not field:
            raise ConfigError(
                f"--set {setting} is not FIELD=JSON, such as --set amount=12 or 's=\"x\"'"
            )
        changes[field.strip()] = value
    return changes


def _about_message(letter: DeadLetter) -> Iterator[tuple[str, ...]]:
    task = "" if letter.task is None else f", for task {letter.task}"
    yield "spout", f"{letter.spout}, stream {letter.stream}{task}"
    yield "message id", letter.message_id
    yield "values", letter.shown
    yield "failed in", letter.failed_in or "(no bolt)"


def _about_row(letter: DeadLetter) -> Iterator[tuple[str, ...]]:
    yield "failed in", letter.failed_in
    yield "position", letter.position or "(not known)"
    yield "batch", f"{letter.txid}, attempt {letter.attempt}"
    values = zip(letter.schema, letter.values or (), strict=False)
    row = [f"{name} {kind} = {shown(value, _VALUE_MAX)}" for (name, kind), value in values]
    yield "row", *(row or [letter.shown])


def _cells(letter: DeadLetter) -> dict[str, str]:
    """Return a line of the table, by column."""
    message = {} if letter.is_row else {"spout": letter.spout, "message": letter.message_id}
    row = {"position": letter.position or "", "batch": str(letter.txid)} if letter.is_row else {}
    about = {**message, "failed in": letter.failed_in, **row}
    return {
        "id": letter.id,
        **{column: _short(text) for column, text in about.items()},
        "error": _short(letter.error),
        "failures": f"{letter.failures:,}",
        "last failed": when(letter.last_failed),
        "": _short(status_of(letter)),
    }


def _replay(letter: DeadLetter) -> str:
    possible = "possible" if letter.can_be_replayed else f"not possible: {why_not(letter)}"
    return status_of(letter) or possible


def _short(text: str) -> str:
    line = harmless(text.strip().split("\n", 1)[0])
    return line if len(line) <= _CELL_MAX else f"{line[: _CELL_MAX - 3]}..."
