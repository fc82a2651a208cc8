"""The application: routers of a served run behind a guard.

To mount another router, write a function `router(served) -> APIRouter` in this package and name it
in `ROUTERS`. It raises `Refusal` for what it does not do, and returns `JSONAnswer`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from waterspout._addresses import masked
from waterspout.errors import BuildError, CommandError, OutsideError, WaterspoutError
from waterspout.serving import _actions, _drpc, _questions
from waterspout.serving._answers import JSONAnswer, Refusal
from waterspout.serving._callers import PlainCalls
from waterspout.serving._documentation import documentation
from waterspout.serving._door import Door
from waterspout.serving._guard import Guard
from waterspout.serving._limits import Limits
from waterspout.serving._served import Served

__all__ = ["ROUTERS", "application", "refusal_of"]

ROUTERS: tuple[Callable[[Served], APIRouter], ...] = (
    _questions.health,
    _questions.metrics,
    _questions.api,
    _actions.router,
    _drpc.router,
)
"""Makes what is served of a run."""

_KINDS = {404: "not_found", 405: "method_not_allowed"}


def application(served: Served, door: Door, limits: Limits) -> ASGIApp:
    """Return the ASGI application that serves a run."""
    app = FastAPI(
        title=f"waterspout: {served.run.name}",
        version=version("waterspout"),
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        default_response_class=JSONAnswer,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        app.include_router(router(served))
    app.include_router(documentation(app.openapi))
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(WaterspoutError, _our_error)
    app.add_exception_handler(Refusal, _refused)
    return Guard(PlainCalls(app, served.callers), door, limits)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _KINDS.get(error.status_code, "http")
    return Refusal(error.status_code, kind, str(error.detail), error.headers or {}).answer()


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(
        f"{' '.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in error.errors()
    )
    return Refusal(422, "invalid", said).answer()


async def _our_error(request: Request, error: Exception) -> Response:
    return refusal_of(error).answer()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.answer()


def refusal_of(error: Exception) -> Refusal:
    """Return what an error of ours is to a caller."""
    text = masked(str(error))
    if isinstance(error, BuildError):
        return Refusal(400, "refused", text)
    if isinstance(error, OutsideError) and not isinstance(error, CommandError):
        return Refusal(503, "unavailable", text, {"retry-after": "1"})
    return Refusal(409, "refused", text)
