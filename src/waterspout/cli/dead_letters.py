"""`waterspout dead-letters`: what could not be processed, and sending it through again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from waterspout.cli.failures import one_line
from waterspout.cli.loading import load_topology, names_a_file
from waterspout.cli.options import ConfigFile, Settings, read_config
from waterspout.cli.row_letters import drop_rows, list_rows, replay_rows, show_row
from waterspout.cli.screen import counted, harmless, print_table
from waterspout.config import Config
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.errors import ConfigError, LeaseHeldError, OutsideError
from waterspout.schema import check_topology_id
from waterspout.topology.graph import Topology
from waterspout.trident.isolation.store import LettersPlace
from waterspout.waves.spouts import Letter

__all__ = ["dead_letters"]

_ID_MAX = 2**63 - 1
_CELL_MAX = 60
_NAMED_MAX = 20

dead_letters = typer.Typer(
    name="dead-letters",
    help="Look at what could not be processed, send it through again, or drop it.",
    no_args_is_help=True,
)

TopologyArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPOLOGY",
        help="A topology by its name, or FILE[:NAME].",
        show_default=False,
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="The ids that `list` shows.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Every letter.")]
Home = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="The waterspout home; by default that of a run.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class _Place:
    """The letters of one topology, and where its driver would be found.

    `rows`: those of a Trident topology, which has no others.
    """

    name: str
    conf: Config
    letters: DeadLetters
    rows: LettersPlace | None


@dead_letters.command("list")
def list_letters(
    topology: TopologyArgument,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The oldest N only.")] = 100,
    as_json: Annotated[
        bool, typer.Option("--json", help="Everything, a line of JSON each.")
    ] = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """List dead letters, oldest first."""
    with _open(topology, home, config, setting) as place:
        if place.rows is not None:
            list_rows(place.name, place.rows, limit, as_json=as_json)
            return
        total, letters = len(place.letters), place.letters.all(limit)
    if as_json:
        for letter in letters:
            typer.echo(json.dumps(_facts(letter)))
        return
    if not letters:
        typer.echo(f"{place.name}: no dead letters")
        return
    columns = ("id", "spout", "message", "failed in", "error", "failures", "last failed", "")
    print_table(columns, [_row(letter) for letter in letters], right=("id", "failures"))
    if total > len(letters):
        typer.echo(f"the oldest {len(letters):,} of {total:,}; --limit shows more")


@dead_letters.command()
def show(
    topology: TopologyArgument,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that `list` shows.")],
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Show everything about a dead letter."""
    with _open(topology, home, config, setting) as place:
        if place.rows is not None:
            show_row(place.name, place.rows, id)
            return
        (letter,) = _found(place, [id])
    typer.echo(f"letter        {letter.id} of topology {place.name}")
    task = "" if letter.target is None else f", for task {letter.target}"
    typer.echo(f"spout         {harmless(f'{letter.component}, stream {letter.stream}')}{task}")
    typer.echo(f"message id    {harmless(letter.message_id)}")
    typer.echo(f"values        {harmless(letter.shown)}")
    typer.echo(f"failed in     {harmless(letter.failed_in) or '(no bolt)'}")
    typer.echo(f"failures      {letter.failures:,}")
    typer.echo(f"first failed  {_when(letter.first_failed)}")
    typer.echo(f"last failed   {_when(letter.last_failed)}")
    typer.echo(f"replay        {_replay(letter)}")
    first, *more = letter.error.split("\n")
    typer.echo(f"error         {harmless(first)}")
    for line in more:
        typer.echo(f"              {harmless(line)}".rstrip())


@dead_letters.command()
def replay(
    topology: TopologyArgument,
    ids: Ids = None,
    everything: All = False,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=JSON", help="A row's value, mended (Trident).",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:  # fmt: skip
    """Send dead letters through the topology again; one that fails again comes back."""
    with _open(topology, home, config, setting) as place:
        if place.rows is not None:
            asked = replay_rows(place.name, place.rows, ids, everything, values or ())
            _say_asked(place, asked, "replayed")
            return
        if values:
            raise ConfigError("--set is for the rows of a Trident topology")
        letters = _chosen(place, ids, everything)
        able = [letter for letter in letters if letter.can_be_replayed]
        place.letters.want([_id(letter) for letter in able])
        unable = [letter for letter in letters if not letter.can_be_replayed]
        for letter in unable[:_NAMED_MAX]:
            typer.echo(f"letter {letter.id} cannot be replayed: {_WHY_NOT}", err=True)
        if len(unable) > _NAMED_MAX:
            typer.echo(f"and {len(unable) - _NAMED_MAX:,} more", err=True)
        if able:
            marked = counted(len(able), "dead letter is", "dead letters are")
            typer.echo(f"{place.name}: {marked} to be replayed; {_who_replays(place)}")
        elif not letters:
            typer.echo(f"{place.name}: no dead letters")
    if unable:
        raise typer.Exit(1)


@dead_letters.command()
def drop(
    topology: TopologyArgument,
    ids: Ids = None,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Remove dead letters for good: their messages are lost."""
    with _open(topology, home, config, setting) as place:
        if place.rows is not None:
            asked = drop_rows(place.name, place.rows, ids, everything, yes=yes)
            _say_asked(place, asked, "dropped")
            return
        letters = _chosen(place, ids, everything)
        if not letters:
            typer.echo(f"{place.name}: no dead letters")
            return
        if not yes:
            what = counted(len(letters), "dead letter")
            typer.confirm(f"Drop {what} of {place.name} for good?", abort=True)
        dropped = place.letters.remove([_id(letter) for letter in letters])
        left = len(place.letters)
    typer.echo(f"{place.name}: {counted(dropped, 'dead letter')} dropped, {left:,} left")


@contextmanager
def _open(
    target: str, home: Path | None, file: Path | None, settings: Sequence[str] | None
) -> Iterator[_Place]:
    conf = read_config(file, settings)
    if home is not None:
        conf = conf.replace(home=str(home))
    name, is_trident = _named(target, conf)
    folder = conf.home_path().absolute() / name
    rows = LettersPlace(folder)
    letters = DeadLetters(folder)
    try:
        yield _Place(name, conf, letters, rows if is_trident or rows.exists else None)
    finally:
        letters.close()


def _named(target: str, conf: Config) -> tuple[str, bool]:
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


def _say_asked(place: _Place, asked: int, what: str) -> None:
    if asked:
        marked = counted(asked, "dead letter is", "dead letters are")
        typer.echo(f"{place.name}: {marked} to be {what}; {_who_replays(place)}")
    else:
        typer.echo(f"{place.name}: no dead letters to be {what}")


def _chosen(place: _Place, ids: Sequence[str] | None, everything: bool) -> list[Letter]:
    if bool(ids) == everything:
        raise ConfigError("give the ids of letters, or --all")
    return place.letters.all() if everything else _found(place, ids or ())


def _found(place: _Place, ids: Sequence[str]) -> list[Letter]:
    """Return these letters, or refuse them all if one is not there."""
    found = {id: _letter(place, id) for id in ids}
    missing = [id for id, letter in found.items() if letter is None]
    if missing:
        what = "dead letter" if len(missing) == 1 else "dead letters"
        raise ConfigError(
            f"{place.name!r} has no {what} {', '.join(missing)}; see: waterspout dead-letters list "
            f"{place.name}"
        )
    return [letter for letter in found.values() if letter is not None]


def _letter(place: _Place, id: str) -> Letter | None:
    if not (id.isascii() and id.isdecimal()):
        raise ConfigError(f"{id!r} is not the number of a letter")
    return place.letters.get(int(id)) if int(id) <= _ID_MAX else None


_WHY_NOT = "its values could not be stored, only what they look like"


def _who_replays(place: _Place) -> str:
    from waterspout.coordination.factory import coordination_store

    try:
        store = coordination_store(place.name, place.conf)
        try:
            store.refuse_if_held()
        finally:
            store.release()
    except LeaseHeldError:
        return "the driver that runs now will do it, within a second"
    except OutsideError as error:  # the letters are marked all the same
        return f"whether a driver runs now cannot be seen: {harmless(one_line(str(error)))}"
    return "no driver runs now: the next run will do it"


def _id(letter: Letter) -> int:
    assert letter.id is not None
    return letter.id


def _row(letter: Letter) -> tuple[str, ...]:
    return (
        str(letter.id),
        _short(letter.component),
        _short(letter.message_id),
        _short(letter.failed_in),
        _short(letter.error),
        f"{letter.failures:,}",
        _when(letter.last_failed),
        "to be replayed" if letter.wanted else "",
    )


def _short(text: str) -> str:
    line = harmless(text.strip().split("\n", 1)[0])
    return line if len(line) <= _CELL_MAX else f"{line[: _CELL_MAX - 3]}..."


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _replay(letter: Letter) -> str:
    if not letter.can_be_replayed:
        return f"not possible: {_WHY_NOT}"
    return "asked for" if letter.wanted else "possible"


def _facts(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "spout": letter.component,
        "stream": letter.stream,
        "task": letter.target,
        "message_id": letter.message_id,
        "values": letter.shown,
        "failed_in": letter.failed_in,
        "error": letter.error,
        "failures": letter.failures,
        "first_failed": _when(letter.first_failed),
        "last_failed": _when(letter.last_failed),
        "can_be_replayed": letter.can_be_replayed,
        "wanted": letter.wanted,
    }
