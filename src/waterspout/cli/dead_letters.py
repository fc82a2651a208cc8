"""`waterspout dead-letters`: what could not be processed, and sending it through again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from waterspout._causes import one_line
from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._safe_repr import shown
from waterspout._schema import check_topology_id
from waterspout.cli.loading import load_topology, names_a_file
from waterspout.cli.options import ConfigFile, Settings, read_config
from waterspout.cli.screen import counted, harmless, print_table
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.errors import ConfigError, LeaseHeldError, OutsideError
from waterspout.topology._graph import Topology
from waterspout.trident.isolation.repair import repaired
from waterspout.trident.isolation.store import LettersLocation

__all__ = ["dead_letters"]

_CELL_MAX = 60
_NAMED_MAX = 20
_VALUE_MAX = 10_000
_FACTS = ("id", "failed_in", "error", "failures", "can_be_replayed")
_MESSAGE_FACTS = ("spout", "stream", "task", "message_id")
_ROW_FACTS = ("position", "txid", "attempt", "trace")

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
class _Letters:
    """The letters of one topology: rows if it is one of Trident, otherwise messages."""

    name: str
    conf: Config
    messages: DeadLetters
    rows: LettersLocation | None

    def all(self) -> list[DeadLetter]:
        """Return the letters, oldest first."""
        return self.messages.all() if self.rows is None else self.rows.letters()

    def chosen(self, ids: Sequence[str] | None, everything: bool) -> list[DeadLetter]:
        """Return the letters that a command names, or refuse them all if one is not there."""
        if bool(ids) == everything:
            raise ConfigError("give the ids of letters, or --all")
        there = {letter.id: letter for letter in self.all()}
        if not ids:
            return list(there.values())
        missing = [id for id in ids if id not in there]
        if missing:
            what = "dead letter" if len(missing) == 1 else "dead letters"
            raise ConfigError(
                f"{self.name!r} has no {what} {', '.join(missing)}; see: waterspout dead-letters "
                f"list {self.name}"
            )
        return [there[id] for id in dict.fromkeys(ids)]


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
    with _open(topology, home, config, setting) as found:
        letters = found.all()
    oldest = letters[:limit]
    if as_json:
        for letter in oldest:
            typer.echo(json.dumps(_facts(letter)))
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
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Show everything about a dead letter."""
    with _open(topology, home, config, setting) as found:
        (letter,) = found.chosen([id], everything=False)
    error = letter.error.split("\n")
    for label, *lines in (
        ("letter", f"{letter.id} of topology {found.name}"),
        *(_about_row(letter) if letter.is_row else _about_message(letter)),
        ("failures", f"{letter.failures:,}"),
        ("first failed", _when(letter.first_failed)),
        ("last failed", _when(letter.last_failed)),
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
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:  # fmt: skip
    """Send dead letters through the topology again; one that fails again comes back."""
    with _open(topology, home, config, setting) as found:
        if values and found.rows is None:
            raise ConfigError("--set is for the rows of a Trident topology")
        changes = _changes(values or ())
        letters = [repaired(letter, changes) for letter in found.chosen(ids, everything)]
        able = [letter for letter in letters if letter.can_be_replayed]
        unable = [letter for letter in letters if not letter.can_be_replayed]
        problem = f"{_named(unable)} cannot be replayed: {_why_not(unable)}" if unable else ""
        if unable and found.rows is not None:
            raise ConfigError(problem)
        if able or not unable:
            _ask(found, "replay", able, everything)
    if unable:
        typer.echo(problem, err=True)
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
    """Remove dead letters for good: what they hold is lost."""
    with _open(topology, home, config, setting) as found:
        letters = found.chosen(ids, everything)
        if letters and not yes:
            what = counted(len(letters), "dead letter")
            typer.confirm(f"Drop {what} of {found.name} for good?", abort=True)
        if not letters or found.rows is not None:
            _ask(found, "drop", letters, everything)
            return
        dropped = found.messages.remove([letter.id for letter in letters])
        left = len(found.messages)
    typer.echo(f"{found.name}: {counted(dropped, 'dead letter')} dropped, {left:,} left")


@contextmanager
def _open(
    target: str, home: Path | None, file: Path | None, settings: Sequence[str] | None
) -> Iterator[_Letters]:
    conf = read_config(file, settings)
    if home is not None:
        conf = conf.replace(home=str(home))
    name, is_trident = _topology(target, conf)
    folder = conf.home_path().absolute() / name
    messages, rows = DeadLetters(folder), LettersLocation(folder)
    try:
        yield _Letters(name, conf, messages, rows if is_trident or rows.exists else None)
    finally:
        messages.close()


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


def _ask(
    found: _Letters,
    action: Literal["replay", "drop"],
    letters: Sequence[DeadLetter],
    everything: bool,
) -> None:
    """Leave letters to the driver, and say who will do it."""
    done = {"replay": "replayed", "drop": "dropped"}[action]
    if found.rows is None:
        asked = found.messages.want([letter.id for letter in letters])
    else:
        before = [letter for letter in letters if letter.is_asked_for]
        if before and not everything:
            were = "was" if len(before) == 1 else "were"
            raise ConfigError(f"{_named(before)} of {found.name!r} {were} asked for already")
        new = [letter for letter in letters if not letter.is_asked_for]
        # Since the letters were read, somebody may have asked for one, or a driver replayed it.
        with closing(found.rows.requests()) as requests:
            asked = requests.add(action, new) if new else 0
    if asked:
        marked = counted(asked, "dead letter is", "dead letters are")
        typer.echo(f"{found.name}: {marked} to be {done}; {_who_does_it(found)}")
    else:
        typer.echo(f"{found.name}: no dead letters{f' to be {done}' if letters else ''}")


def _who_does_it(found: _Letters) -> str:
    from waterspout.coordination.factory import coordination_store

    try:
        store = coordination_store(found.name, found.conf)
        try:
            store.refuse_if_held()
        finally:
            store.release()
    except LeaseHeldError:
        return "the driver that runs now will do it, within a second"
    except OutsideError as error:  # the letters are marked all the same
        return f"whether a driver runs now cannot be seen: {harmless(one_line(str(error)))}"
    return "no driver runs now: the next run will do it"


def _named(letters: Sequence[DeadLetter]) -> str:
    names = ", ".join(letter.id for letter in letters[:_NAMED_MAX])
    more = f" and {len(letters) - _NAMED_MAX:,} more" if len(letters) > _NAMED_MAX else ""
    return f"{'letter' if len(letters) == 1 else 'letters'} {names}{more}"


def _why_not(letters: Sequence[DeadLetter]) -> str:
    remedy = "; --set gives new ones" if letters[0].is_row else ""
    return f"its values could not be stored, only what they look like{remedy}"


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
        "last failed": _when(letter.last_failed),
        "": _short(_status(letter)),
    }


def _status(letter: DeadLetter) -> str:
    if letter.asked is None or letter.asked.state == "done":
        return ""
    if letter.asked.state == "refused":
        return f"refused: {letter.asked.reason}"
    return "to be replayed" if letter.asked.action == "replay" else "to be dropped"


def _replay(letter: DeadLetter) -> str:
    possible = "possible" if letter.can_be_replayed else f"not possible: {_why_not([letter])}"
    return _status(letter) or possible


def _short(text: str) -> str:
    line = harmless(text.strip().split("\n", 1)[0])
    return line if len(line) <= _CELL_MAX else f"{line[: _CELL_MAX - 3]}..."


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _facts(letter: DeadLetter) -> dict[str, Any]:
    """Return everything about a letter for JSON; its values are texts, as Python shows them."""
    names = _ROW_FACTS if letter.is_row else _MESSAGE_FACTS
    facts = {name: getattr(letter, name) for name in (*names, *_FACTS)}
    facts |= {"first_failed": _when(letter.first_failed), "last_failed": _when(letter.last_failed)}
    if not letter.is_row:
        asked = letter.is_asked_for
        return {**facts, "id": int(letter.id), "values": letter.shown, "wanted": asked}
    row = letter.shown if letter.row is None else {f: shown(v) for f, v in letter.row.items()}
    return {**facts, "row": row, "request": letter.asked and asdict(letter.asked)}
