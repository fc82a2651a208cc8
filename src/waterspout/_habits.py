"""What people write who come from Storm or from Spark, and what is written here."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

__all__ = ["SaysInstead", "saying_instead"]

T = TypeVar("T")


class SaysInstead:
    """Says what to write in place of a method that there is not: `groupBy`, `withColumn`.

    `_instead` is what to write, by the name that others have for it. Names of Java's spelling
    need no entry.
    """

    __slots__ = ()

    _instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # else every name would be a method, to whoever checks types

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_said(type(self), type(self)._instead, name))


def saying_instead(
    instead: Mapping[str, str], others: Iterable[str] = ()
) -> Callable[[type[T]], type[T]]:
    """Let a class say the same of the names in `instead`, in Java's spelling too, and of others.

    For objects whose attributes are read millions of times. Python reads an attribute of a class
    with a `__getattr__`, one that is there, five times as slowly.
    """

    def let(kind: type[T]) -> type[T]:
        known = [name for name in dir(kind) if not name.startswith("_")]
        names = {*instead, *others, *map(_as_in_java, [*instead, *known])}
        for name in sorted(names.difference(known)):
            setattr(kind, name, _Absent(name, instead))
        return kind

    return let


class _Absent:
    """Stands for a name that a class has not."""

    __slots__ = ("_instead", "_name")

    def __init__(self, name: str, instead: Mapping[str, str]) -> None:
        self._name, self._instead = name, instead

    def __get__(self, _: object, kind: type) -> Any:
        raise AttributeError(_said(kind, self._instead, self._name))


def _said(kind: type, instead: Mapping[str, str], name: str) -> str:
    said = f"{kind.__name__} has no {name!r}"
    # What Python and notebooks look for is not looked for by people.
    hint = None if name.startswith("_") else _hint(kind, instead, name)
    return said if hint is None else f"{said}; {hint}"


def _as_in_java(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _hint(kind: type, others: Mapping[str, str], name: str) -> str | None:
    instead = others.get(name)
    if instead is not None:
        return instead
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if spelled in others:
        return others[spelled]
    known = [each for each in dir(kind) if not each.startswith("_")]
    known = [n for n in known if not isinstance(inspect.getattr_static(kind, n), _Absent)]
    if spelled in known:
        return f"it is written {spelled}"
    close = difflib.get_close_matches(spelled, known, n=1)
    return f"did you mean {close[0]}?" if close else None
