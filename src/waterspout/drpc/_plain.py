"""The values of an answer as JSON has words for them."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """Return a value in the words of JSON: what it has none for becomes text.

    >>> plain((1, b"hi", float("nan"), {"a": None}))
    [1, 'aGk=', 'NaN', {'a': None}]
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _name(value)
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value)  # a decimal, an interval, a UUID


def _name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
