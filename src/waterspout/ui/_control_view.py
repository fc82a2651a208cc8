"""What can be done to a run: activate, deactivate, rebalance, kill, rollback. Each asks first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from waterspout.ui._asking import ask_first
from waterspout.ui._library import ui
from waterspout.ui._sources import NotAnswered
from waterspout.ui._views import Page, Refresh, View

__all__ = ["CONTROL", "parallelism_of"]


@dataclass(frozen=True, slots=True)
class _Button:
    verb: str
    label: str
    icon: str
    says: str
    danger: bool = False
    form: Callable[[], Callable[[], dict[str, Any]]] | None = None
    """Makes what is to be filled in; returns what reads it."""


def parallelism_of(text: str) -> dict[str, int]:
    """Read "split=4, count=2"; ValueError says what is wrong.

    >>> parallelism_of("split=4, count=2"), parallelism_of(" ")
    ({'split': 4, 'count': 2}, {})
    """
    found = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        name, equals, n = (part.strip() for part in piece.rpartition("="))
        if not (equals and name and n.isdecimal() and int(n) >= 1):
            raise ValueError(f"{piece} is not COMPONENT=N, such as split=4")
        found[name] = int(n)
    return found


def _wait_form() -> Callable[[], dict[str, Any]]:
    wait = ui.number("Seconds for what is in flight", min=0).props("dense outlined clearable")
    wait.props('hint="Empty: the message timeout"').classes("w-full").mark("wait")
    return lambda: {} if wait.value is None else {"wait_s": float(wait.value)}


def _rebalance_form() -> Callable[[], dict[str, Any]]:
    at_once = ui.number("max_spout_pending", min=1, precision=0).props("dense outlined clearable")
    workers = ui.number("Spark tasks of a stage", min=1, precision=0)
    spread = ui.input("Parallelism, such as split=4, count=2").props("dense outlined clearable")
    for each, mark in ((at_once, "pending"), (workers, "workers"), (spread, "parallelism")):
        each.props("dense outlined clearable").classes("w-full").mark(mark)

    def read() -> dict[str, Any]:
        numbers = {"pending": at_once.value, "workers": workers.value}
        body: dict[str, Any] = {key: int(n) for key, n in numbers.items() if n is not None}
        named = parallelism_of(spread.value or "")
        if named:
            body["parallelism"] = named
        if not body:
            raise ValueError("say what is to change")
        return body

    return read


BUTTONS = (
    _Button("activate", "Activate", "play_arrow", "Its spouts are asked again."),
    _Button(
        "deactivate", "Deactivate", "pause",
        "Its spouts are asked no more; what is in flight is finished. Later runs begin so, too.",
    ),
    _Button(
        "rebalance", "Rebalance", "balance",
        "It is changed when nothing is in flight; later runs keep it.", form=_rebalance_form,
    ),
    _Button(
        "kill", "Kill", "stop",
        "Its spouts are asked no more, what is in flight is finished, then the run ends. What is "
        "not finished when the wait is over, the next run emits again.",
        danger=True, form=_wait_form,
    ),
    _Button(
        "rollback", "Roll back", "undo",
        "The run ends. Then the last committed batch is taken back in all states together; the "
        "next run emits it again. Only where all states are opaque.",
        danger=True, form=_wait_form,
    ),
)  # fmt: skip


def _build(page: Page) -> Refresh:
    ui.label(
        "Each of these asks first, and needs the token of the run (serve_token), or of this page "
        "where the run is not served."
    ).classes("opacity-80 break-words")
    with ui.grid().classes("w-full grid-cols-1 md:grid-cols-2 lg:grid-cols-3 gap-3"):
        for each in BUTTONS:
            _card(page, each)

    async def refresh() -> None:
        """There is nothing that changes by itself."""

    return refresh


def _card(page: Page, each: _Button) -> None:
    with ui.card().props("flat bordered").classes("gap-2 justify-between"):
        ui.label(each.says).classes("text-sm break-words")
        button = ui.button(each.label, icon=each.icon, on_click=lambda: _ask(page, each))
        button.props("no-caps outline").props("color=negative" if each.danger else "")
        button.mark(f"control-{each.verb}")


def _ask(page: Page, each: _Button) -> None:
    read: list[Callable[[], Mapping[str, Any]]] = []

    async def act(token: str | None) -> Any:
        try:
            body = read[0]() if read else {}
        except ValueError as error:
            raise NotAnswered("refused", str(error)) from error
        return await page.source.post(each.verb, body, token=token)

    make = each.form
    ask_first(
        page,
        f"{each.label} {page.name}?",
        each.says,
        act,
        label=each.label,
        danger=each.danger,
        form=None if make is None else lambda: read.append(make()),
    )


CONTROL = View("control", "Control", "settings_remote", _build)
