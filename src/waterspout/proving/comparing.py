"""Whether two states hold the same: pure functions over what was read of them.

A state of values is compared key by key, a table of rows as a bag: how often there is each row.
Floating-point numbers may differ in their last digits, since a sum depends on the order in which it
is added up, and Spark promises none; everything else must be equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Content", "Discrepancy", "bag_of", "compare"]

Content = Mapping[Any, Any]
"""A state: values by key; or, of a table, how often there is each row."""

_CLOSE = 1e-9
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A key (or a row) of which a trial has something else than the reference; None: nothing."""

    key: Any
    got: Any
    expected: Any


def compare(got: Content, expected: Content) -> list[Discrepancy]:
    """Return all keys that differ, in a fixed order."""
    found = [
        Discrepancy(key, got.get(key), expected.get(key))
        for key in got.keys() | expected.keys()
        if not _same(got.get(key), expected.get(key))
    ]
    return sorted(found, key=lambda each: repr(each.key))


def bag_of(rows: Iterable[Iterable[Any]]) -> Content:
    """Return how often there is each row; numbers that differ in the last digits are one."""
    return Counter(tuple(map(_rounded, row)) for row in rows)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(v, other[k]) for k, v in one.items())
    return bool(one == other)


def _rounded(value: Any) -> Hashable:
    """Return a value of a row as it can be counted: hashable, floats without their last digits."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else float(f"{value:.{_DIGITS}g}")
        case Mapping():
            return tuple(sorted((str(key), _rounded(each)) for key, each in value.items()))
        case list() | tuple():
            return tuple(map(_rounded, value))
        case set() | frozenset():
            return tuple(sorted(map(repr, value)))
        case Hashable():
            return value
    return repr(value)
