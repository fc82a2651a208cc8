"""What people write who come from Storm or from Spark, and what is written here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

__all__ = ["SaysInstead"]


class SaysInstead:
    """Says what to write in place of a method that there is not: `groupBy`, `withColumn`.

    `_instead` is what to write, by the name that others have for it. Names of Java's spelling
    need no entry.
    """

    __slots__ = ()

    _instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # else every name would be a method, to whoever checks types

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            said = f"{kind.__name__} has no {name!r}"
            # What Python and notebooks look for is not looked for by people.
            hint = None if name.startswith("_") else _hint(kind, name)
            raise AttributeError(said if hint is None else f"{said}; {hint}")


def _hint(kind: type[SaysInstead], name: str) -> str | None:
    instead = kind._instead.get(name)
    if instead is not None:
        return instead
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if spelled in kind._instead:
        return kind._instead[spelled]
    known = [each for each in dir(kind) if not each.startswith("_")]
    if spelled in known:
        return f"it is written {spelled}"
    close = difflib.get_close_matches(spelled, known, n=1)
    return f"did you mean {close[0]}?" if close else None
