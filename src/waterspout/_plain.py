"""Any value in the words of JSON, for answers that programs read: commands and the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from waterspout._causes import told

__all__ = ["plain"]

_DEPTH_MAX = 50


def plain(value: Any, hide: Callable[[str], str] = str, depth: int = 0) -> Any:
    """Return a value as JSON can hold it; what JSON has no word for becomes text.

    Texts, but for keys, are as `hide` returns them.

    >>> plain({1: (2, float("nan")), "b": b"x", "big": 2**60, "why": ValueError("no")})
    {'1': [2, 'nan'], 'b': "b'x'", 'big': 1152921504606846976, 'why': 'ValueError: no'}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, int):
        # Python refuses to write an integer of thousands of digits.
        return value if value.bit_length() < 4000 else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth > _DEPTH_MAX:
        return "..."
    if isinstance(value, BaseException):
        return hide(told(value))
    if isinstance(value, Mapping):
        return {str(key): plain(each, hide, depth + 1) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        named = {each.name: getattr(value, each.name) for each in fields(value)}
        return {name: plain(each, hide, depth + 1) for name, each in named.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each, hide, depth + 1) for each in value]
    return hide(str(value))
