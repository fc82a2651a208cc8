"""Tables as Storm's UI has them: which columns, what each means, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waterspout.ui._library import ui
from waterspout.ui._words import at

__all__ = [
    "BATCH_TOTALS",
    "BOLTS",
    "BY_TASK",
    "INPUTS",
    "OUTPUTS",
    "SPOUTS",
    "STATES",
    "TOTALS",
    "TRIDENT_SPOUTS",
    "Column",
    "rows_with",
    "table",
]

_DECIMAL = (
    'v => v === null || v === undefined ? "-" : Number(v).toLocaleString("en-US",'
    " {minimumFractionDigits: %d, maximumFractionDigits: %d})"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the key in the API's rows, the head, and what it means."""

    key: str
    label: str
    tip: str = ""
    decimals: int | None = 0
    """How many; None for text."""


_ID = Column("id", "Id", "The component; a link to all that is known of it.", None)
_TASKS = Column("tasks", "Tasks", "How many copies of it run.")
_EMITTED = Column("emitted", "Emitted", "Tuples that it has emitted.")
_TRANSFERRED = Column(
    "transferred", "Transferred", "Copies that were sent: 0 without a reader, n for n readers."
)
_EXECUTED = Column("executed", "Executed", "Tuples that it has executed.")
_EXECUTE = Column("execute_ms", "Execute latency (ms)", "Mean time in execute.", 3)
_PROCESS = Column("process_ms", "Process latency (ms)", "Mean time from receipt to ack.", 3)
_ACKED = Column("acked", "Acked", "Tuples acked; of a spout, messages whose tree is complete.")
_FAILED = Column("failed", "Failed", "Tuples failed; of a spout, messages failed or timed out.")
_COMPLETE = Column(
    "complete_ms", "Complete latency (ms)", "Mean time from a message's emission to its ack.", 1
)
_CAPACITY = Column(
    "capacity", "Capacity (last 10 min)", "Share of time that its busiest task works; 1 is all.", 3
)
_PER_S = Column("per_s", "Per second", "Mean over the window.", 1)
_ROWS = Column("rows", "Rows", "Rows in the window.")
_ERROR = Column("last_error", "Last error", "", None)
_ERROR_AT = Column("error_at", "Error time", "", None)
_STREAM = Column("stream", "Stream", "", None)

SPOUTS = (
    *(_ID, _TASKS, _EMITTED, _TRANSFERRED, _COMPLETE, _ACKED, _FAILED, _PER_S),
    *(_ERROR, _ERROR_AT),
)
TRIDENT_SPOUTS = (_ID, _TASKS, _ROWS, _PER_S, _ERROR, _ERROR_AT)
BOLTS = (
    *(_ID, _TASKS, _EMITTED, _TRANSFERRED, _CAPACITY, _EXECUTE, _EXECUTED, _PROCESS),
    *(_ACKED, _FAILED, _ERROR, _ERROR_AT),
)
STATES = (
    Column("id", "State", "", None),
    Column("kind", "Kind", "", None),
    Column("guarantee", "Guarantee", "", None),
    Column("store", "Store", "", None),
    Column("rows", "Rows written", "Rows written in the window."),
    Column("batches", "Batches", "Batches that wrote to it in the window."),
    _PER_S,
)
TOTALS = (
    Column("window_name", "Window", "", None),
    _EMITTED,
    _TRANSFERRED,
    _COMPLETE,
    _ACKED,
    _FAILED,
)
BATCH_TOTALS = (
    Column("window_name", "Window", "", None),
    Column("batches", "Batches", "Batches that were committed."),
    Column("input_rows", "Rows read"),
    Column("written_rows", "Rows written"),
    Column("batch_ms", "Complete latency (ms)", "From a batch's first emission to its commit.", 0),
    Column("processing_ms", "Processing (ms)", "", 0),
    Column("commit_ms", "Commit (ms)", "", 0),
    Column("replays", "Replays", "Attempts at a batch after its first."),
    Column("attempts_failed", "Failed attempts"),
)
INPUTS = (
    Column("component", "Component", "", None),
    *(_STREAM, _EXECUTE, _EXECUTED, _PROCESS, _ACKED, _FAILED),
)
OUTPUTS = (_STREAM, _EMITTED, _TRANSFERRED)
BY_TASK = (Column("task", "Task"), _EXECUTED, _EXECUTE, _CAPACITY)

_LINKED = """
<q-td :props="props">
  <a v-if="props.row.link" :href="props.row.link"
    class="font-medium underline text-cyan-800 dark:text-cyan-300">{{ props.value }}</a>
  <span v-else>{{ props.value }}</span>
</q-td>
"""
_WRAPPED = """
<q-td :props="props" style="white-space: normal; min-width: 16em; overflow-wrap: anywhere"
  class="text-red-700 dark:text-red-300">{{ props.value }}</q-td>
"""
_HEAD = """
<q-th :props="props" style="vertical-align: bottom">{{ props.col.label }}
  <q-tooltip v-if="props.col.tip">{{ props.col.tip }}</q-tooltip>
</q-th>
"""
_CAPACITY_CELL = """
<q-td :props="props" :class="props.value === null || props.value === undefined ? '' :
  props.row.capacity >= 0.8 ? 'font-bold text-red-700 dark:text-red-300' :
  props.row.capacity >= 0.5 ? 'font-bold text-amber-800 dark:text-amber-300' : ''">
  {{ props.value === null || props.value === undefined ? "-" : props.value }}
</q-td>
"""


def table(columns: Sequence[Column], title: str, *, key: str = "id") -> ui.table:
    """Make a table; its rows are those of the API."""
    made = ui.table(rows=[], columns=[_column(each) for each in columns], row_key=key, title=title)
    made.props('flat bordered dense binary-state-sort no-data-label="Nothing yet"')
    made.classes("w-full")
    made.add_slot("header-cell", _HEAD)
    made.add_slot("body-cell-id", _LINKED)
    made.add_slot("body-cell-last_error", _WRAPPED)
    made.add_slot("body-cell-capacity", _CAPACITY_CELL)
    return made


def rows_with(rows: Iterable[Mapping[str, Any]], **more: Any) -> list[dict[str, Any]]:
    """Return rows without what is nested in them, with a time in words.

    `more` are functions of a row, by the key that they give.
    """
    return [
        {
            **{k: v for k, v in row.items() if not isinstance(v, list | dict)},
            "error_at": at(row.get("error_time")) if row.get("last_error") else "",
            **{key: make(row) for key, make in more.items()},
        }
        for row in rows
    ]


def _column(column: Column) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": column.key,
        "label": column.label,
        "field": column.key,
        "sortable": True,
        "align": "left" if column.decimals is None else "right",
        "tip": column.tip,
    }
    if column.decimals is not None:
        digits = column.decimals
        made[":format"] = _DECIMAL % (digits, digits)
    return made
