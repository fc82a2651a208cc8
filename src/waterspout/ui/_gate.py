"""What stands before the page: the door of the server, a way in with a token, strict headers.

NiceGUI needs two things of a content security policy that one would rather not give: 'unsafe-eval',
because it compiles templates and handlers in the browser, and 'unsafe-inline' for styles. Scripts
in the page need no such thing: each gets a word (a nonce) that is new with every answer. Nothing is
loaded from elsewhere, and nobody may put the page into a frame.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from html import escape
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waterspout.serving._door import Door

__all__ = ["Gate", "Nonces", "policy"]

Headers = Sequence[tuple[bytes, bytes]]

_COOKIE = "waterspout_page"
_LOGIN = "/login"
_FORM_MAX = 4_096
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    # With no-referrer a browser sends our own form with "Origin: null", which the door refuses.
    b"referrer-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}


def policy(nonce: str) -> str:
    """Return the content security policy of a page whose scripts have this nonce."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'nonce-{nonce}' 'unsafe-eval'",
            "style-src 'self' 'unsafe-inline'",
            "font-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


class Gate:
    """An ASGI application around the page; requests and websockets go through the same door."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app = app
        self._door = door
        self._pass = "" if door.token is None else _pass(door.token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say why not."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = self._door.refusal(
            scope.get("method", "GET"), scope["path"], self._with_token(scope["headers"])
        )
        if refusal is None and (scope["type"] == "websocket" or scope["path"] != _LOGIN):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif refusal is None:
            await RedirectResponse("/", 303)(scope, receive, send)
        elif refusal.status == 401:
            await (await self._login(scope, receive))(scope, receive, send)
        else:
            await refusal.answer()(scope, receive, send)

    def _with_token(self, headers: Headers) -> Headers:
        """Return the headers as the door reads them: who has our cookie has shown the token."""
        if self._door.token is None or not self._has_pass(headers):
            return headers
        return [*headers, (b"authorization", b"Bearer " + self._door.token.encode())]

    def _has_pass(self, headers: Headers) -> bool:
        for name, value in headers:
            if name == b"cookie":
                try:
                    found = SimpleCookie(value.decode("latin-1")).get(_COOKIE)
                except CookieError:
                    continue
                if found is not None and hmac.compare_digest(
                    found.value.encode(), self._pass.encode()
                ):
                    return True
        return False

    async def _login(self, scope: Scope, receive: Receive) -> Response:
        if scope["path"] != _LOGIN:
            wants_page = scope["method"] == "GET" and not scope["path"].startswith("/_nicegui")
            return RedirectResponse(_LOGIN, 303) if wants_page else HTMLResponse("", 401)
        if scope["method"] != "POST":
            return _form("")
        token = parse_qs((await _body(receive)).decode("latin-1")).get("token", [""])[0]
        assert self._door.token is not None
        if not hmac.compare_digest(token.strip().encode(), self._door.token.encode()):
            return _form("That is not the token that this page was started with.")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(_COOKIE, self._pass, httponly=True, samesite="strict", path="/")
        return answer


class Nonces:
    """Gives every answer its headers, and the scripts of a page the word that the policy asks."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with strict headers."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(16)
        begun: list[Message] = []
        parts: list[bytes] = []

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append({**message, "headers": _headers(message["headers"], nonce)})
                if not _is_page(message["headers"]):
                    await send(begun[0])
            elif not _is_page(begun[0]["headers"]):
                await send(message)
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    await self._send_page(begun[0], b"".join(parts), nonce, send)

        await self.app(scope, receive, answer)

    async def _send_page(self, start: Message, body: bytes, nonce: str, send: Send) -> None:
        body = body.replace(b"<script", f'<script nonce="{nonce}"'.encode())
        headers = [(k, v) for k, v in start["headers"] if k != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _headers(given: Headers, nonce: str) -> list[tuple[bytes, bytes]]:
    ours = {**_HEADERS, b"content-security-policy": policy(nonce).encode()}
    if _is_page(given):
        ours[b"cache-control"] = b"no-store"
    kept = [(name.lower(), value) for name, value in given if name.lower() not in ours]
    return [*kept, *ours.items()]


def _is_page(headers: Headers) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/html")
        for name, value in headers
    )


def _pass(token: str) -> str:
    """Return what the browser keeps in place of the token."""
    return hmac.new(token.encode(), b"waterspout page", "sha256").hexdigest()


async def _body(receive: Receive) -> bytes:
    body = b""
    while len(body) <= _FORM_MAX:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    return body[:_FORM_MAX]


def _form(problem: str) -> Response:
    said = f"<p role=alert>{escape(problem)}</p>" if problem else ""
    return HTMLResponse(
        "<!doctype html><html lang=en><title>waterspout</title>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<meta name=color-scheme content='light dark'>"
        "<style>body{font:16px sans-serif;max-width:24em;margin:15vh auto;padding:1em}"
        "input,button{font:inherit;padding:.5em;width:100%;box-sizing:border-box;margin:.3em 0}"
        f"</style><h1>waterspout</h1>{said}<form method=post action=/login>"
        "<label>The token that this page was started with"
        "<input type=password name=token required autofocus autocomplete=current-password></label>"
        "<button>Open</button></form></html>",
        401 if problem else 200,
    )
