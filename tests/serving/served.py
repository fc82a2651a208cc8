"""A run in this process, without Spark, and its server on a free port of loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.coordination.commanded import embedded, running, words
from waterspout import Config, Run
from waterspout.serving import RunServer, bound
from waterspout.serving._limits import Limits

TOKEN = "correct-horse-battery-staple"


@contextmanager
def serving(
    place: Path,
    *,
    limits: Limits | None = None,
    token: str | None = TOKEN,
    files: int = 3,
    **options,
) -> Iterator[tuple[Run, httpx.Client]]:
    """Serve a word count; the client knows no token."""
    conf = Config(
        idle_poll_millis=1,
        home=str(place / "home"),
        serve="127.0.0.1:0",
        serve_token=token,
        **options,
    )
    topology, server = words(place, files), bound(conf, limits)
    with running(topology, embedded(place), conf.replace(serve_token=None)) as (run, _):
        server.start(run, topology)
        with httpx.Client(base_url=server.url, timeout=10, trust_env=False) as client:
            yield run, client


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


__all__ = ["TOKEN", "RunServer", "bearer", "serving"]
