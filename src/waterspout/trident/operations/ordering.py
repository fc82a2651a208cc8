"""One order and one identity for all values, the same as Spark's where Spark has one."""

from __future__ import annotations

from typing import Any

from waterspout._serde import encode_key

__all__ = ["identity", "order"]


def order(value: Any) -> tuple[Any, ...]:
    """Return what puts values of one type in order: null first, NaN last.

    >>> sorted([2.0, float("nan"), None, 1.0], key=order)
    [None, 1.0, 2.0, nan]
    """
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, tuple((order(k), order(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return (1, tuple(map(order, value)))
    return (2,) if value != value else (1, value)


def identity(value: Any) -> str:
    """Return a text that is the same for equal values of one type, and only for them.

    >>> identity([0.0]) == identity([-0.0]), identity(1) == identity(True)
    (True, False)
    """
    return encode_key((_without_dicts(value),))


def _without_dicts(value: Any) -> Any:
    if isinstance(value, dict):  # a struct: its fields have one order
        return tuple((key, _without_dicts(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_without_dicts, value))
    return value
