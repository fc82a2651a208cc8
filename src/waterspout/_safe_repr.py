"""`repr` and messages of objects that users wrote: shortened, storable, and never raising."""

from __future__ import annotations

from typing import Any

__all__ = ["described", "shown", "with_article"]


def shown(value: Any, limit: int = 200) -> str:
    """Return `repr(value)`, cut, that any store takes; never raises.

    >>> shown(["a", 1]), shown("x" * 10, limit=4)
    ("['a', 1]", "'xxx...")
    """
    try:
        text = repr(value)
    except Exception as error:
        text = f"<a {type(value).__name__} whose repr raises {type(error).__name__}>"
    return _cut(text, limit)


def described(error: BaseException, limit: int = 4000) -> str:
    """Return the kind and the message of an error; never raises.

    >>> described(ValueError("no"))
    'ValueError: no'
    """
    try:
        text = str(error)
    except Exception as inner:
        text = f"<its text raises {type(inner).__name__}>"
    return _cut(f"{type(error).__name__}: {text}", limit)


def with_article(noun: str) -> str:
    """Return a noun as English has it.

    >>> with_article("opaque state"), with_article("Bolt")
    ('an opaque state', 'a Bolt')
    """
    return f"an {noun}" if noun[:1].lower() in ("a", "e", "i", "o") else f"a {noun}"


def _cut(text: str, limit: int) -> str:
    # File names that are not text come as lone surrogates, which nothing can encode.
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return plain if len(plain) <= limit else f"{plain[:limit]}..."
