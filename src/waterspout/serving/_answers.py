"""Answers: JSON without surprises, errors of one shape, headers that every answer has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from waterspout._plain import plain

__all__ = ["ERRORS", "HEADERS", "ErrorAnswer", "ErrorFacts", "JSONAnswer", "Refusal"]

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


class ErrorFacts(BaseModel):
    """A word for programs and a text for people; what else is known stands beside them."""

    model_config = ConfigDict(extra="allow")

    kind: str
    message: str


class ErrorAnswer(BaseModel):
    """What every answer with a status of 400 or more has."""

    error: ErrorFacts


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in {
        400: "The request is not one, or what it asks for cannot be.",
        401: "The token is missing or wrong.",
        403: "Called by a foreign name or page, or a command where no token was configured.",
        404: "There is no such thing.",
        408: "The body did not come in time.",
        409: "The run does not do it; the text says why.",
        413: "The body is too large.",
        422: "A part of the request has not the form that it must have.",
        431: "The head is too large.",
        503: "Too many requests at once, or a store is away; Retry-After says when to come again.",
    }.items()
}


class JSONAnswer(Response):
    """A JSON body of whatever `plain` can make JSON of."""

    media_type = "application/json"

    def __init__(
        self,
        content: Any,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        hide: Callable[[str], str] = str,
    ) -> None:
        self._hide = hide
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:
        """Return the body."""
        text = json.dumps(plain(content, self._hide), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "backslashreplace")


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
