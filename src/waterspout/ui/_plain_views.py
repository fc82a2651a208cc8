"""The configuration of a run, and the end of its log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from waterspout.ui import _tables as tables
from waterspout.ui._frame import empty
from waterspout.ui._library import ui
from waterspout.ui._views import Page, Refresh, View

__all__ = ["CONFIGURATION", "LOG", "config_rows", "log_lines"]

_LINES = 300
_CONFIG = (tables.Column("key", "Key", "", None), tables.Column("value", "Value", "", None))
_VALUE = """
<q-td :props="props" style="white-space: normal; overflow-wrap: anywhere" class="font-mono">
  {{ props.value }}
</q-td>
"""


def config_rows(answer: Any) -> list[dict[str, str]]:
    """Return keys and values, in order; a value as JSON has it.

    >>> config_rows({"topology.ackers": 1, "a": None})
    [{'key': 'a', 'value': 'null'}, {'key': 'topology.ackers', 'value': '1'}]
    """
    inner = answer.get("config") if isinstance(answer, Mapping) else None
    options: Mapping[str, Any] = inner if isinstance(inner, Mapping) else answer
    return [
        {"key": str(key), "value": value if isinstance(value, str) else json.dumps(value)}
        for key, value in sorted(options.items())
    ]


def log_lines(answer: Any) -> list[str]:
    """Return the lines of a log."""
    lines = answer.get("lines") if isinstance(answer, Mapping) else answer
    return [str(line) for line in lines or ()]


def _build_config(page: Page) -> Refresh:
    search = ui.input("Find a key or a value").props("clearable dense outlined").classes("w-full")
    table = tables.table(_CONFIG, "Configuration", key="key").mark("configuration")
    table.add_slot("body-cell-value", _VALUE)
    search.bind_value_to(table, "filter", lambda text: text or "")

    async def refresh() -> None:
        table.rows = config_rows(await page.source.get("config"))

    return refresh


def _build_log(page: Page) -> Refresh:
    shown: list[str] = []
    with ui.row().classes("w-full items-center gap-4"):
        ui.label("The end of the driver's log").classes("text-base font-medium")
        ui.space()
        follow = ui.switch("Follow", value=True).mark("follow")
    log = ui.log(max_lines=_LINES).classes("w-full h-[65vh] text-xs").mark("log")
    with ui.column().classes("w-full") as nothing:
        empty("article", "The log is empty", "Nothing has been logged yet.")

    async def refresh() -> None:
        if not follow.value:
            return
        lines = log_lines(await page.source.get("log", lines=_LINES))
        fresh = _new_since(shown, lines)
        if fresh is None:
            log.clear()
            fresh = lines
        for line in fresh:
            log.push(line)
        shown[:] = lines
        log.set_visibility(bool(lines))
        nothing.set_visibility(not lines)

    return refresh


def _new_since(shown: list[str], lines: list[str]) -> list[str] | None:
    """Return the lines behind those that are shown; None if it cannot be said which they are.

    >>> _new_since(["a", "b"], ["b", "c"]), _new_since(["a"], ["x", "y"]), _new_since([], ["a"])
    (['c'], None, ['a'])
    """
    if not shown:
        return lines
    for start in range(len(shown)):
        kept = shown[start:]
        if lines[: len(kept)] == kept:
            return lines[len(kept) :]
    return None


CONFIGURATION = View("config", "Configuration", "tune", _build_config)
LOG = View("log", "Log", "article", _build_log)
