"""Pressure: how large batches are and how long they take, what is in flight, and what waits."""

from __future__ import annotations

from typing import Any

from waterspout.ui._frame import empty
from waterspout.ui._library import ui
from waterspout.ui._series import (
    durations_chart,
    lag_charts,
    pending_chart,
    sizes_chart,
    targets_charts,
)
from waterspout.ui._views import Page, Refresh, View
from waterspout.ui._words import number

__all__ = ["PRESSURE", "lag_lines"]

_CHART = "w-full h-64"


def lag_lines(lag: Any) -> list[str]:
    """Return what waits at each spout, in words.

    >>> lag_lines({"in": {"files": 3, "bytes": 1200}, "other": {}})
    ['in: 3 files, 1,200 bytes', 'other: nothing is told']
    """
    return [
        f"{spout}: {', '.join(f'{number(n)} {unit}' for unit, n in counts.items())}"
        if counts
        else f"{spout}: nothing is told"
        for spout, counts in (lag or {}).items()
    ]


def _build(page: Page) -> Refresh:
    with ui.column().classes("w-full") as nothing:
        empty(
            "speed",
            "Nothing has run yet",
            "Sizes, durations, what is in flight and what waits at each spout are drawn here as "
            "soon as something was committed or acked.",
        )
    with ui.column().classes("w-full gap-4") as all_of_it:
        reason = ui.label().classes("text-base break-words").mark("reason")
        with ui.row().classes("w-full gap-x-6 gap-y-1"):
            pending = ui.label().mark("pending")
            waiting = ui.column().classes("gap-0").mark("waiting")
        with ui.grid().classes("w-full grid-cols-1 lg:grid-cols-2 gap-4"):
            sizes = _titled("Sizes of batches or waves", "sizes")
            flight = _titled("In flight; coloured where spouts had to wait", "flight")
            durations = _titled("Durations", "durations")
            with ui.column().classes("w-full gap-4") as lags:
                pass
    drawn: dict[str, ui.echart] = {}

    def draw_more(charts: dict[str, dict[str, Any]]) -> None:
        """Draw what there is one of for each spout or unit, by title."""
        if set(charts) != set(drawn):
            lags.clear()
            drawn.clear()
            with lags:
                for title in charts:
                    drawn[title] = _titled(title, title.lower().replace(" ", "-"))
        for title, options in charts.items():
            _draw(drawn[title], options)

    async def refresh() -> None:
        told = await page.source.get("pressure", window=page.window)
        points, now = told["points"], told["now"]
        nothing.set_visibility(not points)
        all_of_it.set_visibility(bool(points))
        if not points:
            return
        reason.text = told.get("reason") or ""
        reason.set_visibility(bool(reason.text))
        pending.text = f"in flight: {number(now.get('pending'))}"
        waiting.clear()
        with waiting:
            for line in lag_lines(now.get("lag")):
                ui.label(f"waits at {line}")
        _draw(sizes, sizes_chart(points))
        _draw(flight, pending_chart(points, told["step_s"]))
        _draw(durations, durations_chart(points))
        sized = {f"Size of {spout}": c for spout, c in targets_charts(points).items()}
        waits = {f"Lag of each spout: {unit}": c for unit, c in lag_charts(points).items()}
        draw_more({**sized, **waits})

    return refresh


def _titled(title: str, mark: str) -> ui.echart:
    with ui.column().classes("w-full gap-0 min-w-0"):
        ui.label(title).classes("text-sm font-medium")
        return ui.echart({}).classes(_CHART).mark(mark)


def _draw(chart: ui.echart, options: dict[str, Any]) -> None:
    if chart.options != options:
        chart.options.clear()
        chart.options.update(options)
        chart.update()


PRESSURE = View("pressure", "Pressure", "speed", _build, has_windows=True)
