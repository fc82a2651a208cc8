"""The pages of the application and their addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fastapi import Request

from waterspout.ui._batches_view import BATCHES
from waterspout.ui._component_view import COMPONENT
from waterspout.ui._control_view import CONTROL
from waterspout.ui._directory import Directory
from waterspout.ui._drpc_view import DRPC
from waterspout.ui._errors_view import ERRORS
from waterspout.ui._frame import frame, theme_of
from waterspout.ui._letters_view import LETTERS
from waterspout.ui._library import ui
from waterspout.ui._list_page import build_list
from waterspout.ui._overview import OVERVIEW
from waterspout.ui._plain_views import CONFIGURATION, LOG
from waterspout.ui._pressure_view import PRESSURE
from waterspout.ui._states_view import STATES
from waterspout.ui._topology_page import TopologyPage, address
from waterspout.ui._views import View

__all__ = ["VIEWS", "add_pages"]

VIEWS: Sequence[View] = (
    *(OVERVIEW, BATCHES, PRESSURE, STATES, LETTERS, ERRORS, DRPC),
    *(CONTROL, CONFIGURATION, LOG, COMPONENT),
)

_EVERY_S = 2.0

_TELL_WHETHER_SEEN = """<script>
document.addEventListener("visibilitychange", () => emitEvent("waterspout-seen", !document.hidden));
</script>"""


def add_pages(
    directory: Directory, views: Sequence[View] = VIEWS, *, every_s: float = _EVERY_S
) -> None:
    """Make the pages known to NiceGUI."""
    by_path = {view.path: view for view in views}

    @ui.page("/")
    def _list(request: Request) -> None:
        frame((), theme_of(request.cookies))
        refresh = build_list(directory)
        _keep_up(refresh, every_s)

    @ui.page("/t/{name}")
    def _topology(request: Request, name: str) -> None:
        _view(request, name, "")

    @ui.page("/t/{name}/{view}")
    def _view(request: Request, name: str, view: str) -> None:
        extra = frame(((name, address(name)),), theme_of(request.cookies))
        chosen = by_path.get(view, by_path[""])
        page = TopologyPage(directory, name, chosen, dict(request.query_params))
        page.build(views, extra)
        _keep_up(page.tick, every_s)


def _keep_up(refresh: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Call it when the page is there and, while it is looked at, every two seconds."""
    timer = ui.timer(every_s, refresh)
    # A tab in the background asks for nothing.
    ui.on("waterspout-seen", lambda event: setattr(timer, "active", bool(event.args)))
    ui.add_head_html(_TELL_WHETHER_SEEN)
