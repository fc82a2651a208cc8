"""The first page: all topologies, how they stand, and what a restart would go on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from waterspout.ui._directory import Directory, Listed, Listing
from waterspout.ui._frame import colour_of, empty, notice
from waterspout.ui._library import ui
from waterspout.ui._views import Refresh

__all__ = ["build_list", "counted", "row_of"]

_COLUMNS = {
    "name": "Topology",
    "status": "Status",
    "done": "Done",
    "in_flight": "In flight",
    "up": "Up",
    "driver": "Driver",
    "restart": "A restart",
    "error": "Last error",
}
_RIGHT = ("in_flight", "up")

_NAME = """
<q-td :props="props">
  <a :href="props.row.link"
    class="font-medium underline text-cyan-800 dark:text-cyan-300">{{ props.value }}</a>
</q-td>
"""
_STATUS = """
<q-td :props="props">
  <q-badge :color="props.row.colour" class="q-pa-xs">{{ props.value }}</q-badge>
  <div v-if="props.row.remark" class="text-caption opacity-80"
    style="white-space: normal; max-width: 28em">{{ props.row.remark }}</div>
</q-td>
"""
# On a phone each topology is a card.
_CARD = """
<div class="w-full py-1">
  <q-card flat bordered class="p-3">
    <div class="flex items-center justify-between gap-2">
      <a :href="props.row.link"
        class="text-lg font-medium underline text-cyan-800 dark:text-cyan-300">
        {{ props.row.name }}</a>
      <q-badge :color="props.row.colour" class="q-pa-xs">{{ props.row.status }}</q-badge>
    </div>
    <div v-if="props.row.remark" class="text-sm opacity-80">{{ props.row.remark }}</div>
    <div v-for="col in props.cols.filter(c => !['name', 'status'].includes(c.name) && c.value)"
      :key="col.name" class="text-sm mt-1" style="overflow-wrap: anywhere">
      <span class="opacity-70">{{ col.label }}:</span> {{ col.value }}
    </div>
  </q-card>
</div>
"""
_WRAPPED = """
<q-td :props="props" style="white-space: normal; min-width: 14em">{{ props.value }}</q-td>
"""


def build_list(directory: Directory) -> Refresh:
    """Make the list; return what brings it up to date."""
    ui.page_title("waterspout")
    with ui.row().classes("w-full items-baseline gap-x-4 gap-y-1"):
        ui.label("Topologies").classes("text-2xl font-medium")
        counts = ui.label().classes("opacity-80").mark("counts")
        ui.space()
        ui.label(directory.where).classes("font-mono text-xs opacity-70 break-all")
    problem, text = notice("cloud_off", "negative")
    columns = [
        {"name": key, "label": label, "field": key, "sortable": True,
         "align": "right" if key in _RIGHT else "left"}
        for key, label in _COLUMNS.items()
    ]  # fmt: skip
    table = ui.table(rows=[], columns=columns, row_key="name").classes("w-full").mark("topologies")
    table.props("flat bordered dense :grid=Quasar.Screen.lt.md")
    table.add_slot("body-cell-name", _NAME)
    table.add_slot("body-cell-status", _STATUS)
    table.add_slot("item", _CARD)
    for key in ("restart", "error"):
        table.add_slot(f"body-cell-{key}", _WRAPPED)
    with ui.column().classes("w-full") as nothing:
        _build_nothing(directory)

    async def refresh() -> None:
        listing = await directory.listing()
        table.rows = [row_of(each) for each in listing.topologies]
        table.set_visibility(bool(listing.topologies))
        nothing.set_visibility(not listing.topologies and not listing.problem)
        counts.text = counted(listing)
        problem.set_visibility(bool(listing.problem))
        text.text = f"{directory.where} cannot be looked at: {listing.problem}"

    return refresh


def row_of(listed: Listed) -> dict[str, Any]:
    """Return a row of the table."""
    facts: Mapping[str, Any] = asdict(listed)
    return {
        **{key: facts.get(key, "") for key in _COLUMNS},
        "remark": listed.remark,
        "restart": "; ".join(listed.resumes),
        "colour": colour_of(listed.status),
        "link": f"/t/{quote(listed.name, safe='')}",
    }


def counted(listing: Listing) -> str:
    """Return how many there are, and of which status.

    >>> counted(Listing((Listed("a", "idle"), Listed("b", "dead"), Listed("c", "idle"))))
    '3: 1 dead, 2 idle'
    """
    statuses = [each.status for each in listing.topologies]
    each = ", ".join(f"{statuses.count(name)} {name}" for name in sorted(set(statuses)))
    return f"{len(statuses)}: {each}" if statuses else ""


def _build_nothing(directory: Directory) -> None:
    empty(
        "cyclone",
        "Nothing has run here yet",
        f"This page shows every topology that has run with the home\n{directory.where}\n"
        "As soon as one starts, it appears here by itself.",
        (
            ("See a word count survive its own death:", "waterspout demo"),
            ("Make a project that runs:", "waterspout init my-topology"),
            ("Run a topology and have this page beside it:", "waterspout run topology.py --ui"),
            ("Look at another home:", "waterspout ui --home DIR"),
        ),
    )
