"""A run in a notebook, shown as it goes on."""

from __future__ import annotations

import logging
import threading
from typing import Any

from waterspout.coordination.events import Event, RunEnded
from waterspout.coordination.run import Run
from waterspout.errors import ConfigError

__all__ = ["ProgressWidget", "show_progress"]

log = logging.getLogger(__name__)


def show_progress(run: Run, every_secs: float = 1.0) -> ProgressWidget:
    """Show a run below this cell of a notebook, and keep it up to date until it has ended.

    What is shown is what the run itself looks like as the value of a cell. `stop` of what this
    returns ends it earlier.
    """
    try:
        from IPython.display import HTML, display
    except ImportError as error:
        raise ConfigError(
            "show_progress is for notebooks, and IPython is not installed; elsewhere "
            "`waterspout run` shows the progress, and run.subscribe tells it"
        ) from error
    handle = display(HTML(run._repr_html_()), display_id=True)
    if handle is None:
        raise ConfigError("show_progress is for notebooks; here nothing can be displayed")
    return ProgressWidget(run, handle, HTML, every_secs)


class ProgressWidget:
    """Redraws what is shown of a run, from a thread of its own."""

    def __init__(self, run: Run, handle: Any, html: Any, every_secs: float) -> None:
        self._run = run
        self._handle = handle
        self._html = html
        self._every_s = every_secs
        self._over = threading.Event()
        self._unsubscribe = run.subscribe(self._hear)
        if run.status in ("stopped", "failed"):
            self._over.set()
        self._thread = threading.Thread(
            target=self._redraw, name=f"waterspout-widget-{run.name}", daemon=True
        )
        self._thread.start()

    def stop(self, timeout: float | None = 10.0) -> None:
        """Leave what is shown as it is."""
        self._over.set()
        self._thread.join(timeout)

    def _hear(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self._over.set()

    def _redraw(self) -> None:
        while True:
            over = self._over.wait(self._every_s)
            try:
                self._handle.update(self._html(self._run._repr_html_()))
            except Exception:
                log.exception("run %s is not shown any more", self._run.name)
                break
            if over:
                break
        self._unsubscribe()
