"""Batches: a timeline of attempts, the commit matrix, and a table of all that is known of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from waterspout.ui import _tables as tables
from waterspout.ui._attempts import LEVELS, attempt_rows, matrix, timeline
from waterspout.ui._frame import empty
from waterspout.ui._library import ui
from waterspout.ui._views import Page, Refresh, View

__all__ = ["BATCHES", "matrix_rows"]

_LIMIT = 40
_BAR_PX = 20
_AROUND_PX = 100

_COLUMNS = (
    tables.Column("name", "Attempt", "Batch 7, and then its replays 7:1, 7:2.", None),
    tables.Column("outcome", "Outcome", "", None),
    tables.Column("processing", "Processing", "", None),
    tables.Column("waiting", "Waiting", "Until all batches before it have committed.", None),
    tables.Column("commit", "Commit", "", None),
    tables.Column("rows", "Rows", "Rows written, or tuples executed.", None),
    tables.Column("ended", "Ended", "", None),
    tables.Column("why", "Why", "Why it failed, or why it was made again.", None),
)
_WHY = """
<q-td :props="props" style="white-space: normal; min-width: 14em; overflow-wrap: anywhere">
  {{ props.value }}</q-td>
"""
_OUTCOME = """
<q-td :props="props">
  <q-badge :color="props.value == 'committed' ? 'positive' : props.value == 'in flight' ? 'info' :
    props.value == 'unfinished' ? 'warning' : 'negative'">{{ props.value }}</q-badge>
  <q-badge v-if="props.row.replay" color="deep-orange-8" class="q-ml-xs">replay</q-badge>
</q-td>
"""
# Never by colour alone: the word stands in the cell.
_CELL = """
<q-td :props="props">
  <template v-if="props.col.name == 'name'">{{ props.value }}
    <q-badge v-if="props.row.replay" color="deep-orange-8" class="q-ml-xs">replay</q-badge>
  </template>
  <q-badge v-else-if="props.value" class="q-py-xs" :color="{begun: 'grey-7', claimed: 'blue-8',
    written: 'purple-7', committed: 'positive', lost: 'negative'}[props.value]">
    {{ props.value }}
    <q-tooltip>{{ props.row.titles[props.col.name] }}</q-tooltip>
  </q-badge>
</q-td>
"""
_STEPS = {
    "begun": "the ledger says that the attempt may write",
    "claimed": "the state lets nobody else write",
    "written": "its rows are there, and not yet visible",
    "committed": "the ledger says so: no crash undoes it",
    "lost": "the attempt was given up; a replay begins from the value before",
}


def matrix_rows(found: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return columns and rows of the matrix as a table takes them."""
    names = [f"s{n}" for n, _ in enumerate(found["states"])]
    columns = [{"name": "name", "label": "Attempt", "field": "name", "align": "left"}]
    for name, state in zip(names, found["states"], strict=True):
        columns.append({"name": name, "label": state, "field": name, "align": "left"})
    rows = []
    for row in found["rows"]:
        cells = dict(zip(names, (row["cells"][state] for state in found["states"]), strict=True))
        rows.append(
            {
                "name": row["id"],
                "replay": row["replay"],
                **{name: cell["level"] for name, cell in cells.items()},
                "titles": {name: cell["title"] for name, cell in cells.items()},
            }
        )
    return columns, rows


def _build(page: Page) -> Refresh:
    with ui.column().classes("w-full") as nothing:
        empty(
            "view_timeline",
            "No batch yet",
            "As soon as its spouts give something, every attempt at a batch is drawn here: how "
            "long it was processed, waited for the batches before it, and was committed.",
        )
    with ui.column().classes("w-full gap-4") as all_of_it:
        ui.label("Attempts at the latest batches").classes("text-base font-medium")
        chart = ui.echart({}).classes("w-full").mark("timeline")
        no_times = ui.label("When they ran is not stored; a run that is served tells it.")
        no_times.classes("opacity-80")
        with ui.row().classes("items-center gap-x-4 gap-y-1"):
            ui.label("Commit matrix").classes("text-base font-medium")
            for level in LEVELS:
                ui.label(f"{level}: {_STEPS[level]}").classes("text-xs opacity-80")
        grid = ui.table(rows=[], columns=[], row_key="name").classes("w-full").mark("matrix")
        grid.props('flat bordered dense no-data-label="No attempt has begun to commit"')
        grid.add_slot("body-cell", _CELL)
        table = tables.table(_COLUMNS, "Attempts", key="name").mark("attempts")
        table.add_slot("body-cell-why", _WHY)
        table.add_slot("body-cell-outcome", _OUTCOME)

    async def refresh() -> None:
        answer = await page.source.get("batches", limit=_LIMIT)
        attempts, now = answer["attempts"], time.time()
        nothing.set_visibility(not attempts)
        all_of_it.set_visibility(bool(attempts))
        drawn = timeline(attempts, now)
        bars = len(drawn["yAxis"]["data"])
        chart.style(f"height: {bars * _BAR_PX + _AROUND_PX}px")
        chart.set_visibility(bars > 0)
        no_times.set_visibility(bars == 0)
        if chart.options != drawn:
            chart.options.clear()
            chart.options.update(drawn)
            chart.update()
        columns, rows = matrix_rows(matrix(attempts, answer.get("states") or ()))
        if grid.columns != columns:
            grid.columns = columns
        grid.rows = rows
        table.rows = [{"name": row["id"], **row} for row in attempt_rows(attempts, now)]

    return refresh


BATCHES = View("batches", "Batches", "view_timeline", _build, kinds=("transactional", "trident"))
