"""The first view of a topology: its graph with what flows, and the tables of spouts and bolts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from waterspout.coordination.commands.sights import span
from waterspout.ui import _tables as tables
from waterspout.ui._graph import BUSY, FULL, LOOK, diagram
from waterspout.ui._library import events, ui
from waterspout.ui._sources import NotAnswered
from waterspout.ui._views import WINDOWS, Page, Refresh, View
from waterspout.ui._words import number

__all__ = ["OVERVIEW", "in_order", "trident_spouts"]

_ALL_WINDOWS_EVERY = 5
_NARROW_PX = 700


class _Overview:
    def __init__(self, page: Page) -> None:
        self._page = page
        self._ids: list[str] = []
        self._turns = 0
        self._down: bool | None = None
        self._totals: dict[str, Mapping[str, Any]] = {}
        self._facts = ui.row().classes("w-full gap-x-8 gap-y-2 items-start").mark("facts")
        self._uncounted = ui.label().classes("opacity-80").mark("uncounted")
        with ui.card().props("flat bordered").classes("w-full p-3 gap-2") as self._drawing:
            with ui.row().classes("w-full items-center gap-3"):
                ui.label("Graph").classes("text-base font-medium")
                ui.space()
                with ui.row().classes("items-center gap-3") as self._legend:
                    _legend()
            with ui.element("div").classes("w-full overflow-x-auto"):
                self._graph = ui.mermaid("flowchart LR", dict(LOOK), on_node_click=self._clicked)
                self._graph.classes("min-w-max flex justify-center").mark("graph")
        self._windows = tables.table(tables.TOTALS, "Topology stats", key="window_name")
        self._batches = tables.table(tables.BATCH_TOTALS, "Topology stats", key="window_name")
        self._spouts = tables.table(tables.SPOUTS, "Spouts").mark("spouts")
        self._sources = tables.table(tables.TRIDENT_SPOUTS, "Spouts").mark("trident-spouts")
        self._bolts = tables.table(tables.BOLTS, "Bolts").mark("bolts")
        self._states = tables.table(tables.STATES, "States").mark("states")
        with ui.expansion("Plan: what explain() says", icon="description").classes(
            "w-full"
        ) as self._plan:
            self._explain = ui.label().classes(
                "font-mono text-xs whitespace-pre overflow-x-auto w-full"
            )

    async def refresh(self) -> None:
        facts = self._page.facts
        self._show_facts(facts)
        stats = await self._counted()
        is_trident = facts.get("kind") == "trident"
        if is_trident:
            stats = {**stats, "spouts": trident_spouts(stats)}
        if self._down is None:
            self._down = await _is_narrow()
        text, self._ids = diagram(facts.get("graph") or {}, stats, down=self._down)
        self._drawing.set_visibility(bool(self._ids))
        self._legend.set_visibility("capacity" in text)
        self._graph.content = text
        in_batches = facts.get("kind") in ("trident", "transactional")
        rows = [
            {**self._totals[key], "window_name": label}
            for key, label in WINDOWS.items()
            if key in self._totals
        ]
        _fill(self._windows, [] if in_batches else rows)
        _fill(self._batches, rows if in_batches else [])
        spouts, bolts = stats.get("spouts") or (), stats.get("bolts") or ()
        _fill(self._spouts, [] if is_trident else self._linked(spouts))
        _fill(self._sources, self._linked(spouts) if is_trident else [])
        _fill(self._bolts, self._linked(bolts))
        _fill(self._states, _states(facts.get("states") or (), stats.get("states") or ()))
        self._explain.text = str(facts.get("explain") or "")
        self._plan.set_visibility(bool(self._explain.text))

    async def _counted(self) -> Mapping[str, Any]:
        try:
            stats: Mapping[str, Any] = await self._page.source.get(
                "stats", window=self._page.window
            )
        except NotAnswered as error:
            if error.why != "absent":
                raise
            self._uncounted.set_visibility(True)
            self._uncounted.text = f"Nothing is counted here: {error}."
            return {}
        self._uncounted.set_visibility(False)
        await self._count_windows()
        return stats

    def _linked(self, rows: Any) -> list[dict[str, Any]]:
        ordered = in_order(rows, (self._page.facts.get("graph") or {}).get("nodes") or ())
        return tables.rows_with(
            ordered, link=lambda row: self._page.link("component", id=row["id"])
        )

    async def _count_windows(self) -> None:
        """Now and then take the totals of all windows in, together: they are compared."""
        if self._turns % _ALL_WINDOWS_EVERY == 0:
            source = self._page.source
            found = await asyncio.gather(*(source.get("stats", window=key) for key in WINDOWS))
            self._totals = {
                key: answer.get("totals") or {} for key, answer in zip(WINDOWS, found, strict=True)
            }
        self._turns += 1

    def _show_facts(self, facts: Mapping[str, Any]) -> None:
        driver = facts.get("driver")
        if isinstance(driver, Mapping):
            driver = f"process {driver.get('pid')} on {driver.get('host')}"
        uptime = facts.get("uptime_s")
        shown = {
            "Name": facts.get("name"),
            "Kind": facts.get("kind"),
            "Status": facts.get("status"),
            "Uptime": span(uptime) if isinstance(uptime, int | float) else None,
            "Driver": driver,
            "Tasks": _tasks(facts),
            "Version": facts.get("version"),
        }
        self._facts.clear()
        with self._facts:
            for label, value in shown.items():
                if value not in (None, ""):
                    with ui.column().classes("gap-0"):
                        ui.label(label).classes("text-xs opacity-70")
                        ui.label(str(value)).classes("font-medium break-all")

    def _clicked(self, event: events.MermaidNodeClickEventArguments) -> None:
        position = event.node_id.rpartition("n")[2].partition("-")[0]
        if position.isdecimal() and int(position) < len(self._ids):
            ui.navigate.to(self._page.link("component", id=self._ids[int(position)]))


async def _is_narrow() -> bool:
    """Ask the browser whether the page is as narrow as a phone."""
    try:
        return bool(await ui.run_javascript(f"window.innerWidth < {_NARROW_PX}", timeout=2.0))
    except TimeoutError:
        return False


def _fill(table: ui.table, rows: list[dict[str, Any]]) -> None:
    table.rows = rows
    table.set_visibility(bool(rows))


def trident_spouts(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the spouts with the rows that they gave, where that is known.

    What one of several gave, nobody counts; what the only one gave is what the topology has read.

    >>> given = {"totals": {"input_rows": 30}, "covers_s": 10.0}
    >>> one, other = {"id": "a", "rows": None, "per_s": 0.0}, {"id": "b", "rows": None, "per_s": 0}
    >>> [(row["rows"], row["per_s"]) for row in trident_spouts({**given, "spouts": [one]})]
    [(30, 3.0)]
    >>> [(row["rows"], row["per_s"]) for row in trident_spouts({**given, "spouts": [one, other]})]
    [(None, None), (None, None)]
    """
    spouts = [dict(row) for row in stats.get("spouts") or ()]
    rows = (stats.get("totals") or {}).get("input_rows") if len(spouts) == 1 else None
    for spout in spouts:
        if spout.get("rows") is None:
            covers_s = stats.get("covers_s")
            spout["rows"] = rows
            spout["per_s"] = None if rows is None or not covers_s else rows / covers_s
    return spouts


def in_order(rows: Any, nodes: Any) -> list[dict[str, Any]]:
    """Return rows as the graph has them, those of the system last; with the tasks of the graph.

    >>> nodes = [{"id": "b", "parallelism": 2}, {"id": "a", "parallelism": 1}]
    >>> rows = [{"id": "__acker"}, {"id": "a", "tasks": None}, {"id": "b", "tasks": None}]
    >>> [(row["id"], row.get("tasks")) for row in in_order(rows, nodes)]
    [('b', 2), ('a', 1), ('__acker', None)]
    """
    names = [(node, name) for node in nodes for name in (node["id"], node.get("label"))]
    places = {name: place for place, (_, name) in enumerate(names)}
    tasks = {name: node.get("parallelism") for node, name in names}
    found = [
        {**row, "tasks": tasks[row["id"]]}
        if row.get("tasks") is None and row["id"] in tasks
        else row
        for row in rows
    ]
    return sorted(found, key=lambda row: (row["id"].startswith("__"), places.get(row["id"], 0)))


def _states(known: Any, counted: Any) -> list[dict[str, Any]]:
    """Return the states that a topology has, each with what was counted of it."""
    by_name = {row["id"]: row for row in counted}
    named = {state["name"]: {**state, "id": state["name"]} for state in known}
    return tables.rows_with(
        {**named.get(name, {}), **by_name.get(name, {}), "id": name}
        for name in dict.fromkeys([*named, *by_name])
    )


def _tasks(facts: Mapping[str, Any]) -> str | None:
    nodes = (facts.get("graph") or {}).get("nodes") or ()
    counts = [n["parallelism"] for n in nodes if isinstance(n.get("parallelism"), int)]
    return number(sum(counts)) if counts and facts.get("kind") != "trident" else None


def _legend() -> None:
    for colour, text in (
        ("#1f7a4d", f"capacity below {BUSY:g}"),
        ("#b26a00", f"{BUSY:g} to {FULL:g}"),
        ("#b3261e", f"{FULL:g} and more: a bottleneck"),
    ):
        with ui.row().classes("items-center gap-1 no-wrap"):
            ui.icon("circle", size="10px").style(f"color: {colour}")
            ui.label(text).classes("text-xs opacity-80")


def _build(page: Page) -> Refresh:
    view = _Overview(page)
    return view.refresh


OVERVIEW = View("", "Topology", "hub", _build, has_windows=True)
