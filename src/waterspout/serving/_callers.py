"""Those who wait for an answer of a DRPC function, in the event loop of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from waterspout.drpc._calls import DrpcAnswer, DrpcError
from waterspout.drpc._service import DrpcService
from waterspout.drpc._wire import RETRY_AFTER_S, STATUS, STORM_KIND, body_of
from waterspout.serving._answers import Refusal

__all__ = ["Callers", "PlainCalls", "as_text"]

# A caller is watched for leaving only if it has to wait: most have their answer before.
_WATCH_AFTER_S = 0.1

_PATH = "/drpc/"


def as_text(body: bytes) -> str:
    """Return the argument of a call."""
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(400, "FAILED_REQUEST", f"the argument is not UTF-8: {error}") from None


class Callers:
    """Those who wait for an answer, in the event loop of the server."""

    def __init__(self, service: DrpcService, hide: Callable[[str], str]) -> None:
        self.service = service
        self._hide = hide
        self._waiting: dict[str, asyncio.Future[DrpcAnswer]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(
        self,
        receive: Receive,
        function: str,
        args: str,
        min_txid: int | None = None,
        timeout_s: float | None = None,
    ) -> Response:
        """Wait for an answer; one who goes away meanwhile frees its place."""
        loop = self._loop = asyncio.get_running_loop()
        asked = self.service.call(
            function, args, self._deliver, min_txid=min_txid, timeout_s=timeout_s
        )
        if isinstance(asked, DrpcError):
            raise self._refused(function, asked)
        future = self._waiting[asked] = loop.create_future()
        watching: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            _WATCH_AFTER_S, lambda: watching.append(loop.create_task(_watch(receive, future)))
        )
        try:
            answer = await future
        except asyncio.CancelledError:
            self.service.abandon(function, asked)
            if not future.cancelled():
                raise  # the server ends
            raise Refusal(400, "disconnected", "the caller has gone") from None
        finally:
            timer.cancel()
            del self._waiting[asked]
            for task in watching:
                task.cancel()
        return self._response(answer)

    def _deliver(self, answers: list[DrpcAnswer]) -> None:
        """Hand answers over to the loop, all at once. Called from any thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._hand_out, answers)
        except RuntimeError:
            return  # the server has ended, and nobody waits

    def _hand_out(self, answers: list[DrpcAnswer]) -> None:
        for answer in answers:
            future = self._waiting.get(answer.id)
            if future is not None and not future.done():
                future.set_result(answer)

    def _refused(self, function: str, error: DrpcError) -> Refusal:
        if not self.service.has(function):
            return Refusal(404, STORM_KIND[error.kind], error.message)
        return self._refusal(error, {"retry-after": str(RETRY_AFTER_S)})

    def _response(self, answer: DrpcAnswer) -> Response:
        body = body_of(answer) if answer.error is None else answer.error
        if isinstance(body, DrpcError):
            raise self._refusal(body)
        return Response(body, media_type="application/json")

    def _refusal(self, error: DrpcError, headers: dict[str, str] | None = None) -> Refusal:
        return Refusal(
            STATUS[error.kind],
            STORM_KIND[error.kind],
            self._hide(error.message),
            headers or {},
            {"operation": error.operation},
        )


class PlainCalls:
    """An ASGI application before another one: it takes `POST /drpc/{function}` without parameters.

    The other one takes these as well, and describes them. But routes and parameters cost more than
    all else of such a call, and most calls are of this kind.
    """

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a plain call; leave all others to the application."""
        path: str = scope["path"]
        function = path[len(_PATH) :] if path.startswith(_PATH) else ""
        if scope["method"] != "POST" or scope["query_string"] or not function or "/" in function:
            await self._app(scope, receive, send)
            return
        message = await receive()  # the guard has read the whole body
        answer = await self._callers.ask(receive, function, as_text(message.get("body", b"")))
        await answer(scope, receive, send)


async def _watch(receive: Receive, future: asyncio.Future[DrpcAnswer]) -> None:
    """Cancel a call whose caller has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    future.cancel()
