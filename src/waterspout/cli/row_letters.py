"""`waterspout dead-letters` of a Trident topology: rows that an operation could not take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import typer

from waterspout.cli.screen import counted, harmless, print_table
from waterspout.errors import ConfigError
from waterspout.safe_repr import shown
from waterspout.trident.isolation.letters import LetterKey, RowLetter
from waterspout.trident.isolation.repair import repaired
from waterspout.trident.isolation.store import LettersPlace

__all__ = ["drop_rows", "list_rows", "replay_rows", "show_row"]

_CELL_MAX = 60
_NAMED_MAX = 20
_VALUE_MAX = 10_000
_WHY_NOT = "its values could not be stored, only what they look like; --set gives new ones"

States = Mapping[LetterKey, tuple[str, str, str | None]]


def list_rows(name: str, place: LettersPlace, limit: int, *, as_json: bool) -> None:
    """List letters, oldest first."""
    letters, states = _letters(place), place.requests().states()
    if as_json:
        for letter in letters[:limit]:
            typer.echo(json.dumps(_facts(letter, states)))
        return
    if not letters:
        typer.echo(f"{name}: no dead letters")
        return
    columns = ("id", "failed in", "position", "batch", "error", "failures", "last failed", "")
    rows = [_row(letter, states) for letter in letters[:limit]]
    print_table(columns, rows, right=("batch", "failures"))
    if len(letters) > limit:
        typer.echo(f"the oldest {limit:,} of {len(letters):,}; --limit shows more")


def show_row(name: str, place: LettersPlace, id: str) -> None:
    """Show everything about a letter."""
    (letter,) = _found(name, place, [id])
    states = place.requests().states()
    key = letter.key
    assert key is not None
    typer.echo(f"letter        {key} of topology {name}")
    typer.echo(f"failed in     {harmless(letter.node)}")
    typer.echo(f"position      {harmless(letter.position or '(not known)')}")
    typer.echo(f"batch         {key.txid}, attempt {key.attempt}")
    values = letter.values
    if values is None:
        typer.echo(f"row           {harmless(letter.looks or '')}")
    else:
        for number, (field, kind) in enumerate(letter.schema):
            text = f"{field} {kind} = {shown(values[field], _VALUE_MAX)}"
            typer.echo(f"{'row' if not number else '':<14}{harmless(text)}")
    typer.echo(f"failures      {letter.failures:,}")
    typer.echo(f"first failed  {_when(letter.first_failed)}")
    typer.echo(f"last failed   {_when(letter.last_failed)}")
    typer.echo(f"replay        {_replay(letter, states)}")
    typer.echo(f"error         {harmless(letter.error)}")
    for line in letter.trace.split("\n"):
        typer.echo(f"              {harmless(line)}".rstrip())


def replay_rows(
    name: str,
    place: LettersPlace,
    ids: Sequence[str] | None,
    everything: bool,
    settings: Sequence[str],
) -> int:
    """Ask for letters to be replayed, with some values set; return how many."""
    letters = _chosen(name, place, ids, everything)
    changes = _changes(settings)
    wanted = [(letter, repaired(letter, changes)) for letter in letters]
    unable = [letter for letter, row in wanted if row is None]
    if unable:
        raise ConfigError(f"{_named(unable)} cannot be replayed: {_WHY_NOT}")
    return _ask(name, place, "replay", wanted, everything)


def drop_rows(
    name: str, place: LettersPlace, ids: Sequence[str] | None, everything: bool, *, yes: bool
) -> int:
    """Ask for letters to be dropped; return how many."""
    letters = _chosen(name, place, ids, everything)
    if letters and not yes:
        typer.confirm(
            f"Drop {counted(len(letters), 'dead letter')} of {name} for good?", abort=True
        )
    return _ask(name, place, "drop", [(letter, None) for letter in letters], everything)


def _ask(
    name: str,
    place: LettersPlace,
    action: str,
    wanted: Sequence[tuple[RowLetter, str | None]],
    everything: bool,
) -> int:
    states = place.requests().states()
    asked = [letter for letter, _ in wanted if states.get(_key(letter), ("", ""))[1] == "open"]
    if asked and not everything:
        raise ConfigError(
            f"{_named(asked)} of {name!r} {'was' if len(asked) == 1 else 'were'} asked for already"
        )
    wanted = [(letter, row) for letter, row in wanted if letter not in asked]
    if not wanted:
        return 0
    # Between the look and this, somebody may have asked for one, or a driver replayed it.
    taken = place.requests().add(action, wanted)
    return len(wanted) - len(taken)


def _letters(place: LettersPlace) -> list[RowLetter]:
    letters = place.open()
    try:
        return letters.all()
    finally:
        letters.close()


def _chosen(
    name: str, place: LettersPlace, ids: Sequence[str] | None, everything: bool
) -> list[RowLetter]:
    if bool(ids) == everything:
        raise ConfigError("give the ids of letters, or --all")
    return _letters(place) if everything else _found(name, place, ids or ())


def _found(name: str, place: LettersPlace, ids: Sequence[str]) -> list[RowLetter]:
    """Return these letters, or refuse them all if one is not there."""
    there = {str(letter.key): letter for letter in _letters(place)}
    missing = [id for id in ids if id not in there]
    if missing:
        what = "dead letter" if len(missing) == 1 else "dead letters"
        raise ConfigError(
            f"{name!r} has no {what} {', '.join(missing)}; see: waterspout dead-letters list {name}"
        )
    return [there[id] for id in dict.fromkeys(ids)]


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


def _named(letters: Sequence[RowLetter]) -> str:
    names = [str(letter.key) for letter in letters[:_NAMED_MAX]]
    more = f" and {len(letters) - _NAMED_MAX:,} more" if len(letters) > _NAMED_MAX else ""
    return f"{'letter' if len(letters) == 1 else 'letters'} {', '.join(names)}{more}"


def _key(letter: RowLetter) -> LetterKey:
    assert letter.key is not None
    return letter.key


def _row(letter: RowLetter, states: States) -> tuple[str, ...]:
    key = _key(letter)
    return (
        str(key),
        _short(letter.node),
        _short(letter.position or ""),
        str(key.txid),
        _short(letter.error),
        f"{letter.failures:,}",
        _when(letter.last_failed),
        _short(_status(letter, states)),
    )


def _status(letter: RowLetter, states: States) -> str:
    action, state, reason = states.get(_key(letter), ("", "", None))
    if state == "open":
        return "to be replayed" if action == "replay" else "to be dropped"
    return f"refused: {reason}" if state == "refused" else ""


def _replay(letter: RowLetter, states: States) -> str:
    status = _status(letter, states)
    if status:
        return harmless(status)
    return "possible" if letter.row is not None else f"not possible: {_WHY_NOT}"


def _short(text: str) -> str:
    line = harmless(text.strip().split("\n", 1)[0])
    return line if len(line) <= _CELL_MAX else f"{line[: _CELL_MAX - 3]}..."


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _facts(letter: RowLetter, states: States) -> dict[str, Any]:
    key, values = _key(letter), letter.values
    action, state, reason = states.get(key, (None, None, None))
    return {
        "id": str(key),
        "failed_in": letter.node,
        "position": letter.position,
        "txid": key.txid,
        "attempt": key.attempt,
        "row": letter.looks if values is None else {f: shown(v) for f, v in values.items()},
        "error": letter.error,
        "trace": letter.trace,
        "failures": letter.failures,
        "first_failed": _when(letter.first_failed),
        "last_failed": _when(letter.last_failed),
        "can_be_replayed": letter.row is not None,
        "request": None if state is None else {"action": action, "state": state, "reason": reason},
    }
