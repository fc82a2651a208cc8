"""All that is known of one component: what came in, what went out, its tasks, its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from waterspout.ui import _tables as tables
from waterspout.ui._errors_view import ERRORS_COLUMNS, error_rows
from waterspout.ui._library import ui
from waterspout.ui._overview import in_order
from waterspout.ui._sources import NotAnswered
from waterspout.ui._views import WINDOWS, Page, Refresh, View

__all__ = ["COMPONENT"]

_UNCOUNTED = "Spark runs it together with its neighbours: nothing is counted of it alone."
_WINDOW = tables.Column("window_name", "Window", "", None)


class _Component:
    def __init__(self, page: Page) -> None:
        self._page = page
        self._id = page.query.get("id", "")
        with ui.row().classes("w-full items-baseline gap-x-6 gap-y-1"):
            self._title = ui.label(self._id).classes("text-2xl font-medium break-all")
            self._kind = ui.label().classes("opacity-80")
            ui.space()
            ui.link("all components", page.link("")).classes("text-sm")
        self._notes = ui.label().classes("opacity-80 whitespace-pre-line")
        self._of_spout = tables.table(
            (_WINDOW, *tables.SPOUTS[1:8]), "Spout stats", key=_WINDOW.key
        )
        self._of_bolt = tables.table((_WINDOW, *tables.BOLTS[1:10]), "Bolt stats", key=_WINDOW.key)
        self._of_state = tables.table((_WINDOW, *tables.STATES[4:]), "State stats", key=_WINDOW.key)
        self._inputs = tables.table(tables.INPUTS, "Input stats", key="key")
        self._outputs = tables.table(tables.OUTPUTS, "Output stats", key="stream")
        self._by_task = tables.table(tables.BY_TASK, "Tasks", key="task")
        self._errors = tables.table(ERRORS_COLUMNS, "Errors", key="number")

    async def refresh(self) -> None:
        page = self._page
        node = self._node()
        answers = dict(
            zip(
                WINDOWS,
                await asyncio.gather(*(page.source.get("stats", window=key) for key in WINDOWS)),
                strict=True,
            )
        )
        found = {key: _row(answer, self._id, node) for key, answer in answers.items()}
        kind, now = found[page.window]
        if not node and not now:
            raise NotAnswered("absent", f"{page.name} has no component {self._id!r}")
        self._title.text = str(node.get("label") or self._id)
        self._kind.text = _kind(node, kind)
        self._notes.text = "\n".join([*(node.get("notes") or ()), *([] if now else [_UNCOUNTED])])
        self._notes.set_visibility(bool(self._notes.text))
        rows = [
            {**row, "window_name": WINDOWS[key]}
            for key, (_, counted) in found.items()
            for row in in_order([counted] if counted else [], [node] if node else [])
        ]
        for table, of in ((self._of_spout, "spouts"), (self._of_bolt, "bolts"),
                          (self._of_state, "states")):  # fmt: skip
            _fill(table, tables.rows_with(rows) if kind == of else [])
        _fill(self._inputs, [_numbered(row) for row in now.get("inputs") or ()])
        _fill(self._outputs, list(now.get("outputs") or ()))
        _fill(self._by_task, list(now.get("by_task") or ()))
        errors = error_rows(await page.source.get("errors"))
        _fill(self._errors, [row for row in errors if row["component"] == self._id])

    def _node(self) -> Mapping[str, Any]:
        nodes = (self._page.facts.get("graph") or {}).get("nodes") or ()
        names = ("id", "label")  # the spouts of Trident are known by their labels
        return next((n for name in names for n in nodes if n.get(name) == self._id), {})


def _row(
    stats: Mapping[str, Any], id: str, node: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    names = {id, id.removeprefix("state "), str(node.get("label") or id)}
    for kind in ("spouts", "bolts", "states"):
        for row in stats.get(kind) or ():
            if row["id"] in names:
                return kind, row
    return "", {}


def _kind(node: Mapping[str, Any], counted: str) -> str:
    parts = [node.get("kind") or counted.removesuffix("s")]
    if isinstance(node.get("parallelism"), int):
        tasks = node["parallelism"]
        parts.append("1 task" if tasks == 1 else f"{tasks} tasks")
    if node.get("phase"):
        parts.append(f"{node['phase']} phase")
    return ", ".join(dict.fromkeys(str(part) for part in parts if part))


def _numbered(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "component": row["component"] or "-",
        "key": f"{row['component']} {row['stream']}",
    }


def _fill(table: ui.table, rows: list[dict[str, Any]]) -> None:
    table.rows = rows
    table.set_visibility(bool(rows))


def _build(page: Page) -> Refresh:
    return _Component(page).refresh


COMPONENT = View("component", "Component", "settings_input_component", _build, True, hidden=True)
