"""Answers: JSON without surprises, errors of one shape, headers that every answer has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from starlette.responses import Response

__all__ = ["HEADERS", "JSONAnswer", "Refusal", "plain"]

# Nothing that is answered here is a page with parts, but for /docs, which has no scripts either.
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

_DEPTH_MAX = 50


class JSONAnswer(Response):
    """A JSON body of whatever `plain` can make JSON of."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(plain(content), ensure_ascii=False, allow_nan=False).encode(
            "utf-8", "backslashreplace"
        )


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is not done as asked: the status, a word for programs, a text for people."""

    status: int
    kind: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else a program wants to know."""

    def answer(self) -> JSONAnswer:
        """Return it as an answer."""
        error = {"kind": self.kind, "message": self.message, **self.facts}
        return JSONAnswer({"error": error}, self.status, dict(self.headers))


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON can hold it; what JSON has no word for becomes text.

    >>> plain({1: (2, float("nan")), "b": b"x", "big": 2**60})
    {'1': [2, 'nan'], 'b': "b'x'", 'big': 1152921504606846976}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        # Python refuses to write an integer of thousands of digits.
        return value if value.bit_length() < 4000 else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth > _DEPTH_MAX:
        return "..."
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each, depth + 1) for each in value]
    return str(value)
