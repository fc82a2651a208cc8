"""What changes something asks first: what will happen, by which token, and then what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from waterspout.ui._library import context, ui
from waterspout.ui._sources import NotAnswered
from waterspout.ui._views import Page

__all__ = ["Act", "ask_first", "outcome_text"]

Act = Callable[[str | None], Awaitable[Any]]
"""Does it, with the token that was given; returns what the API answered."""


def ask_first(
    page: Page,
    title: str,
    says: str,
    act: Act,
    *,
    label: str,
    danger: bool = False,
    form: Callable[[], object] | None = None,
) -> None:
    """Open a dialog that says what will happen, takes the token, does it, and shows the outcome.

    `form` makes what else is to be filled in. Escape leaves everything as it is.
    """
    # Beside whatever asks: that may be a dialog itself, which takes what is in it with it.
    with (
        context.client.content,
        ui.dialog() as dialog,
        ui.card().classes("w-full max-w-xl gap-3").mark("asking"),
    ):
        ui.label(title).classes("text-lg font-medium")
        ui.label(says).classes("whitespace-pre-line break-words")
        if form is not None:
            form()
        token = ui.input("Token", value=page.token or "", password=True).classes("w-full")
        token.props('dense outlined autocomplete=off autofocus hint="Of the run, or of this page"')
        token.mark("token")
        outcome = ui.label().classes("whitespace-pre-line break-words w-full")
        outcome.props('role=status aria-live="polite"').mark("outcome").set_visibility(False)
        with ui.row().classes("w-full justify-end gap-2"):
            leave = ui.button("Cancel", on_click=dialog.close).props("flat no-caps").mark("leave")
            do = ui.button(label).props("no-caps unelevated").mark("do")
            do.props("color=negative" if danger else "color=primary")

    async def carry_out() -> None:
        do.disable()
        given = token.value.strip() or None
        try:
            text, good = outcome_text(await act(given)), True
            page.token = given
        except NotAnswered as error:
            text, good = str(error), False
        outcome.text = text
        outcome.set_visibility(True)
        outcome.classes(
            add="text-positive" if good else "text-negative",
            remove="text-negative" if good else "text-positive",
        )
        if good:
            leave.text = "Close"
            do.set_visibility(False)
        else:
            do.enable()

    do.on_click(carry_out)
    token.on("keydown.enter", carry_out)
    dialog.on("hide", dialog.delete)
    dialog.open()


def outcome_text(answer: Any) -> str:
    r"""Return what an answer says was done, for people.

    >>> outcome_text({"outcome": "done", "text": "it is inactive"})
    'it is inactive'
    >>> outcome_text({"text": "1 dead letter is to be replayed", "problem": "letter 2 cannot be"})
    '1 dead letter is to be replayed\nletter 2 cannot be'
    """
    if not isinstance(answer, Mapping):
        return str(answer) if answer else "Done."
    said = [str(answer[key]) for key in ("text", "problem") if answer.get(key)]
    return "\n".join(said) or "Done."
