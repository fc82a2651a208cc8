"""The first view of a topology: its graph with what flows, and the tables of spouts and bolts."""

from __future__ import annotations

from waterspout.ui._library import ui
from waterspout.ui._views import Page, Refresh, View

__all__ = ["OVERVIEW"]


def _build(page: Page) -> Refresh:
    summary = ui.label()

    async def refresh() -> None:
        summary.text = str(page.facts)

    return refresh


OVERVIEW = View("", "Topology", "hub", _build, has_windows=True)
