"""Answers: JSON without surprises, errors of one shape, headers that every answer has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from waterspout._plain import plain

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
