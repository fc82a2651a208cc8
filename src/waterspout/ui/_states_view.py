"""States: what they promise, a key looked up and explained, and what is in flight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from waterspout.ui._frame import empty
from waterspout.ui._library import ui
from waterspout.ui._sources import NotAnswered
from waterspout.ui._views import Page, Refresh, View

__all__ = ["STATES", "flight_lines", "key_of", "told_lines"]

_FIRST = ("value", "key", "state", "txid", "attempt", "committed", "before", "head", "from")


def key_of(text: str | None) -> str | None:
    """Return what was typed as the API takes keys; None for the key of a global state.

    >>> key_of(" cat"), key_of('["paris", 7]'), key_of(""), key_of(None)
    ('cat', '["paris", 7]', None, None)
    """
    return (text or "").strip() or None


def told_lines(answer: Any) -> list[tuple[str, str]]:
    """Return what is known of a key as labels and texts, what matters first.

    >>> told_lines({"txid": 7, "value": 3, "before": None})
    [('value', '3'), ('txid', '7'), ('before', '(none)')]
    >>> told_lines({"value": 3, "written": {"txid": 7, "committed": True}})
    [('value', '3'), ('txid', '7'), ('committed', 'true')]
    """
    if not isinstance(answer, Mapping):
        return [("value", _text(answer))]
    written = answer.get("written")
    if isinstance(written, Mapping):  # which batch wrote it, and what from
        answer = {**{key: v for key, v in answer.items() if key != "written"}, **written}
    keys = [key for key in _FIRST if key in answer]
    keys += [key for key in answer if key not in keys]
    return [(str(key).replace("_", " "), _text(answer[key])) for key in keys]


def flight_lines(snapshot: Mapping[str, Any]) -> list[str]:
    """Return what is in flight, in words.

    >>> flight_lines(
    ...     {
    ...         "in_flight": [
    ...             {"txid": 7, "attempt": 1, "phase": "committing", "waits_for": "writing"}
    ...         ]
    ...     }
    ... )
    ['batch 7, attempt 1: committing, waits for writing']
    """
    return [
        f"batch {each['txid']}, attempt {each['attempt']}: {each['phase']}, waits for "
        f"{each['waits_for']}"
        for each in snapshot.get("in_flight") or ()
        if "txid" in each
    ]


def _text(value: Any) -> str:
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _build(page: Page) -> Refresh:
    with ui.column().classes("w-full") as nothing:
        empty("database", "No state", "No operation of this topology writes to a state.")
    with ui.column().classes("w-full gap-4") as all_of_it:
        cards = ui.row().classes("w-full gap-3 items-stretch").mark("states")
        with ui.card().classes("w-full gap-3").props("flat bordered"):
            ui.label("Look a key up").classes("text-base font-medium")
            with ui.row().classes("w-full items-center gap-2"):
                name = ui.select([], label="State").props("dense outlined").classes("min-w-48")
                key = ui.input("Key").props("dense outlined clearable").classes("grow min-w-48")
                key.mark("key")
                look = ui.button("Look up", icon="search").props("no-caps unelevated").mark("look")
                why = ui.button("Explain", icon="help_outline").props("no-caps outline")
                why.mark("explain")
            ui.label(
                'One value, such as cat or 7; of several fields a JSON list: ["paris", 7]. Nothing '
                "for a global state. What is read is committed."
            ).classes("text-xs opacity-80")
            answer = ui.column().classes("w-full gap-1").mark("answer")
        ui.label("In flight").classes("text-base font-medium")
        flying = ui.column().classes("gap-0").mark("flying")
    shown: list[Any] = []

    async def ask(what: str) -> None:
        state = quote(str(name.value or ""), safe="")
        answer.clear()
        try:
            found = await page.source.get(f"states/{state}/{what}", key=key_of(key.value))
        except NotAnswered as error:
            with answer:
                ui.label(str(error)).classes("text-negative break-words")
            return
        with answer:
            for label, text in told_lines(found):
                with ui.row().classes("w-full gap-3 no-wrap items-baseline"):
                    ui.label(label).classes("w-28 shrink-0 opacity-80")
                    ui.label(text).classes("font-mono text-sm break-words min-w-0")

    look.on_click(lambda: ask("value"))
    why.on_click(lambda: ask("explain"))
    key.on("keydown.enter", lambda: ask("value"))

    async def refresh() -> None:
        states = list(page.facts.get("states") or ())
        nothing.set_visibility(not states)
        all_of_it.set_visibility(bool(states))
        if states != shown:
            shown[:] = states
            _show(cards, states)
            names = [state["name"] for state in states]
            name.set_options(names, value=name.value if name.value in names else names[0])
        flying.clear()
        try:
            lines = flight_lines(await page.source.get("snapshot"))
        except NotAnswered:
            lines = []
        with flying:
            for line in lines or ["nothing"]:
                ui.label(line)

    return refresh


def _show(cards: ui.row, states: list[Any]) -> None:
    cards.clear()
    with cards:
        for state in states:
            with ui.card().props("flat bordered").classes("gap-1 min-w-64 max-w-full"):
                ui.label(state["name"]).classes("font-medium")
                ui.label(f"{state['kind']}, {state['store']}").classes("text-sm break-all")
                if state.get("guarantee"):
                    exact = state["guarantee"] == "exactly-once"
                    colour = "positive" if exact else "warning"
                    ui.badge(state["guarantee"], color=colour)
                if state.get("why"):
                    ui.label(state["why"]).classes("text-xs opacity-80 break-words")


STATES = View("states", "States", "storage", _build, kinds=("transactional", "trident"))
