"""Pages without a browser: NiceGUI's own simulation of a reader, over answers that a test gives."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import httpx

from waterspout import Config
from waterspout.coordination.commands.outside import Sight
from waterspout.coordination.lease import Holder
from waterspout.transactional._ledger import Ledger
from waterspout.ui._directory import Directory
from waterspout.ui._pages import add_pages
from waterspout.ui._sources import LiveSource

URL = "http://127.0.0.1:4711"


class Api:
    """A driver's JSON API: answers by path, a status that stands for all of them, and a log."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, str, dict[str, str], str | None]] = []
        self.down: Exception | None = None

    def handle(self, request: httpx.Request) -> httpx.Response:
        if self.down is not None:
            raise self.down
        query = {key: values[0] for key, values in parse_qs(request.url.query.decode()).items()}
        path = request.url.path.removeprefix("/api/v1/")
        self.asked.append((request.method, path, query, request.headers.get("authorization")))
        if path not in self.answers:
            error = {"kind": "absent", "message": f"there is no {path} here"}
            return httpx.Response(404, json={"error": error})
        answer = self.answers[path]
        answer = answer(query) if callable(answer) else answer
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, content=json.dumps(answer))

    def source(self, name: str, url: str, token: str | None = None) -> LiveSource:
        return LiveSource(name, url, token, transport=httpx.MockTransport(self.handle))


def directory(api: Api, sights: Callable[[], list[Sight]] | None = None, **more: Any) -> Directory:
    look = sights or (lambda: [served("words")])
    return Directory(
        Config(home="/nowhere"),
        look=lambda conf: look(),
        live=api.source,
        clock=lambda: 0.0,
        **more,
    )


def served(name: str, url: str = URL, **snapshot: Any) -> Sight:
    told = {"status": "running", "timestamp": 100.0, "in_flight": [], "totals": {}, **snapshot}
    return Sight(
        name,
        Holder(1, None, "held"),
        {"epoch": 1, "started": 0.0, "server_url": url, "snapshot": told},
        Ledger(name, {}, "h"),
    )


def reading(act: Callable[..., Any], directory: Directory, *, narrow: bool = False) -> None:
    """Run `act(user)` as somebody who reads the pages of a directory."""
    from nicegui.testing.user_simulation import user_simulation

    async def simulated() -> None:
        async with user_simulation() as user:
            add_pages(directory, every_s=0.02)
            user.javascript_rules[re.compile(r"window\.innerWidth")] = lambda match: narrow
            await act(user)

    # The simulation forgets the modules that have pages, our whole package with them.
    ours = {name: module for name, module in sys.modules.items() if name.startswith("waterspout")}
    try:
        asyncio.run(simulated())
    finally:
        sys.modules.update(ours)
