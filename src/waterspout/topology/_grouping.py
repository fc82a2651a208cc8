"""Groupings: which tasks of a bolt get a tuple. Pure functions from values to task ids.

The tasks of a component are ascending. A fields grouping hashes the *values* of its fields, so
that equal values meet at one task in every process and on every machine, for ever; Python's own
`hash` is salted anew in each process.
"""

from __future__ import annotations

import copy
import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import cycle
from typing import Any, Protocol

from waterspout._serde import encode_key
from waterspout._tuples import Fields
from waterspout.errors import EmitError, SerdeError
from waterspout.topology._context import TopologyContext

__all__ = [
    "CustomGrouping",
    "DealtRoute",
    "Grouping",
    "GroupingKind",
    "OneFieldRoute",
    "Route",
    "TaskChooser",
    "make_route",
    "stable_hash",
    "turn_of",
]

Route = Callable[[tuple[Any, ...]], tuple[int, ...]]

_REMEMBERED_MAX = 1_000_000


class GroupingKind(Enum):
    """The ways to group a stream."""

    SHUFFLE = "shuffle"
    FIELDS = "fields"
    ALL = "all"
    GLOBAL = "global"
    NONE = "none"
    LOCAL_OR_SHUFFLE = "local or shuffle"
    DIRECT = "direct"
    PARTIAL_KEY = "partial key"
    CUSTOM = "custom"


# Any task will do for these: the one at hand saves a shuffle.
_ANY_TASK = {GroupingKind.SHUFFLE, GroupingKind.LOCAL_OR_SHUFFLE, GroupingKind.NONE}


class TaskChooser(Protocol):
    """What a custom grouping must be able to do; `CustomGrouping` is a base class for one."""

    def prepare(
        self, context: TopologyContext, stream: str, target_tasks: Sequence[int], /
    ) -> None:
        """Get to know the tasks to choose from."""

    def choose_tasks(self, task_id: int, values: Sequence[Any], /) -> Sequence[int]:
        """Return the tasks that get this tuple."""


class CustomGrouping(ABC):
    """A grouping of the user's own. Pickled; each producing task prepares its copy."""

    def prepare(  # noqa: B027  (optional hook)
        self, context: TopologyContext, stream: str, target_tasks: Sequence[int]
    ) -> None:
        """Get to know the tasks to choose from; called before the first choice of a wave."""

    @abstractmethod
    def choose_tasks(self, task_id: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the tasks that get this tuple; `task_id` emits it."""


@dataclass(frozen=True)
class Grouping:
    """How one bolt takes one stream."""

    kind: GroupingKind
    fields: Fields = Fields()  # noqa: RUF009  (immutable)
    custom: TaskChooser | None = None

    @property
    def takes_any_task(self) -> bool:
        """Whether a tuple may go to whichever task is near."""
        return self.kind in _ANY_TASK

    def __str__(self) -> str:
        return f"{self.kind.value}({', '.join(self.fields)})" if self.fields else self.kind.value


def stable_hash(values: Sequence[Any]) -> int:
    """Return 64 bits that depend on the values alone; equal values have equal bits.

    >>> stable_hash(["the"]) == stable_hash(("the",)), stable_hash([1]) == stable_hash([1.0])
    (True, True)
    """
    try:
        text = encode_key([_canonical(value) for value in values])
    except (SerdeError, ArithmeticError, ValueError) as error:
        raise EmitError(f"fields to group by: {error}") from None
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _canonical(value: Any) -> Any:
    """Give numbers that Python holds equal one form; it would take them for one key too."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of an enum, say
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | Decimal | Fraction):
        try:
            exact = Fraction(value)
        except (ValueError, OverflowError):
            return float(value)  # infinite, or not a number
        if exact.denominator == 1:
            return exact.numerator
        return ("fraction", str(exact))
    if isinstance(value, tuple | list):
        return [_canonical(inner) for inner in value]
    item = getattr(value, "item", None)  # a numpy scalar
    return _canonical(item()) if callable(item) and getattr(value, "shape", None) == () else value


def turn_of(number: int) -> int:
    """Return 32 bits that fill their range evenly for any run of numbers, every second one too.

    Multiples of the golden ratio, of which the fraction is kept.
    """
    return number * 0x9E3779B9 & 0xFFFFFFFF


def make_route(
    grouping: Grouping,
    fields: Fields,
    tasks: Sequence[int],
    *,
    context: TopologyContext,
    stream: str,
    turn: int,
) -> Route:
    """Return the function that chooses among `tasks`, for one producing task and one wave.

    `turn` (32 bits, see `turn_of`) moves the start of a shuffle on, so that small waves are dealt
    evenly too.
    """
    ordered = tuple(sorted(tasks))
    match grouping.kind:
        case GroupingKind.SHUFFLE | GroupingKind.LOCAL_OR_SHUFFLE:
            return DealtRoute(ordered, turn)
        case GroupingKind.NONE:
            # Seeded: a task that is retried must send its tuples where it sent them before.
            choose = random.Random(turn).choice  # noqa: S311
            chosen = [(task,) for task in ordered]
            return lambda values: choose(chosen)
        case GroupingKind.ALL:
            return lambda values: ordered
        case GroupingKind.GLOBAL:
            lowest = ordered[:1]
            return lambda values: lowest
        case GroupingKind.FIELDS:
            return _by_fields(grouping.fields, fields, ordered)
        case GroupingKind.PARTIAL_KEY:
            return _by_partial_key(grouping.fields, fields, ordered, turn)
        case GroupingKind.CUSTOM:
            assert grouping.custom is not None
            return _by_custom(grouping.custom, ordered, context, stream)
    raise AssertionError(f"{grouping.kind} has no route: its emitter names the task")


class DealtRoute:
    """Deals tuples evenly, whatever their values, to `tasks` in turn.

    `deal` returns the next one, as what an emit returns.
    """

    __slots__ = ("deal", "tasks")

    def __init__(self, tasks: tuple[int, ...], turn: int) -> None:
        start = turn * len(tasks) >> 32
        self.tasks = tasks[start:] + tasks[:start]
        self.deal = cycle([(task,) for task in self.tasks]).__next__

    def __call__(self, values: tuple[Any, ...]) -> tuple[int, ...]:
        return self.deal()


class _Remembered(dict[Any, tuple[int, ...]]):
    """Chooses a task for a key when it is asked for the first time."""

    def __init__(self, choose: Callable[[Any], tuple[int, ...]]) -> None:
        super().__init__()
        self._choose = choose

    def __missing__(self, key: Any) -> tuple[int, ...]:
        if len(self) >= _REMEMBERED_MAX:
            self.clear()
        tasks = self[key] = self._choose(key)
        return tasks


# Tasks by value, shared by all waves of a worker process: hashing a word anew in every wave
# would cost more than all the rest of its way.
_by_value: dict[tuple[int, ...], dict[Any, int]] = {}


class OneFieldRoute:
    """Groups by one field. `known` has the tasks of values met before: an outlet looks there."""

    __slots__ = ("_tasks", "known", "position")

    def __init__(self, position: int, tasks: tuple[int, ...]) -> None:
        self.position = position
        self._tasks = tasks
        self.known = _by_value.setdefault(tasks, {})

    def __call__(self, values: tuple[Any, ...]) -> tuple[int, ...]:
        value = values[self.position]
        try:
            return (self.known[value],)
        except (KeyError, TypeError):
            return (self.task_of(value),)

    def task_of(self, value: Any) -> int:
        """Return the task of a value, and remember it if it can be the key of a dict."""
        task = self._tasks[stable_hash((value,)) % len(self._tasks)]
        if len(self.known) >= _REMEMBERED_MAX:
            self.known.clear()
        with suppress(TypeError):  # a list: equal to others, but no key
            self.known[value] = task
        return task


def _by_fields(names: Fields, fields: Fields, tasks: tuple[int, ...]) -> Route:
    positions = [fields.position(name) for name in names]
    if len(positions) == 1:
        return OneFieldRoute(positions[0], tasks)
    known_by_all = _Remembered(lambda key: (tasks[stable_hash(key) % len(tasks)],))

    def by_all(values: tuple[Any, ...]) -> tuple[int, ...]:
        key = tuple([values[position] for position in positions])
        try:
            return known_by_all[key]
        except TypeError:
            return (tasks[stable_hash(key) % len(tasks)],)

    return by_all


def _by_partial_key(names: Fields, fields: Fields, tasks: tuple[int, ...], turn: int) -> Route:
    """Of two tasks that a key may go to, choose the one this producer has used less.

    What was used is counted within a wave; `turn` says which is the first in one.
    """
    positions = [fields.position(name) for name in names]
    used = dict.fromkeys(tasks, 0)

    def choose(values: tuple[Any, ...]) -> tuple[int, ...]:
        key = stable_hash([values[position] for position in positions])
        first = key % len(tasks)
        second = (key >> 32) % len(tasks)
        if second == first:
            second = (first + 1) % len(tasks)
        one, other = tasks[first], tasks[second]
        if turn >> 31:
            one, other = other, one
        task = one if used[one] <= used[other] else other
        used[task] += 1
        return (task,)

    return choose


def _by_custom(
    custom: TaskChooser, tasks: tuple[int, ...], context: TopologyContext, stream: str
) -> Route:
    custom = copy.deepcopy(custom)  # one object may be given for several streams and bolts
    custom.prepare(context, stream, list(tasks))
    known = frozenset(tasks)

    def choose(values: tuple[Any, ...]) -> tuple[int, ...]:
        chosen = tuple(custom.choose_tasks(context.this_task_id, list(values)))
        if not known.issuperset(chosen):
            strangers = sorted(set(chosen) - known)
            raise EmitError(
                f"the grouping {type(custom).__name__} of stream {stream!r} chose task "
                f"{strangers[0]}, which is not one of {', '.join(map(str, tasks))}"
            )
        return chosen

    return choose
