"""A page, a browser and runs that are served: what tests of the browser share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.ui.browsing import PHONE, TOKEN, Reader
from waterspout import Run

PICTURES = os.environ.get("WATERSPOUT_SCREENSHOTS")
VIEWS = {
    "": "Graph", "batches": "Commit matrix", "pressure": "Durations", "states": "Look a key up",
    "dead-letters": "Asked for", "errors": "Errors", "drpc": "No function", "control": "Roll back",
    "config": "Configuration", "log": "The end of the driver",
}  # fmt: skip
OF_CORE = [view for view in VIEWS if view not in ("batches", "states")]


@dataclass
class Shown:
    """Runs that have done what there was to do, the page that shows them, and a browser."""

    runs: dict[str, Run]
    url: str
    browser: Any

    def api(self, topology: str, path: str, **query: object) -> Any:
        url = f"{str(self.runs[topology].server_url).rstrip('/')}/api/v1/{path}"
        answer = httpx.get(url, params=query, timeout=30, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def reader(self, **how: Any) -> Reader:
        return Reader(self.browser, self.url, **how)

    def look_through(self, topology: str, views: list[str]) -> None:
        """Open every view, on a desk and on a phone; nothing is too wide, nothing complains."""
        wide, phone = self.reader(), self.reader(size=PHONE)
        for view in views:
            path = f"/t/{topology}/{view}".rstrip("/")
            wide.open(path, VIEWS[view])
            if not view:  # drawn by the browser, after all else
                wide.page.locator("svg .node").first.wait_for()
            keep(wide, f"page-{topology}-{view or 'topology'}")
            phone.open(path, VIEWS[view])
            assert phone.overflow() <= 0, f"{path} is wider than a phone"
        for reader in (wide, phone):
            assert reader.complaints == []
            assert TOKEN not in reader.page.content()


def keep(reader: Reader, name: str) -> None:
    """Keep a picture, if pictures are wanted; once charts are drawn."""
    if PICTURES:
        folder = Path(PICTURES)
        folder.mkdir(parents=True, exist_ok=True)
        reader.page.wait_for_timeout(1500)
        reader.page.screenshot(path=folder / f"{name}.png", full_page=True)


def cells(reader: Reader, title: str) -> list[list[str]]:
    """Return the texts of the table that has a title, row by row."""
    card = reader.page.locator(".q-table__container", has_text=title).filter(visible=True).first
    rows = card.locator("tbody tr")
    return [[c.strip() for c in row.locator("td").all_inner_texts()] for row in rows.all()]
