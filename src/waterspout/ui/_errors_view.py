"""The errors of a run: who raised what, how often, when last, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waterspout.ui import _tables as tables
from waterspout.ui._frame import empty
from waterspout.ui._library import ui
from waterspout.ui._views import Page, Refresh, View
from waterspout.ui._words import ago, at

__all__ = ["ERRORS", "ERRORS_COLUMNS", "error_rows"]

ERRORS_COLUMNS = (
    tables.Column("last_at", "Last", "", None),
    tables.Column("ago", "Ago", "", None),
    tables.Column("component", "Component", "", None),
    tables.Column("count", "Times", "How often it was raised."),
    tables.Column("last_error", "Error", "", None),
)

_ROW = """
<q-tr :props="props" @click="props.expand = !props.expand" class="cursor-pointer">
  <q-td v-for="col in props.cols" :key="col.name" :props="props"
    :style="col.name == 'last_error' ? 'white-space: normal; overflow-wrap: anywhere' : ''">
    <q-btn v-if="col.name == 'last_at'" flat round dense size="sm" class="mr-1"
      :icon="props.expand ? 'expand_less' : 'expand_more'" aria-label="Traceback"
      :aria-expanded="props.expand ? 'true' : 'false'"
      @click.stop="props.expand = !props.expand" />{{ col.value }}
  </q-td>
</q-tr>
<q-tr v-show="props.expand" :props="props">
  <q-td colspan="100%">
    <pre style="white-space: pre-wrap; overflow-wrap: anywhere">{{ props.row.traceback }}</pre>
  </q-td>
</q-tr>
"""


def error_rows(answer: Any) -> list[dict[str, Any]]:
    """Return the errors that the API tells, the newest first."""
    errors: Any = answer.get("errors") if isinstance(answer, Mapping) else answer
    found = [
        {
            "number": number,
            "last": error.get("last") or 0.0,
            "last_at": at(error.get("last")),
            "ago": ago(error.get("last")),
            "component": error.get("component") or "-",
            "count": error.get("count", 1),
            "last_error": error.get("error") or "",
            "traceback": error.get("traceback") or "The traceback is in the log of the driver.",
        }
        for number, error in enumerate(errors or ())
    ]
    return sorted(found, key=lambda row: row["last"], reverse=True)


def _build(page: Page) -> Refresh:
    table = tables.table(ERRORS_COLUMNS, "Errors", key="number").mark("errors")
    table.add_slot("body", _ROW)
    with ui.column().classes("w-full") as nothing:
        empty(
            "sentiment_satisfied",
            "No error",
            "Nothing has been raised in this run. What is raised by a spout, a bolt, an operation "
            "or a batch is kept here with how often, when last, and where.",
        )

    async def refresh() -> None:
        rows = error_rows(await page.source.get("errors"))
        table.rows = rows
        table.set_visibility(bool(rows))
        nothing.set_visibility(not rows)

    return refresh


ERRORS = View("errors", "Errors", "report", _build)
