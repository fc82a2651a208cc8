"""Numbers and times as they are read on the page."""

from __future__ import annotations

import time

from waterspout.coordination.commands.sights import span

__all__ = ["NONE", "ago", "at", "number", "rate"]

NONE = "-"


def number(value: float | None, digits: int = 1) -> str:
    """Return a number that is read at a glance.

    >>> number(1234567), number(0.1234, 2), number(12.34), number(None), number(3.0)
    ('1,234,567', '0.12', '12.3', '-', '3')
    """
    if value is None:
        return NONE
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.{digits}f}"


def rate(per_s: float | None) -> str:
    """Return how often something happens.

    >>> rate(1234.4), rate(3.21), rate(0.04), rate(0), rate(None)
    ('1,234/s', '3.2/s', '0.04/s', '0/s', '-')
    """
    if per_s is None:
        return NONE
    if per_s == 0:
        return "0/s"
    return f"{per_s:,.0f}/s" if per_s >= 100 else f"{number(per_s, 1 if per_s >= 1 else 2)}/s"


def at(seconds: float | None) -> str:
    """Return a time of today, or of a day."""
    if not seconds:
        return NONE
    then = time.localtime(seconds)
    today = time.strftime("%F", then) == time.strftime("%F")
    return time.strftime("%H:%M:%S" if today else "%F %H:%M:%S", then)


def ago(seconds: float | None) -> str:
    """Return how long ago something was."""
    return NONE if not seconds else f"{span(time.time() - seconds)} ago"
