"""What every page has: the bar at the top, light and dark, the keyboard, and designed bad news."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from waterspout.ui._library import events, ui

__all__ = ["badge", "colour_of", "command", "empty", "frame", "keys", "notice", "theme_of"]

_THEME = "waterspout_theme"
_COLOURS = {
    "running": "positive",
    "idle": "positive",
    "starting": "info",
    "inactive": "warning",
    "silent": "warning",
    "unreachable": "negative",
    "failed": "negative",
    "dead": "negative",
    "damaged": "negative",
}
_ICONS = {
    "running": "play_arrow",
    "idle": "done",
    "starting": "hourglass_top",
    "inactive": "pause",
    "stopped": "stop",
    "failed": "error",
    "dead": "heart_broken",
    "silent": "volume_off",
    "unreachable": "link_off",
    "damaged": "broken_image",
}


def colour_of(status: str) -> str:
    """Return the colour of a status, by the names of Quasar.

    >>> colour_of("running"), colour_of("waiting for postgres, 34 s"), colour_of("stopped")
    ('positive', 'warning', 'grey-7')
    """
    return "warning" if status.startswith("waiting") else _COLOURS.get(status, "grey-7")


def badge(status: str) -> ui.badge:
    """Show a status; it is never told by colour alone."""
    shown = ui.badge(color=colour_of(status)).classes("text-sm py-1 px-2").mark("status")
    with shown:
        ui.icon(_ICONS.get(status, "hourglass_empty")).classes("mr-1")
        ui.label(status)
    return shown


def frame(crumbs: Iterable[tuple[str, str]], theme: str | None) -> ui.row:
    """Make the bar: where one is, and what everybody needs. Return the row for what a page adds.

    `crumbs` are labels and addresses, from the list to here.
    """
    ui.colors(primary="#0f5c7a", secondary="#3a7d8c", accent="#c2571a", positive="#1f7a4d")
    dark = ui.dark_mode(value={"dark": True, "light": False}.get(theme or ""))
    ui.query(".nicegui-content").classes("w-full max-w-[1500px] mx-auto p-3 sm:p-5 gap-4")
    with ui.header().classes("items-center gap-2 px-3 py-2 min-h-0 no-wrap"):
        with ui.link(target="/").classes("text-white no-underline flex items-center gap-2 no-wrap"):
            ui.icon("cyclone", size="sm")
            ui.label("waterspout").classes("text-lg font-semibold gt-xs")
            ui.tooltip("All topologies (L)")
        for label, address in crumbs:
            ui.icon("chevron_right").classes("opacity-70")
            ui.link(label, address).classes("text-white no-underline text-lg ellipsis min-w-0")
        ui.space()
        extra = ui.row().classes("items-center gap-2 no-wrap")

        def switch() -> None:
            # Until it is chosen, it is as the system of the reader has it.
            dark.value = dark.value is not True
            chosen = "dark" if dark.value else "light"
            ui.run_javascript(
                f"document.cookie='{_THEME}={chosen};path=/;max-age=31536000;SameSite=Strict'"
            )

        ui.button(icon="contrast", on_click=switch).props(
            'flat round dense color=white aria-label="Light or dark"'
        ).mark("theme").tooltip("Light or dark (D)")
    keys({"d": switch, "l": lambda: ui.navigate.to("/")})
    return extra


def theme_of(cookies: Mapping[str, str]) -> str | None:
    """Return what the reader has chosen: light, dark, or nothing yet."""
    return cookies.get(_THEME)


def keys(actions: Mapping[str, Callable[[], object]]) -> None:
    """Let single keys do something, unless one is writing."""

    def pressed(event: events.KeyEventArguments) -> None:
        plain = not (event.modifiers.ctrl or event.modifiers.alt or event.modifiers.meta)
        act = actions.get(event.key.name.lower()) if event.action.keydown and plain else None
        if act is not None:
            act()

    ui.keyboard(on_key=pressed, repeating=False)


def notice(icon: str, colour: str) -> tuple[ui.row, ui.label]:
    """Make a banner that is hidden until there is something to say."""
    with ui.row().classes(
        f"w-full items-start gap-3 no-wrap rounded-borders p-3 bg-{colour} text-white"
    ) as row:
        ui.icon(icon, size="sm")
        text = ui.label().classes("whitespace-pre-line break-words min-w-0")
    row.set_visibility(False)
    return row.props('role=status aria-live="polite"'), text


def empty(icon: str, title: str, text: str, commands: Iterable[tuple[str, str]] = ()) -> ui.column:
    """Say why there is nothing here, and what to do about it."""
    with ui.column().classes("w-full items-center text-center py-10 gap-3") as column:
        ui.icon(icon, size="4rem").classes("opacity-40")
        ui.label(title).classes("text-xl font-medium")
        if text:
            ui.label(text).classes("opacity-80 max-w-2xl whitespace-pre-line break-words")
        with ui.column().classes("items-stretch gap-2 text-left max-w-full"):
            for what, line in commands:
                command(what, line)
    return column


def command(what: str, line: str) -> None:
    """Show a command that can be copied."""
    with ui.column().classes("gap-0 w-full max-w-full"):
        ui.label(what).classes("text-sm opacity-80")
        with ui.row().classes(
            "w-full items-center no-wrap gap-2 rounded px-3 py-1 max-w-full "
            "bg-slate-200 dark:bg-slate-700"
        ):
            ui.label(line).classes("font-mono text-sm overflow-auto whitespace-pre min-w-0")
            ui.space()
            ui.button(icon="content_copy", on_click=lambda: ui.clipboard.write(line)).props(
                'flat round dense size=sm color=cyan-7 aria-label="Copy"'
            )
