"""The folder under which topologies keep what survives their drivers."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["why_not_writable"]


def why_not_writable(folder: Path) -> str | None:
    """Return why a folder could not be made or written to; None if it could."""
    place = folder.expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is not a folder"
    return None if os.access(place, os.W_OK | os.X_OK) else f"{place} is read-only"
