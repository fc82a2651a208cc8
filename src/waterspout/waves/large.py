"""Large maps and sets in a bolt's attributes, which note what is changed in them.

After a wave only the changes of such a container travel, not all that it holds. It takes the place
of a plain dict, Counter, defaultdict or set when that has become large, if this cannot be told
apart: nobody else holds the plain one, and all that is in it are values that nobody can change in
place (numbers, text, tuples of them...). One that holds anything else travels as a whole.
"""

from __future__ import annotations

import copyreg
import datetime
import decimal
import fractions
import sys
import uuid
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

__all__ = ["LARGE", "Container", "Edit", "Plain", "adopt", "apply", "reference", "resolving"]

LARGE = 4096
"""From how many entries on a container may be made to note its changes."""

# How many attributes, and entries of small dicts in them, are looked at to find large containers.
_LOOKS_MAX = 256

Plain = dict[Any, Any] | set[Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """What was done to a container: it was emptied, then entries deleted, then entries set."""

    kind: str
    cleared: bool
    deleted: tuple[Any, ...]
    changed: Collection[Any]
    """Keys and values in the order of their insertion; of a set, its members."""

    def __len__(self) -> int:
        return len(self.deleted) + len(self.changed)


class _Noting:
    """What all such containers have in common: a number in their bolt, and notes of changes.

    Number 0: it travels as a whole, as the plain container that it looks like.
    """

    kind: str
    number: int
    _cleared: bool
    _deleted: dict[Any, None]
    _changed: dict[Any, Any]

    def _begin(self) -> None:
        self.number = 0
        self._cleared = False
        self._deleted = {}
        self._changed = {}

    def change(self) -> Edit | None:
        """Return what has changed since `forget`; None: it holds what somebody may change."""
        deleted, changed = self._deleted, self._changed
        if not (_are_keys(changed) and _are_keys(deleted) and _are_values(changed.values())):
            return None
        return Edit(self.kind, self._cleared, tuple(deleted), changed)

    def forget(self) -> None:
        """Begin with no changes."""
        self._cleared = False
        self._deleted = {}
        self._changed = {}

    def _note_deleted(self, key: Any) -> None:
        self._changed.pop(key, None)
        self._deleted[key] = None

    def _note_cleared(self) -> None:
        self._cleared = True
        self._deleted = {}
        self._changed = {}


class _NotingMap(_Noting, dict[Any, Any]):
    """A dict that notes; every method that changes a dict, written out."""

    def __setitem__(self, key: Any, value: Any) -> None:
        dict.__setitem__(self, key, value)
        self._changed[key] = value

    def __delitem__(self, key: Any) -> None:
        dict.__delitem__(self, key)
        self._note_deleted(key)

    def pop(self, key: Any, *default: Any) -> Any:
        size = len(self)
        value = dict.pop(self, key, *default)
        if len(self) != size:
            self._note_deleted(key)
        return value

    def popitem(self) -> tuple[Any, Any]:
        item = dict.popitem(self)
        self._note_deleted(item[0])
        return item

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        dict.clear(self)
        self._note_cleared()

    def update(self, *given: Any, **named: Any) -> None:
        for key, value in dict(*given, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        self.update(other)
        return self

    def whole(self) -> Edit:
        """Return all that it holds, as a change of nothing."""
        return Edit(self.kind, True, (), dict(self))

    def _apply(self, change: Edit) -> None:
        if change.cleared:
            dict.clear(self)
        for key in change.deleted:
            dict.pop(self, key, None)
        dict.update(self, change.changed)


class _NotingDict(_NotingMap):
    kind = "dict"

    def __init__(self, *given: Any, **named: Any) -> None:
        dict.__init__(self, *given, **named)
        self._begin()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (), None, None, iter(self.items())


class _NotingCounter(_NotingMap, Counter[Any]):
    kind = "Counter"

    def __init__(self, *given: Any, **named: Any) -> None:
        self._begin()
        Counter.__init__(self, *given, **named)

    def __delitem__(self, key: Any) -> None:
        if key in self:  # a Counter lets one delete what is not there
            _NotingMap.__delitem__(self, key)

    def update(self, given: Any = None, /, **named: Any) -> None:
        if isinstance(given, Mapping) and not self:
            _NotingMap.update(self, given)  # an empty Counter would take them unnoticed
        elif given is not None:
            Counter.update(self, given)
        if named:
            self.update(named)

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        return Counter.__ior__(self, other)

    def copy(self) -> Counter[Any]:  # type: ignore[override]
        return Counter(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Counter, (dict(self),)


class _NotingDefaultDict(_NotingMap, defaultdict[Any, Any]):
    kind = "defaultdict"

    def __init__(self, *given: Any, **named: Any) -> None:
        defaultdict.__init__(self, *given, **named)
        self._begin()

    def __missing__(self, key: Any) -> Any:
        if self.default_factory is None:
            raise KeyError(key)
        value = self[key] = self.default_factory()
        return value

    def copy(self) -> defaultdict[Any, Any]:  # type: ignore[override]
        return defaultdict(self.default_factory, self)

    __copy__ = copy  # type: ignore[assignment]

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return defaultdict, (self.default_factory,), None, None, iter(self.items())


class _NotingSet(_Noting, set[Any]):
    """A set that notes; every method that changes a set, written out."""

    kind = "set"

    def __init__(self, given: Iterable[Any] = ()) -> None:
        set.__init__(self, given)
        self._begin()

    def add(self, member: Any) -> None:
        set.add(self, member)
        self._changed[member] = None

    def discard(self, member: Any) -> None:
        if member in self:
            self.remove(member)

    def remove(self, member: Any) -> None:
        set.remove(self, member)
        self._note_deleted(member)

    def pop(self) -> Any:
        member = set.pop(self)
        self._note_deleted(member)
        return member

    def clear(self) -> None:
        set.clear(self)
        self._note_cleared()

    def update(self, *others: Iterable[Any]) -> None:
        for other in others:
            for member in set(other):
                self.add(member)

    def difference_update(self, *others: Iterable[Any]) -> None:
        for other in others:
            for member in set(other):
                self.discard(member)

    def intersection_update(self, *others: Iterable[Any]) -> None:
        self.difference_update(self - self.intersection(*others))

    def symmetric_difference_update(self, other: Iterable[Any]) -> None:
        given = set(other)
        both = self & given
        self.update(given - both)
        self.difference_update(both)

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        return self._changed_by(self.update, other)

    def __isub__(self, other: Any) -> Any:  # type: ignore[misc]
        return self._changed_by(self.difference_update, other)

    def __iand__(self, other: Any) -> Any:  # type: ignore[misc]
        return self._changed_by(self.intersection_update, other)

    def __ixor__(self, other: Any) -> Any:  # type: ignore[misc]
        return self._changed_by(self.symmetric_difference_update, other)

    def _changed_by(self, change: Callable[[Any], None], other: Any) -> Any:
        if not isinstance(other, set | frozenset):
            return NotImplemented
        change(other)
        return self

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return set, (list(self),)

    def __repr__(self) -> str:
        return repr(set(self))

    def whole(self) -> Edit:
        """Return all that it holds, as a change of nothing."""
        return Edit(self.kind, True, (), dict.fromkeys(self))

    def _apply(self, change: Edit) -> None:
        if change.cleared:
            set.clear(self)
        set.difference_update(self, change.deleted)
        set.update(self, change.changed)


Container = _NotingDict | _NotingCounter | _NotingDefaultDict | _NotingSet

# As users see them when they print one.
_NotingDict.__name__, _NotingCounter.__name__ = "dict", "Counter"
_NotingDefaultDict.__name__, _NotingSet.__name__ = "defaultdict", "set"

_KINDS: dict[str, type[Container]] = {
    "dict": _NotingDict,
    "Counter": _NotingCounter,
    "defaultdict": _NotingDefaultDict,
    "set": _NotingSet,
}
_NOTING: dict[type, type[Container]] = {
    dict: _NotingDict,
    Counter: _NotingCounter,
    defaultdict: _NotingDefaultDict,
    set: _NotingSet,
}


def apply(containers: dict[int, Container], changes: Mapping[int, Edit]) -> None:
    """Edit containers as others of the same numbers were; make those that are new."""
    for number, change in changes.items():
        found = containers.get(number)
        if found is None:
            found = containers[number] = _KINDS[change.kind]()
            found.number = number
        found._apply(change)


# What the containers in a pickled bolt become while it is restored.
_resolving: list[Mapping[int, Container]] = []


@contextmanager
def resolving(containers: Mapping[int, Container]) -> Iterator[None]:
    """Let every reference to a container that is read meanwhile become that container."""
    _resolving.append(containers)
    try:
        yield
    finally:
        _resolving.pop()


def reference(
    own: Mapping[int, Container], met: set[int]
) -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """Return how containers are pickled in a bolt: by their number, which is noted in `met`.

    One that is not the bolt's own (it was emitted to it, or is no longer kept) as what it holds.
    """

    def reduce(container: Container) -> tuple[Any, ...]:
        if own.get(container.number) is not container:
            return container.__reduce_ex__(5)
        met.add(container.number)
        factory = container.default_factory if isinstance(container, _NotingDefaultDict) else None
        return _resolve, (container.number, factory)

    return dict.fromkeys(_KINDS.values(), reduce)


def _resolve(number: int, factory: Any) -> Container:
    container = _resolving[-1][number]
    if isinstance(container, _NotingDefaultDict):
        container.default_factory = factory
    return container


def adopt(
    attributes: dict[str, Any], left_out: Collection[str], executed: int, first: int
) -> dict[int, Container]:
    """Put noting containers in the place of large plain ones; return them by number.

    In attributes, in small dicts among them, and in the attributes of plain objects there.
    `executed` are the tuples of the wave: where they are more than the entries, all that a
    container holds costs less than notes of every change. Numbers begin at `first`.
    """
    found: dict[int, Container] = {}
    smallest = max(LARGE, executed)
    places = _places(attributes, left_out)
    for parent, name in places:
        # No variable may hold the container: who else does is counted.
        kind = type(parent[name])
        if kind in _NOTING and len(parent[name]) >= smallest and _can_be_replaced(parent, name):
            made = _noting(parent[name])
            made.number = first + len(found)
            found[made.number] = parent[name] = made
    return found


def _places(
    attributes: dict[str, Any], left_out: Collection[str]
) -> list[tuple[dict[Any, Any], Any]]:
    """Return where containers may be: the dicts to look into, and the names in them."""
    found: list[tuple[dict[Any, Any], Any]] = []
    parents: list[dict[Any, Any]] = [attributes]
    for parent in parents:
        room = _LOOKS_MAX - len(found)
        names = [each for each in islice(parent, room) if each not in left_out]
        for name in names:
            found.append((parent, name))
            value = parent[name]
            if type(value) is dict and len(value) < LARGE:
                parents.append(value)
            elif _is_plain_object(value):
                parents.append(value.__dict__)
        left_out = ()
    return found


def _noting(plain: Any) -> Container:
    if type(plain) is defaultdict:
        made: Container = _NotingDefaultDict(plain.default_factory)
    else:
        made = _NOTING[type(plain)]()
    content = dict.fromkeys(plain) if isinstance(plain, set) else plain
    made._apply(Edit(made.kind, True, (), content))
    return made


def _can_be_replaced(parent: dict[Any, Any], name: Any) -> bool:
    """Whether nobody can tell that another object has taken the place of this one."""
    if _references(parent, name) != _ALONE:
        return False
    plain = parent[name]
    if weakref.getweakrefcount(plain) or getattr(plain, "__dict__", None):
        return False  # of a Counter: attributes of its own
    values = () if isinstance(plain, set) else plain.values()
    if not all(map(_is_value, islice(values, 1))):
        return False  # found at once: all values are of one kind, as a rule
    return _are_keys(plain) and _are_values(values)


def _is_plain_object(thing: Any) -> bool:
    """Whether it is pickled as its attributes are, by no rule of its own."""
    kind: Any = type(thing)
    return (
        kind.__module__ != "builtins"
        and kind not in copyreg.dispatch_table
        and type(getattr(thing, "__dict__", None)) is dict
        and not isinstance(thing, type)
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not hasattr(kind, "__setstate__")
    )


# Types of which nobody can change a value in place, and whose equals are equal when read again.
_ATOMS = frozenset(
    {int, str, bytes, bool, type(None), uuid.UUID, fractions.Fraction}
    | {datetime.date, datetime.timedelta}
)
# The same but for NaN, which equals nothing.
_NUMBERS = frozenset({float, complex, decimal.Decimal})
_MOMENTS = frozenset({datetime.datetime, datetime.time})


def _are_keys(things: Iterable[Any]) -> bool:
    """Whether keys that are pickled alone still find their entries."""
    kinds = set(map(type, things)) - _ATOMS
    return not kinds or all(_is_value(each, key=True) for each in things if type(each) in kinds)


def _are_values(things: Iterable[Any]) -> bool:
    """Whether nobody can change one of them in place."""
    kinds = set(map(type, things)) - _ATOMS - _NUMBERS
    return not kinds or all(_is_value(each) for each in things if type(each) in kinds)


def _is_value(thing: Any, *, key: bool = False) -> bool:
    kind = type(thing)
    if kind in _ATOMS:
        return True
    if kind in _NUMBERS:
        return not key or bool(thing == thing)
    if kind in _MOMENTS:
        zone = thing.tzinfo
        return zone is None or type(zone).__module__ in ("datetime", "zoneinfo")
    return kind in (tuple, frozenset) and all(_is_value(each, key=key) for each in thing)


def _references(parent: dict[Any, Any], name: Any) -> int:
    return sys.getrefcount(parent[name])


_ALONE = _references({"name": {}}, "name") if hasattr(sys, "getrefcount") else -1
