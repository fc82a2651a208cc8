"""Dead letters: find them, look at one, repair its values, and send it through again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from waterspout.ui import _tables as tables
from waterspout.ui._asking import ask_first
from waterspout.ui._frame import empty
from waterspout.ui._library import ui
from waterspout.ui._views import Page, Refresh, View
from waterspout.ui._words import number

__all__ = ["LETTERS", "changes", "letter_rows"]

_LIMIT = 200
_EVERYWHERE = "everywhere"
_COLUMNS = (
    tables.Column("id", "Id", "", None),
    tables.Column("failed_in", "Failed in", "", None),
    tables.Column("error", "Error", "", None),
    tables.Column("values", "Values", "", None),
    tables.Column("origin", "From", "", None),
    tables.Column("failures", "Failures", "How often it has failed."),
    tables.Column("last_failed", "Last failed", "", None),
    tables.Column("status", "Asked for", "", None),
)
_SHORT = """
<q-td :props="props" class="ellipsis" style="max-width: 22em" :title="props.value">
  {{ props.value }}</q-td>
"""
# A button, so that the keyboard reaches it.
_LOOK = """
<q-td :props="props">
  <q-btn flat dense no-caps color="primary" :label="props.value"
    @click.stop="$parent.$emit('look', {id: props.row.id})" />
</q-td>
"""
_AGAIN = (
    "It goes through the topology as if it had come now. If it fails again, it comes back here."
)


def letter_rows(letters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return letters as lines of the table, in texts."""
    return [
        {
            "id": str(letter["id"]),
            "failed_in": letter["failed_in"] or "(no bolt)",
            "error": str(letter["error"]).strip().partition("\n")[0],
            "values": _values(letter),
            "origin": letter.get("spout") or letter.get("position") or "",
            "failures": letter["failures"],
            "last_failed": letter["last_failed"],
            "status": letter.get("status") or "",
        }
        for letter in letters
    ]


def changes(before: Mapping[str, str] | None, after: Mapping[str, str]) -> dict[str, str]:
    """Return the texts that were changed; all, if it is not known what they were.

    >>> changes({"n": "7", "s": "x"}, {"n": "8", "s": "x"}), changes(None, {"n": "8"})
    ({'n': '8'}, {'n': '8'})
    """
    return {name: text for name, text in after.items() if before is None or before[name] != text}


def _values(letter: Mapping[str, Any]) -> str:
    row = letter.get("row", letter.get("values"))
    if isinstance(row, Mapping):
        return ", ".join(f"{field}={value}" for field, value in row.items())
    return str(row or "")


def _build(page: Page) -> Refresh:
    letters: dict[str, Mapping[str, Any]] = {}
    with ui.column().classes("w-full") as nothing:
        empty(
            "mark_email_read",
            "No dead letter",
            "What fails too often is put aside here with its values and its error, and can be "
            'sent through again. In Trident: on_error="dead_letter".',
        )
    with ui.column().classes("w-full gap-3") as all_of_it:
        with ui.row().classes("w-full items-center gap-2"):
            where = ui.select([_EVERYWHERE], value=_EVERYWHERE, label="Failed in, or from")
            where.props("dense outlined").classes("min-w-48").mark("where")
            find = ui.input("Find").props("dense outlined clearable").classes("grow min-w-48")
            find.mark("find")
            again = ui.button("Replay...", icon="replay").props("no-caps unelevated").mark("replay")
        count = ui.label().classes("text-sm opacity-80").mark("count")
        table = tables.table(_COLUMNS, "Dead letters").mark("letters")
        table.props("selection=multiple")
        for name in ("error", "values", "origin"):
            table.add_slot(f"body-cell-{name}", _SHORT)
        table.add_slot("body-cell-id", _LOOK)
        find.bind_value_to(table, "filter", lambda text: text or "")
        ui.label(
            "A line, or its id, opens the letter: all that is known of it, and its values."
        ).classes("text-xs opacity-80")

    def replay_chosen() -> None:
        ids = [str(row["id"]) for row in table.selected]
        _ask_replay(page, ids or None, {}, f"all {number(len(letters))}" if not ids else "")

    def look(event: Any) -> None:
        row = event.args[1] if isinstance(event.args, list) else event.args
        letter = letters.get(str(row["id"]))
        if letter is not None:
            _look_at(page, letter)

    again.on_click(replay_chosen)
    table.on("rowClick", look, [[], ["id"], None])
    table.on("look", look)

    async def refresh() -> None:
        component = None if where.value == _EVERYWHERE else where.value
        found = await page.source.get("dead-letters", component=component, limit=_LIMIT)
        letters.clear()
        letters.update({str(letter["id"]): letter for letter in found["letters"]})
        nothing.set_visibility(not found["total"])
        all_of_it.set_visibility(bool(found["total"]))
        options = [_EVERYWHERE, *found["components"]]
        if where.options != options:
            where.set_options(options, value=where.value if where.value in options else options[0])
        rows = letter_rows(found["letters"])
        if table.rows != rows:
            table.rows = rows
            table.selected = [row for row in table.selected if row["id"] in letters]
        shown = (
            f", the newest {number(len(rows))} are shown" if len(rows) < found["matching"] else ""
        )
        count.text = f"{number(found['matching'])} of {number(found['total'])}{shown}"

    return refresh


def _look_at(page: Page, letter: Mapping[str, Any]) -> None:
    """Show everything about a letter; the values of a row can be changed before its replay."""
    fields, texts = letter.get("fields"), letter.get("texts")
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl gap-3").mark("letter"):
        ui.label(f"Letter {letter['id']}").classes("text-lg font-medium")
        for label, text in _about(letter):
            with ui.row().classes("w-full gap-3 no-wrap items-baseline"):
                ui.label(label).classes("w-28 shrink-0 opacity-80")
                ui.label(text).classes("text-sm break-words min-w-0 whitespace-pre-line")
        if letter.get("trace"):
            with ui.expansion("Traceback").classes("w-full").props("dense"):
                ui.label(letter["trace"]).classes("font-mono text-xs whitespace-pre-wrap break-all")
        inputs: dict[str, ui.input] = {}
        if isinstance(fields, Mapping):
            ui.label("Values: change what is wrong, then replay").classes("text-sm font-medium")
            for field, kind in fields.items():
                value = "" if texts is None else texts[field]
                inputs[field] = ui.input(f"{field} ({kind or '?'})", value=value)
                inputs[field].props("dense outlined").classes("w-full").mark(f"field-{field}")

        def replay() -> None:
            after = {field: str(each.value or "") for field, each in inputs.items()}
            dialog.close()
            _ask_replay(page, [str(letter["id"])], changes(texts, after))

        with ui.row().classes("w-full justify-end gap-2"):
            ui.button("Close", on_click=dialog.close).props("flat no-caps")
            ui.button("Replay...", icon="replay", on_click=replay).props("no-caps unelevated").mark(
                "replay-this"
            )
    dialog.on("hide", dialog.delete)
    dialog.open()


def _about(letter: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [("failed in", letter["failed_in"] or "(no bolt)"), ("error", letter["error"])]
    if "row" in letter:
        found += [("batch", f"{letter['txid']}, attempt {letter['attempt']}")]
        found += [("position", letter.get("position") or "(not known)")]
    else:
        found += [("spout", f"{letter['spout']}, stream {letter['stream']}")]
        found += [("message id", letter["message_id"]), ("values", _values(letter))]
    found += [("failures", number(letter["failures"])), ("last failed", letter["last_failed"])]
    return [*found, *([("asked for", letter["status"])] if letter.get("status") else [])]


def _ask_replay(
    page: Page, ids: list[str] | None, texts: Mapping[str, str], which: str = ""
) -> None:
    what = which or (f"letter {ids[0]}" if ids and len(ids) == 1 else f"{len(ids or ())} letters")
    changed = "".join(f"\n{field} becomes {text}" for field, text in texts.items())
    ask_first(
        page,
        f"Replay {what}?",
        f"{_AGAIN}{changed}",
        partial(_replay, page, {"ids": ids, "set": dict(texts)}),
        label="Replay",
    )


async def _replay(page: Page, body: Mapping[str, Any], token: str | None) -> Any:
    return await page.source.post("dead-letters/replay", body, token=token)


LETTERS = View("dead-letters", "Dead letters", "mail", _build, kinds=("core", "trident"))
