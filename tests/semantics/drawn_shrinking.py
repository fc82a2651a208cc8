"""Makes a wrong case smaller: takes away whatever can go, as long as the result stays wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from tests.semantics.drawn_cases import Ask, Case, NewValues, Source, Step, Thing, Update, parents

_TRIES = 3
_FLAGS = ("strict", "zombies", "rolls_back")
_CHANCES = (
    "crash",
    "fail",
    "error",
    "lost_write",
    "half_write",
    "lost_answer",
    "outage",
    "away",
    "change",
)


class Judged(Protocol):
    """What became of a case."""

    case: Case
    wrong: list[str]


J = TypeVar("J", bound=Judged)


def shrunk(outcome: J, run: Callable[[Case], J]) -> J:
    """Return a wrong outcome of a case as small as was found."""
    while True:
        for smaller in _smaller(outcome.case):
            schedule = smaller.schedule
            seeds = [schedule.seed + n for n in range(_TRIES)]
            tried = (run(replace(smaller, schedule=replace(schedule, seed=s))) for s in seeds)
            wrong = next((one for one in tried if one.wrong), None)
            if wrong is not None:
                outcome = wrong
                break
        else:
            return outcome


def _smaller(case: Case) -> Iterator[Case]:
    for i in reversed(range(len(case.things))):
        made = without(case, i)
        if made is not None:
            yield made
    quiet: list[tuple[str, Any]] = [("disaster", None), *((flag, False) for flag in _FLAGS)]
    for name, nothing in [*quiet, *((chance, 0.0) for chance in _CHANCES), ("in_flight", 1)]:
        if getattr(case.schedule, name) != nothing:
            yield replace(case, schedule=replace(case.schedule, **{name: nothing}))
    for i, thing in enumerate(case.things):
        for simpler in _simpler(thing):
            yield replace(case, things=(*case.things[:i], simpler, *case.things[i + 1 :]))


def _simpler(thing: Thing) -> Iterator[Thing]:
    if isinstance(thing, Update) and thing.partitions > 1:
        yield replace(thing, partitions=1)
    if isinstance(thing, Source):
        for name in ("parts", "late"):
            parts = getattr(thing, name)
            for p, rows in enumerate(parts):
                if thing.form == "files" and len(parts) > 1:
                    yield replace(thing, **{name: (*parts[:p], *parts[p + 1 :])})
                for r in range(len(rows)):
                    less = (*rows[:r], *rows[r + 1 :])
                    yield replace(thing, **{name: (*parts[:p], less, *parts[p + 1 :])})


def without(case: Case, gone: int) -> Case | None:
    """Return the case without a thing and all that cannot be without it; None if that is nothing.

    Who reads the stream of an operation reads what it read.
    """
    kept: list[Thing] = []
    moved: dict[int, int | None] = {}
    for i, thing in enumerate(case.things):
        above = [moved[parent] for parent in parents(thing)]
        if i == gone:
            moved[i] = _stand_in(case, thing, moved)
        elif None in above or (len(above) == 2 and above[0] == above[1]):
            moved[i] = None
        else:
            kept.append(_reading(thing, above))
            moved[i] = len(kept) - 1
    case = Case(tuple(kept), case.schedule)
    disaster = case.schedule.disaster
    if disaster is not None:
        target = moved[disaster.target]
        if target is None or disaster.target == gone:
            return None
        schedule = replace(case.schedule, disaster=replace(disaster, target=target))
        case = replace(case, schedule=schedule)
    return case if case.updates and len(kept) else None


def _stand_in(case: Case, thing: Thing, moved: dict[int, int | None]) -> int | None:
    match thing:
        case Step(of=(first, *_)) | Ask(of=first):
            return moved[first]
        case NewValues(of=update):
            return moved[parents(case.things[update])[0]]
    return None


def _reading(thing: Thing, above: list[Any]) -> Thing:
    match thing:
        case Step():
            return replace(thing, of=tuple(above))
        case Ask():
            return replace(thing, of=above[0], state=above[1])
        case Update() | NewValues():
            return replace(thing, of=above[0])
    return thing
