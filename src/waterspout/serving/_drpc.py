"""`/drpc`: the functions of a run, called from anywhere."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from waterspout._addresses import masked
from waterspout.drpc._attending import service_of
from waterspout.drpc._calls import DrpcAnswer, DrpcError
from waterspout.drpc._service import DrpcService
from waterspout.drpc._wire import RETRY_AFTER_S, STATUS, STORM_KIND, body_of
from waterspout.serving._answers import JSONAnswer, Refusal
from waterspout.serving._served import Served

__all__ = ["Callers", "drpc_router", "router"]

# A caller is watched for leaving only if it has to wait: most have their answer before.
_WATCH_AFTER_S = 0.1

MinTxid = Annotated[
    int | None, Query(ge=0, lt=1 << 62, description="Answer with this batch committed, or later.")
]
Timeout = Annotated[
    float | None,
    Query(gt=0, le=86_400, description="Seconds to wait at most; never more than the run allows."),
]


def router(served: Served) -> APIRouter:
    """Return what answers calls of the functions of a run."""
    return drpc_router(service_of(served.run, served.topology, served.config))


def drpc_router(service: DrpcService) -> APIRouter:
    """Return what answers calls of the functions of a service."""
    made = APIRouter(prefix="/drpc", tags=["drpc"])
    callers = Callers(service)

    @made.get("")
    async def functions() -> Response:
        """List the functions, and what has become of their requests."""
        return JSONAnswer({"functions": service.functions()})

    @made.post(
        "/{function}",
        openapi_extra={"requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def call(
        function: str, request: Request, min_txid: MinTxid = None, timeout: Timeout = None
    ) -> Response:
        """Call a function; the body is the argument, as text."""
        try:
            args = (await request.body()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refusal(400, "FAILED_REQUEST", f"the argument is not UTF-8: {error}") from None
        return await callers.ask(request, function, args, min_txid, timeout)

    @made.get("/{function}")
    async def call_with_query(
        function: str,
        request: Request,
        args: str = "",
        min_txid: MinTxid = None,
        timeout: Timeout = None,
    ) -> Response:
        """Call a function, as Storm's server takes it."""
        return await callers.ask(request, function, args, min_txid, timeout)

    @made.get("/{function}/{args:path}")
    async def call_with_path(
        function: str,
        args: str,
        request: Request,
        min_txid: MinTxid = None,
        timeout: Timeout = None,
    ) -> Response:
        """Call a function, as Storm's server takes it: the argument is the rest of the path."""
        return await callers.ask(request, function, args, min_txid, timeout)

    return made


class Callers:
    """Those who wait for an answer, in the event loop of the server."""

    def __init__(self, service: DrpcService) -> None:
        self._service = service
        self._waiting: dict[str, asyncio.Future[DrpcAnswer]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(
        self,
        request: Request,
        function: str,
        args: str,
        min_txid: int | None,
        timeout_s: float | None,
    ) -> Response:
        """Wait for an answer; one who goes away meanwhile frees its place."""
        loop = self._loop = asyncio.get_running_loop()
        asked = self._service.call(
            function, args, self._deliver, min_txid=min_txid, timeout_s=timeout_s
        )
        if isinstance(asked, DrpcError):
            raise self._refused(function, asked)
        future = self._waiting[asked] = loop.create_future()
        watching: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            _WATCH_AFTER_S, lambda: watching.append(loop.create_task(_watch(request, future)))
        )
        try:
            answer = await future
        except asyncio.CancelledError:
            self._service.abandon(function, asked)
            if not future.cancelled():
                raise  # the server ends
            raise Refusal(400, "disconnected", "the caller has gone") from None
        finally:
            timer.cancel()
            del self._waiting[asked]
            for task in watching:
                task.cancel()
        return _response(answer)

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
        if not self._service.has(function):
            return Refusal(404, STORM_KIND[error.kind], error.message)
        return _refusal(error, {"retry-after": str(RETRY_AFTER_S)})


async def _watch(request: Request, future: asyncio.Future[DrpcAnswer]) -> None:
    """Cancel a call whose caller has gone."""
    while not await request.is_disconnected():
        await asyncio.sleep(_WATCH_AFTER_S)
    future.cancel()


def _response(answer: DrpcAnswer) -> Response:
    if answer.error is not None:
        raise _refusal(answer.error)
    body = body_of(answer)
    if isinstance(body, DrpcError):
        raise _refusal(body)
    return Response(body, media_type="application/json")


def _refusal(error: DrpcError, headers: dict[str, str] | None = None) -> Refusal:
    return Refusal(
        STATUS[error.kind],
        STORM_KIND[error.kind],
        masked(error.message),
        headers or {},
        {"operation": error.operation},
    )
