"""A box to try the functions of a topology: DRPC by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from waterspout.ui._frame import empty
from waterspout.ui._library import ui
from waterspout.ui._sources import NotAnswered
from waterspout.ui._views import Page, Refresh, View

__all__ = ["DRPC", "function_names", "result_lines"]

_WAIT_S = 4  # less than a source waits for an answer: then the run says what it waited for


def function_names(answer: Any) -> list[str]:
    """Return the names of the functions that a run answers.

    >>> function_names({"functions": [{"name": "words"}, "reach"]}), function_names([])
    (['words', 'reach'], [])
    """
    inner = answer.get("functions", answer) if isinstance(answer, Mapping) else answer
    return [str(each["name"] if isinstance(each, Mapping) else each) for each in inner or ()]


def result_lines(answer: Any) -> list[str]:
    """Return the tuples of an answer, a line each.

    >>> result_lines({"result": [["cat", 3], ["dog", None]], "txid": 7})
    ['["cat", 3]', '["dog", null]']
    """
    rows = answer
    if isinstance(answer, Mapping):
        rows = next((answer[key] for key in ("result", "tuples") if key in answer), answer)
    if not isinstance(rows, list):
        return [rows if isinstance(rows, str) else json.dumps(rows, ensure_ascii=False)]
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def _build(page: Page) -> Refresh:
    with ui.column().classes("w-full") as nothing:
        empty(
            "terminal",
            "No function",
            "A topology that answers questions has one or more: "
            'topology.new_drpc_stream("words"), or a DRPCSpout.',
        )
    with ui.column().classes("w-full gap-3") as all_of_it:
        with ui.row().classes("w-full items-center gap-2"):
            name = ui.select([], label="Function").props("dense outlined").classes("min-w-48")
            name.mark("function")
            args = ui.input("Arguments").props("dense outlined clearable")
            args.classes("grow min-w-48").mark("args")
            call = ui.button("Ask", icon="send").props("no-caps unelevated").mark("call")
        about = ui.label().classes("text-sm opacity-80").mark("about")
        result = ui.column().classes("w-full gap-0 font-mono text-sm").mark("result")

    async def ask() -> None:
        began = time.monotonic()
        result.clear()
        path = f"/drpc/{quote(str(name.value or ''), safe='')}"
        try:
            found = await page.source.get(path, args=args.value or "", timeout=_WAIT_S)
        except NotAnswered as error:
            about.text = ""
            with result:
                ui.label(str(error)).classes("text-negative break-words")
            return
        took = (time.monotonic() - began) * 1000
        txid = found.get("txid") if isinstance(found, Mapping) else None
        seen = f", with all batches up to {txid}" if txid is not None else ""
        lines = result_lines(found)
        tuples = "1 tuple" if len(lines) == 1 else f"{len(lines):,} tuples"
        about.text = f"{tuples} in {took:,.0f} ms{seen}"
        with result:
            for line in lines:
                ui.label(line).classes("break-all")

    call.on_click(ask)
    args.on("keydown.enter", ask)

    async def refresh() -> None:
        try:
            names = function_names(await page.source.get("/drpc"))
        except NotAnswered as error:
            if error.why != "absent" or not page.source.live:
                raise
            names = []
        nothing.set_visibility(not names)
        all_of_it.set_visibility(bool(names))
        if names and name.options != names:
            name.set_options(names, value=name.value if name.value in names else names[0])

    return refresh


DRPC = View("drpc", "DRPC", "terminal", _build)
