"""Where a view gets its facts: the JSON API of a served run, or what is stored of one.

A view asks a `FactSource` by the paths of the API and gets answers in the shapes of the API,
whoever gives them. What cannot be answered is raised as `NotAnswered`, which the page shows in
place of the view, or above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol
from urllib.parse import quote

from waterspout._addresses import masked
from waterspout.errors import MissingDependencyError

try:
    import httpx
except ImportError as missing:
    raise MissingDependencyError("httpx", "ui") from missing

__all__ = ["FactSource", "LiveSource", "NotAnswered", "Why"]

Why = Literal["unreachable", "refused", "absent", "failed"]

_TIMEOUT_S = 5.0
_DONE_S = 30.0
"""A command may wait for what is in flight."""
_TEXT_MAX = 2_000


class NotAnswered(Exception):
    """A question that got no answer, and why.

    unreachable: nobody is there, or nothing came in time; refused: a token is missing or wrong, or
    the run does not want to; absent: this source does not know such a thing; failed: anything else.
    """

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why


class FactSource(Protocol):
    """One topology, to be asked. Safe to be used by all pages that are open on it."""

    name: str
    """The name of the topology."""
    live: bool
    """Whether a run answers, and not what it has left behind."""
    where: str
    """Who answers, for people: an address, or a folder."""

    async def get(self, path: str, **query: object) -> Any:
        """Return what the API answers to `path` below /api/v1, or from the root with a slash.

        A part of the query that is None is left out. Raises NotAnswered.
        """

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, token: str | None = None
    ) -> Any:
        """Have something done, with the token that the reader of the page gave."""

    async def close(self) -> None:
        """Give connections up."""


class LiveSource:
    """A run that is served, over its JSON API."""

    live = True

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.name = name
        self.where = self.url = url.rstrip("/")
        self._token = token
        # Proxies of the environment are for the world outside; drivers are not in it.
        self._client = httpx.AsyncClient(
            base_url=self.url,
            timeout=_TIMEOUT_S,
            trust_env=False,
            follow_redirects=False,
            transport=transport,
        )

    async def get(self, path: str, **query: object) -> Any:
        asked = {key: str(value) for key, value in query.items() if value is not None}
        return await self._ask("GET", path, self._token, params=asked)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, token: str | None = None
    ) -> Any:
        # Never with the token that pages read by: what is changed, its reader has to answer for.
        return await self._ask("POST", path, token, json=dict(body or {}), timeout=_DONE_S)

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, method: str, path: str, token: str | None, **how: Any) -> Any:
        full = path if path.startswith("/") else f"/api/v1/{path}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            answer = await self._client.request(
                method, quote(full, safe="/%:@"), headers=headers, **how
            )
        except httpx.TimeoutException as error:
            waited = how.get("timeout", _TIMEOUT_S)
            text = f"{self.url} has not answered within {waited:g} s"
            raise NotAnswered("unreachable", text) from error
        except httpx.HTTPError as error:
            text = masked(str(error)) or type(error).__name__
            raise NotAnswered("unreachable", f"{self.url} cannot be reached: {text}") from error
        return _content(answer)


def _content(answer: httpx.Response) -> Any:
    try:
        content = answer.json()
    except ValueError:
        content = answer.text[:_TEXT_MAX]
    if answer.is_success:
        return content
    raise NotAnswered(_why(answer.status_code), _said(content) or answer.reason_phrase)


def _why(status: int) -> Why:
    """Return what a status means for the reader.

    >>> [_why(status) for status in (401, 403, 404, 409, 500, 503)]
    ['refused', 'refused', 'absent', 'refused', 'failed', 'refused']
    """
    if status == 404:
        return "absent"
    return "refused" if status in (400, 401, 403, 409, 422, 429, 503) else "failed"


def _said(content: Any) -> str:
    """Return the text of an error, however deep the answer has it.

    >>> _said({"error": {"kind": "timeout", "message": "too late"}}), _said({"detail": "no"})
    ('too late', 'no')
    """
    while isinstance(content, Mapping):
        for key in ("error", "detail", "message", "text"):
            if content.get(key):
                content = content[key]
                break
        else:
            return ""
    return content[:_TEXT_MAX] if isinstance(content, str) else ""
