"""The dead letters of a topology, for whoever looks from outside its run: look, replay, drop.

A run need not be there: what is asked for is kept, and the next run finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from waterspout._causes import one_line
from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._safe_repr import shown
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.factory import coordination_store
from waterspout.errors import ConfigError, LeaseHeldError, OutsideError
from waterspout.trident.isolation.repair import as_repaired, repaired
from waterspout.trident.isolation.store import LettersLocation

__all__ = [
    "Asking",
    "KeptLetters",
    "facts",
    "full_facts",
    "kept_letters",
    "listing",
    "status_of",
    "when",
    "why_not",
]

_NAMED_MAX = 20
_DONE = {"replay": "replayed", "drop": "dropped"}
_FACTS = ("id", "failed_in", "error", "failures", "can_be_replayed")
_MESSAGE_FACTS = ("spout", "stream", "task", "message_id")
_ROW_FACTS = ("position", "txid", "attempt", "trace")


@dataclass(frozen=True, slots=True)
class Asking:
    """What has come of asking for letters."""

    done: int
    """How many letters it is about: those that were not asked for before."""
    text: str
    """What happens with them, for people; empty if nothing was asked for."""
    problem: str = ""
    """Which of those named are left as they are, and why."""


@dataclass(frozen=True, slots=True)
class KeptLetters:
    """The letters of one topology: rows if it is one of Trident, otherwise messages."""

    name: str
    conf: Config
    messages: DeadLetters
    rows: LettersLocation | None

    def all(self) -> list[DeadLetter]:
        """Return the letters, oldest first."""
        return self.messages.all() if self.rows is None else self.rows.letters()

    def chosen(self, ids: Sequence[str] | None) -> list[DeadLetter]:
        """Return letters by id (None: all), or refuse them all if one is not there."""
        there = {letter.id: letter for letter in self.all()}
        if ids is None:
            return list(there.values())
        missing = [id for id in ids if id not in there]
        if missing:
            what = "dead letter" if len(missing) == 1 else "dead letters"
            raise ConfigError(
                f"{self.name!r} has no {what} {', '.join(missing)}; see: waterspout dead-letters "
                f"list {self.name}"
            )
        return [there[id] for id in dict.fromkeys(ids)]

    def replay(
        self, letters: Sequence[DeadLetter], changes: Mapping[str, str], *, skip: bool = False
    ) -> Asking:
        """Ask for letters to be sent through again, with these fields set.

        Of rows all are asked for or none; of messages those that can be replayed. `skip` leaves
        out what was asked for before, which is refused otherwise.
        """
        if changes and self.rows is None:
            raise ConfigError("--set is for the rows of a Trident topology")
        letters = [repaired(letter, changes) for letter in letters]
        able = [letter for letter in letters if letter.can_be_replayed]
        unable = [letter for letter in letters if not letter.can_be_replayed]
        problem = f"{_named(unable)} cannot be replayed: {why_not(unable[0])}" if unable else ""
        if unable and self.rows is not None:
            raise ConfigError(problem)
        if unable and not able:
            return Asking(0, "", problem)
        return self._asked("replay", able, skip, problem)

    def drop(self, letters: Sequence[DeadLetter], *, skip: bool = False) -> Asking:
        """Remove letters for good, or ask for it where only the driver may; `skip` as above."""
        if not letters or self.rows is not None:
            return self._asked("drop", letters, skip)
        dropped = self.messages.remove([letter.id for letter in letters])
        gone = _counted(dropped, "dead letter", "dead letters")
        return Asking(dropped, f"{gone} dropped, {len(self.messages):,} left")

    def _asked(
        self,
        action: Literal["replay", "drop"],
        letters: Sequence[DeadLetter],
        skip: bool,
        problem: str = "",
    ) -> Asking:
        """Leave letters to the driver, and say who will do it."""
        if self.rows is None:
            asked = self.messages.want([letter.id for letter in letters])
        else:
            before = [letter for letter in letters if letter.is_asked_for]
            if before and not skip:
                were = "was" if len(before) == 1 else "were"
                raise ConfigError(f"{_named(before)} of {self.name!r} {were} asked for already")
            new = [letter for letter in letters if not letter.is_asked_for]
            # Since the letters were read, somebody may have asked for one, or a driver replayed it.
            with closing(self.rows.requests()) as requests:
                asked = requests.add(action, new) if new else 0
        done = _DONE[action]
        if not asked:
            return Asking(0, f"no dead letters{f' to be {done}' if letters else ''}", problem)
        marked = _counted(asked, "dead letter is", "dead letters are")
        return Asking(asked, f"{marked} to be {done}; {self._who_does_it()}", problem)

    def _who_does_it(self) -> str:
        try:
            store = coordination_store(self.name, self.conf)
            try:
                store.refuse_if_held()
            finally:
                store.release()
        except LeaseHeldError:
            return "the driver that runs now will do it, within a second"
        except OutsideError as error:  # the letters are marked all the same
            return f"whether a driver runs now cannot be seen: {one_line(str(error))}"
        return "no driver runs now: the next run will do it"


@contextmanager
def kept_letters(name: str, conf: Config, *, is_trident: bool = False) -> Iterator[KeptLetters]:
    """Open the letters of a topology; `is_trident` if it is known to be one of Trident."""
    folder = conf.home_path().absolute() / name
    messages, rows = DeadLetters(folder), LettersLocation(folder)
    try:
        yield KeptLetters(name, conf, messages, rows if is_trident or rows.exists else None)
    finally:
        messages.close()


def status_of(letter: DeadLetter) -> str:
    """Return what was asked for a letter and is not done, for people."""
    if letter.asked is None or letter.asked.state == "done":
        return ""
    if letter.asked.state == "refused":
        return f"refused: {letter.asked.reason}"
    return f"to be {_DONE[letter.asked.action]}"


def why_not(letter: DeadLetter) -> str:
    """Say why a letter cannot be replayed as it is."""
    remedy = "; --set gives new ones" if letter.is_row else ""
    return f"its values could not be stored, only what they look like{remedy}"


def facts(letter: DeadLetter) -> dict[str, Any]:
    """Return everything about a letter for JSON; its values are texts, as Python shows them."""
    names = _ROW_FACTS if letter.is_row else _MESSAGE_FACTS
    found = {name: getattr(letter, name) for name in (*names, *_FACTS)}
    found |= {"first_failed": when(letter.first_failed), "last_failed": when(letter.last_failed)}
    if not letter.is_row:
        asked = letter.is_asked_for
        return {**found, "id": int(letter.id), "values": letter.shown, "wanted": asked}
    row = letter.shown if letter.row is None else {f: shown(v) for f, v in letter.row.items()}
    return {**found, "row": row, "request": letter.asked and asdict(letter.asked)}


def full_facts(letter: DeadLetter) -> dict[str, Any]:
    """Return the facts of a letter for a page on which it can be looked at and repaired.

    `id` is a text; `status` is what was asked for it, `seconds` when it failed first and last. A
    row has also its `fields` with their types, and the `texts` of its values as `replay` takes
    them; None if they could not be kept.
    """
    found = facts(letter) | {"id": letter.id, "status": status_of(letter)}
    found["seconds"] = [letter.first_failed, letter.last_failed]
    if letter.is_row:
        found |= {"fields": dict(letter.schema), "texts": as_repaired(letter)}
    return found


def listing(
    letters: Sequence[DeadLetter], component: str | None = None, limit: int = 100
) -> dict[str, Any]:
    """Return what a page shows of letters: `dead-letters` in the API.

    Keys: total; matching (those of a component: where they failed, or the spout that they came
    from); components (all that there are); letters (the newest of the matching, as `full_facts`).
    """
    matching = [each for each in letters if component in (None, *_places(each))]
    places = sorted({place for each in letters for place in _places(each)})
    newest = matching[::-1][:limit]
    return {
        "total": len(letters),
        "matching": len(matching),
        "components": places,
        "letters": [full_facts(letter) for letter in newest],
    }


def _places(letter: DeadLetter) -> tuple[str, ...]:
    return tuple(place for place in (letter.failed_in, letter.spout) if place)


def when(seconds: float) -> str:
    """Return a time for people, to the second."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _named(letters: Sequence[DeadLetter]) -> str:
    names = ", ".join(letter.id for letter in letters[:_NAMED_MAX])
    more = f" and {len(letters) - _NAMED_MAX:,} more" if len(letters) > _NAMED_MAX else ""
    return f"{'letter' if len(letters) == 1 else 'letters'} {names}{more}"


def _counted(n: int, one: str, many: str) -> str:
    return f"{n:,} {one if n == 1 else many}"
