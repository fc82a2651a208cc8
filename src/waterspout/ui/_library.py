"""NiceGUI, which only this package imports, or the line that installs it."""

from __future__ import annotations

from waterspout.errors import MissingDependencyError

try:
    from nicegui import app as nicegui_app
    from nicegui import context, events, ui
except ImportError as missing:
    raise MissingDependencyError("nicegui", "ui") from missing

__all__ = ["context", "events", "nicegui_app", "ui"]
