"""What stands before the application: the door, limits, time-outs, headers, and no surprises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waterspout._addresses import masked
from waterspout.serving._answers import HEADERS, Refusal
from waterspout.serving._door import Door
from waterspout.serving._limits import Limits

__all__ = ["Guard", "too_large_head"]

log = logging.getLogger(__name__)

_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_NOT_COUNTED = ("/health",)
# A body that is too large is read this far, so that its sender gets to the answer.
_DRAIN_TIMES = 8


class Guard:
    """An ASGI application around another one. It answers whatever happens."""

    def __init__(self, app: ASGIApp, door: Door, limits: Limits) -> None:
        self._app = app
        self._door = door
        self._limits = limits
        self._in_flight = 0
        self._has_threads = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return  # there is no websocket here, and nothing to start or stop
        if not self._has_threads:  # the number of threads is kept by the loop that runs by now
            self._has_threads = True
            to_thread.current_default_thread_limiter().total_tokens = self._limits.threads
        answering = _Answering(send)
        counted = scope["path"] not in _NOT_COUNTED
        self._in_flight += counted
        try:
            refusal = self._refusal(scope, counted)
            if refusal is None:
                body = await self._body(scope, receive)
                await self._app(scope, _Reread(body, receive), answering)
            else:
                await refusal.answer()(scope, receive, answering)
        except Refusal as refusal:
            await self._refuse(refusal, scope, receive, answering)
        except Exception as error:
            log.exception("%s %s failed", scope["method"], masked(scope["path"]))
            problem = Refusal(
                500,
                "internal",
                f"this is a bug ({type(error).__name__}); the log of the driver has the traceback",
            )
            await self._refuse(problem, scope, receive, answering)
        finally:
            self._in_flight -= counted

    async def _refuse(
        self, refusal: Refusal, scope: Scope, receive: Receive, answering: _Answering
    ) -> None:
        if not answering.has_begun:
            await refusal.answer()(scope, receive, answering)

    def _refusal(self, scope: Scope, counted: bool) -> Refusal | None:
        limits, headers = self._limits, scope["headers"]
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in headers)
        if size > limits.header_bytes:
            return too_large_head(limits)
        refusal = self._door.refusal(scope["method"], scope["path"], headers)
        if refusal is not None:
            return refusal
        if counted and self._in_flight > limits.in_flight:
            return Refusal(
                503,
                "busy",
                f"{limits.in_flight} requests are being answered; come again",
                {"retry-after": "1"},
            )
        return None

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the whole body: nothing behind this waits for a slow caller."""
        headers = dict(scope["headers"])
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            return b""
        most = self._limits.body_bytes
        declared = headers.get(b"content-length", b"0")
        too_large = Refusal(
            413, "too_large", f"a body has at most {most:,} bytes", {"connection": "close"}
        )
        if declared.isdigit() and int(declared[:20]) > most and b"expect" in headers:
            raise too_large
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self._limits.read_secs):
                while size <= most * _DRAIN_TIMES:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "disconnected", "the caller has gone")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size <= most:
                        chunks.append(chunk)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Refusal(
                408,
                "too_slow",
                f"the body was not there within {self._limits.read_secs:g} s",
                {"connection": "close"},
            ) from None
        if size > most:
            raise too_large
        return b"".join(chunks)


def too_large_head(limits: Limits) -> Refusal:
    """Return the refusal of a request whose head is too large."""
    return Refusal(
        431,
        "head_too_large",
        f"the request line and the headers have at most {limits.header_bytes:,} bytes",
        {"connection": "close"},
    )


class _Reread:
    """Gives a body that was read to the application; then tells it when the caller leaves."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        return message


class _Answering:
    """Sends an answer with the headers that all have."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            message = {**message, "headers": _with_headers(message.get("headers", ()))}
        await self._send(message)


def _with_headers(given: Any) -> list[tuple[bytes, bytes]]:
    headers: Mapping[bytes, bytes] = dict(_HEADERS)
    named = {name.lower() for name, _ in given}
    return [*given, *((name, value) for name, value in headers.items() if name not in named)]
