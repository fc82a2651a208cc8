"""The page of one topology: who is asked, what is shown, and what is said when nobody answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from waterspout._causes import told
from waterspout.ui._directory import Directory, Listed
from waterspout.ui._frame import badge, empty, keys, notice
from waterspout.ui._library import nicegui_app, ui
from waterspout.ui._sources import FactSource, NotAnswered
from waterspout.ui._views import WINDOWS, Refresh, View

log = logging.getLogger(__name__)

__all__ = ["TopologyPage", "address", "instead_of_view", "lost", "unserved"]

TOKEN_KEPT = "waterspout_token"  # noqa: S105 - a key of the memory of a tab


def address(name: str, view: str = "", **query: str) -> str:
    """Return the address of a view of a topology.

    >>> address("a b", "component", id="x/y")
    '/t/a%20b/component?id=x%2Fy'
    """
    path = f"/t/{quote(name, safe='')}" + (f"/{view}" if view else "")
    return f"{path}?{urlencode(query)}" if query else path


class TopologyPage:
    """One open page. A view sees it as `Page`."""

    def __init__(
        self, directory: Directory, name: str, view: View, query: Mapping[str, str]
    ) -> None:
        self.name = name
        self.query = query
        self.window = query.get("window", "600")
        if self.window not in WINDOWS:
            self.window = "600"
        self.facts: Mapping[str, Any] = {}
        self._directory = directory
        self._view = view
        self._tabs: dict[str, tuple[View, ui.element]] = {}
        self._source: FactSource | None = None
        self._answered_at: float | None = None
        self._refresh: Refresh | None = None

    @property
    def source(self) -> FactSource:
        """Whom to ask now."""
        if self._source is None:
            raise NotAnswered("absent", f"nobody was asked about {self.name} yet")
        return self._source

    @property
    def token(self) -> str | None:
        """The token that was given last in this tab of the browser. It stays in this process."""
        return nicegui_app.storage.tab.get(TOKEN_KEPT)

    @token.setter
    def token(self, given: str | None) -> None:
        nicegui_app.storage.tab[TOKEN_KEPT] = given

    def link(self, view: str, **query: str) -> str:
        """Return the address of another view of this topology, with the same window."""
        window = {} if self.window == "600" else {"window": self.window}
        return address(self.name, view, **{**window, **query})

    def build(self, views: Sequence[View], extra: ui.row) -> None:
        """Make the page: the row of views, the view, and what stands in its place."""
        ui.page_title(f"{self.name} · {self._view.label}")
        with extra:
            self._status = ui.row().classes("items-center no-wrap")
        self._build_row(views)
        self._lost, self._lost_text = notice("link_off", "negative")
        self._note, self._note_text = notice("history", "grey-8")
        with ui.column().classes("w-full gap-4") as self._body:
            self._refresh = self._view.build(self)
        self._body.set_visibility(False)
        with ui.column().classes("w-full items-center") as self._instead:
            ui.spinner(size="lg").classes("mt-16")

    def _build_row(self, views: Sequence[View]) -> None:
        shown = [view for view in views if not view.hidden]
        with ui.row().classes("w-full items-center gap-2"):
            tabs = ui.tabs().classes("max-w-full min-w-0 grow")
            tabs.props(
                "dense no-caps inline-label align=left outside-arrows mobile-arrows "
                'active-class="text-cyan-800 dark:text-cyan-300" indicator-color=cyan-7'
            )
            tabs.value = self._view.path
            with tabs:
                for view in shown:
                    tab = ui.element("q-route-tab").mark(f"view-{view.path}")
                    tab.props["name"] = view.path
                    tab.props["label"] = view.label
                    tab.props["icon"] = view.icon
                    tab.props["href"] = self.link(view.path)
                    self._tabs[view.path] = view, tab
            if self._view.has_windows:
                ui.toggle(WINDOWS, value=self.window, on_change=self._take_window).props(
                    'dense no-caps unelevated padding="4px 10px" toggle-color=primary'
                ).mark("windows")
        addresses = [self.link(view.path) for view in shown[:9]]
        keys({str(n): partial(ui.navigate.to, to) for n, to in enumerate(addresses, 1)})

    async def _take_window(self, event: Any) -> None:
        self.window = str(event.value)
        ui.navigate.history.replace(
            address(self.name, self._view.path, **{**self.query, "window": self.window})
        )
        await self.tick()

    async def tick(self) -> None:
        """Bring everything up to date, or say why that cannot be done."""
        assert self._refresh is not None
        listed = await self._directory.find(self.name)
        try:
            self._source = await self._directory.source(self.name)
            self.facts = await self._source.get("topology")
            self._show_status(str(self.facts.get("status") or ""))
            self._show_tabs(str(self.facts.get("kind") or ""))
            self._say(listed, self._source)
            await self._refresh()
        except NotAnswered as error:
            self._show_problem(error, listed)
        except Exception as error:
            log.exception("the view %r of %s", self._view.label, self.name)
            self._show_problem(NotAnswered("failed", f"this is a bug: {told(error)}"), listed)
        else:
            self._answered_at = time.time()
            self._show_whole()

    def _show_tabs(self, kind: str) -> None:
        """Leave out views that mean nothing to a topology of this kind."""
        for view, tab in self._tabs.values():
            tab.set_visibility(not kind or kind in view.kinds or view is self._view)

    def _show_status(self, status: str) -> None:
        self._status.clear()
        with self._status:
            badge(status)

    def _say(self, listed: Listed | None, source: FactSource) -> None:
        text = "" if source.live or listed is None else unserved(listed)
        self._note.set_visibility(bool(text))
        self._note_text.text = text

    def _show_whole(self) -> None:
        self._lost.set_visibility(False)
        self._instead.set_visibility(False)
        self._body.set_visibility(True)
        self._body.classes(remove="opacity-50")

    def _show_problem(self, error: NotAnswered, listed: Listed | None) -> None:
        if self._answered_at is not None and error.why == "unreachable":
            # What was known stays to be read, and is seen to be old.
            self._lost_text.text = lost(error, self._answered_at)
            self._lost.set_visibility(True)
            self._body.classes("opacity-50")
            self._show_status("unreachable")
            return
        self._lost.set_visibility(False)
        self._body.set_visibility(False)
        self._instead.clear()
        with self._instead:
            instead_of_view(error, self.name, listed)
        self._instead.set_visibility(True)


def lost(error: NotAnswered, since: float) -> str:
    """Return what is said above a view whose driver does not answer any more."""
    at = time.strftime("%H:%M:%S", time.localtime(since))
    return (
        f"The driver does not answer: {error}.\nWhat is shown here is of {at}. It is asked again "
        "every two seconds; nothing that was committed is lost with a driver."
    )


def unserved(listed: Listed) -> str:
    """Return what is said above what is stored of a topology that is not served."""
    restart = "; ".join(listed.resumes)
    goes_on = f" A restart {restart}." if restart else ""
    if not listed.is_over:
        return (
            "It runs, but it is not served: only what it stores can be shown. Start it with "
            "--serve, or with --ui, to see more."
        )
    said = {
        "dead": f"Its driver ({listed.driver}) is dead: "
        "its process is gone, or its lease has expired.",
        "failed": "Its run has failed." + (f" {listed.error}" if listed.error else ""),
        "damaged": f"What is stored is damaged: {listed.remark}",
    }
    return f"{said.get(listed.status, 'It does not run.')}{goes_on}"


def instead_of_view(error: NotAnswered, name: str, listed: Listed | None) -> None:
    """Say in place of a view why there is none."""
    if listed is None:
        empty("search_off", f"There is no topology {name}", str(error))
    elif error.why == "absent":
        serve = ("To see it while it runs:", "waterspout run FILE --serve")
        empty("visibility_off", "Not known", str(error), () if listed.url else (serve,))
    elif error.why == "refused":
        empty("lock", "Not allowed", str(error))
    elif error.why == "unreachable":
        empty("link_off", "The driver does not answer", str(error))
    else:
        empty("error_outline", "That went wrong", str(error))
