"""`/drpc`: the functions of a run, called from anywhere."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from waterspout.serving._answers import JSONAnswer
from waterspout.serving._callers import as_text
from waterspout.serving._served import Served

__all__ = ["router"]

MinTxid = Annotated[
    int | None, Query(ge=0, lt=1 << 62, description="Answer with this batch committed, or later.")
]
Timeout = Annotated[
    float | None,
    Query(gt=0, le=86_400, description="Seconds to wait at most; never more than the run allows."),
]


def router(served: Served) -> APIRouter:
    """Return what answers calls of the functions of a run."""
    made = APIRouter(prefix="/drpc", tags=["drpc"])
    callers = served.callers

    @made.get("")
    async def functions() -> Response:
        """List the functions, and what has become of their requests."""
        return JSONAnswer({"functions": callers.service.functions()})

    @made.post(
        "/{function}",
        openapi_extra={"requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def call(
        function: str, request: Request, min_txid: MinTxid = None, timeout: Timeout = None
    ) -> Response:
        """Call a function; the body is the argument, as text."""
        args = as_text(await request.body())
        return await callers.ask(request.receive, function, args, min_txid, timeout)

    @made.get("/{function}")
    async def call_with_query(
        function: str,
        request: Request,
        args: str = "",
        min_txid: MinTxid = None,
        timeout: Timeout = None,
    ) -> Response:
        """Call a function, as Storm's server takes it."""
        return await callers.ask(request.receive, function, args, min_txid, timeout)

    @made.get("/{function}/{args:path}")
    async def call_with_path(
        function: str,
        args: str,
        request: Request,
        min_txid: MinTxid = None,
        timeout: Timeout = None,
    ) -> Response:
        """Call a function, as Storm's server takes it: the argument is the rest of the path."""
        return await callers.ask(request.receive, function, args, min_txid, timeout)

    return made
