"""Tuple objects that are used again: to make one costs more than many a bolt does with it.

Whoever runs a bolt keeps the tuple at hand in a variable and in `port.given`. If after the call
nobody else refers to it, the bolt has not kept it, and it can hold the next values:

    if references(given) == ALONE:
        given.values, given._index = values, index
    else:
        given = port.given = Tuple(values, origin, index)

These lines are written out where they are used: they are the hot path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from waterspout._tuples import Origin, Tuple
from waterspout.topology._ports import Port

__all__ = ["ALONE", "references"]

references: Callable[[object], int] = getattr(sys, "getrefcount", lambda _: -1)


def _alone() -> int:
    """Count as the runner of a bolt does, of a tuple that no bolt has kept."""
    port = Port("", {})
    given = port.given = Tuple((), Origin("", "", 0, (), None, None), 0)  # type: ignore[arg-type]
    return references(given)


ALONE = _alone() if hasattr(sys, "getrefcount") else 0
"""How many references the tuple at hand has if its bolt has kept none."""
