"""What can be asked about a run: questions that change nothing."""

from __future__ import annotations

import os
import socket
import time
from importlib.metadata import version
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from waterspout.coordination.kept_letters import listing
from waterspout.coordination.state_lookup import StateLookup
from waterspout.metrics._prometheus import Exposition
from waterspout.serving._answers import ERRORS, JSONAnswer, Refusal
from waterspout.serving._describing import graph, kind_of, states
from waterspout.serving._served import Served
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident.plan.plan import Plan

__all__ = ["api", "health", "metrics"]

WindowName = Literal["600", "10800", "86400", "all"]
Most = Annotated[int, Query(ge=1, le=1_000)]
Key = Annotated[
    str | None, Query(max_length=8_000, description="A JSON list of the values of its fields.")
]


def health(served: Served) -> APIRouter:
    """Return the question whether the driver answers; no token is asked for."""
    router = APIRouter(tags=["health"])

    @router.get("/health", responses={403: ERRORS[403]})
    async def health() -> JSONAnswer:
        """Say that the driver answers, and how its run stands."""
        return JSONAnswer({"status": served.run.status, "topology": served.run.name})

    return router


def metrics(served: Served) -> APIRouter:
    """Return the metrics of a run, counted from now on."""
    router, exposition = APIRouter(tags=["metrics"]), Exposition([served.run])

    @router.get("/metrics", responses=ERRORS, response_class=Response)
    def metrics() -> Response:
        """Return the metrics of the run in the text format of Prometheus."""
        return Response(exposition.text(), media_type=exposition.content_type)

    return router


def api(served: Served) -> APIRouter:
    """Return the questions about a run."""
    router = APIRouter(prefix="/api/v1", responses=ERRORS)
    _about_the_run(router, served)
    _about_time(router, served)
    _about_states(router, served)
    return router


def _about_the_run(router: APIRouter, served: Served) -> None:
    run, conf = served.run, served.config
    about = {
        "name": run.name,
        "kind": kind_of(served.topology),
        "driver": {"pid": os.getpid(), "host": socket.gethostname()},
        "version": version("waterspout"),
        "graph": graph(served.described, conf),
        "states": states(served.described),
    }

    @router.get("/topology", tags=["topology"])
    def topology() -> JSONAnswer:
        """Return what runs here: its graph, its states and what they promise, its plan."""
        up = round(time.time() - served.started, 3)
        now = {"status": run.status, "uptime_s": up, "explain": run.explain()}
        return served.answer({**about, **now})

    @router.get("/snapshot", tags=["run"])
    async def snapshot() -> JSONAnswer:
        """Return how the run stands now: in flight, totals, newest progress, lag, errors."""
        return served.answer(run.snapshot())

    @router.get("/progress", tags=["run"])
    async def progress(limit: Most = 100) -> JSONAnswer:
        """Return the newest progress of batches or waves, oldest first."""
        return served.answer(run.recent_progress[-limit:])

    @router.get("/errors", tags=["run"])
    async def errors() -> JSONAnswer:
        """Return the latest errors of components and batches, oldest first, with their counts."""
        return served.answer(run.errors)

    @router.get("/config", tags=["topology"])
    async def config() -> JSONAnswer:
        """Return the options of the run under their dotted keys; secrets are ***."""
        options = conf.masked()
        if served.token is not None:
            options["waterspout.serve.token"] = "***"
        return served.answer(options)

    @router.get("/log", tags=["run"])
    async def log(lines: Annotated[int, Query(ge=1, le=2_000)] = 200) -> JSONAnswer:
        """Return the latest lines that the library has logged in the driver, oldest first."""
        return served.answer({"lines": served.log.newest(lines)})


def _about_time(router: APIRouter, served: Served) -> None:
    stats = served.stats  # it counts from here on

    @router.get("/stats", tags=["statistics"])
    def statistics(window: WindowName = "all") -> JSONAnswer:
        """Return the tables of spouts, bolts, states and edges for a window, and the totals."""
        span = _span(window)
        tables: dict[str, Any] = stats.components(span)
        return served.answer({**tables, "totals": stats.totals(span)})

    @router.get("/batches", tags=["statistics"])
    def batches(limit: Most = 100) -> JSONAnswer:
        """Return the newest attempts at batches, oldest first, and what each state did."""
        return served.answer(stats.batches(limit))

    @router.get("/pressure", tags=["statistics"])
    def pressure(window: WindowName = "600") -> JSONAnswer:
        """Return sizes, durations and what waits, over time."""
        return served.answer(stats.pressure(_span(window)))


def _about_states(router: APIRouter, served: Served) -> None:
    run, conf, described = served.run, served.config, served.described
    lookup = StateLookup(run.name, {}, {})
    if isinstance(described, Plan | TransactionalTopology):
        lookup = StateLookup.of(described)

    def known(name: str) -> str:
        if name in lookup.specs:
            return name
        there = f"it has {', '.join(lookup.specs)}" if lookup.specs else "it has no states"
        raise Refusal(404, "unknown_state", f"there is no state {name[:200]!r}; {there}")

    @router.get("/states/{name}/value", tags=["states"])
    def value(name: str, key: Key = None) -> JSONAnswer:
        """Return the committed value of a key of a state."""
        wanted = lookup.key(known(name), key)
        found = lookup.value(name, wanted, conf)
        named = {"topology": run.name, "state": name, "key": wanted}
        return JSONAnswer({**named, "found": found is not None, "value": found})

    @router.get("/states/{name}/explain", tags=["states"])
    def explain(name: str, key: Key = None) -> JSONAnswer:
        """Return what a key holds, which batch and attempt wrote it, and what from."""
        return JSONAnswer(lookup.explained(known(name), lookup.key(name, key), conf, run.store))

    @router.get("/dead-letters", tags=["dead letters"])
    def dead_letters(component: str | None = None, limit: Most = 100) -> JSONAnswer:
        """Return what could not be processed and is kept, the newest first."""
        found = listing(run.dead_letters(), component, limit)
        for letter in found["letters"]:
            letter |= {k: served.hide(letter[k]) for k in ("error", "trace") if k in letter}
        return JSONAnswer(found)


def _span(window: WindowName) -> int | Literal["all"]:
    return "all" if window == "all" else int(window)
