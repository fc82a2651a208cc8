"""What can be asked about a run: questions that change nothing."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from fastapi import APIRouter

from waterspout.serving._answers import JSONAnswer
from waterspout.serving._describing import graph, kind_of, states
from waterspout.serving._served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """Return the questions about a run."""
    run, conf = served.run, served.config
    api = APIRouter()

    @api.get("/health", tags=["health"])
    async def health() -> JSONAnswer:
        """Say that the driver answers, and how its run stands."""
        return JSONAnswer({"status": run.status, "topology": run.name})

    @api.get("/api/v1/topology", tags=["topology"])
    def topology() -> JSONAnswer:
        """Return what runs here: its graph, its states and what they promise, its plan."""
        return JSONAnswer({**about, "status": run.status, **_now(), "explain": run.explain()})

    def _now() -> dict[str, Any]:
        return {"uptime_s": round(time.time() - served.started, 3)}

    @api.get("/api/v1/snapshot", tags=["run"])
    async def snapshot() -> JSONAnswer:
        """Return how the run stands now."""
        return JSONAnswer(run.snapshot())

    about = {
        "name": run.name,
        "kind": kind_of(served.topology),
        "driver": {"pid": os.getpid(), "host": socket.gethostname()},
        "version": _version(),
        "graph": graph(served.described, conf),
        "states": states(served.described),
    }
    return api


def _version() -> str:
    from importlib.metadata import version

    return version("waterspout")
