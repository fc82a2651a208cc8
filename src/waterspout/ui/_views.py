"""What a view of a topology is, and which there are.

A view is a module with one `View`: a path, a label, and a function that builds its elements and
returns how they are brought up to date. It is called at once, and then by the one timer of the page
while somebody looks at it. What it raises as `NotAnswered` the page shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from waterspout.ui._sources import FactSource

__all__ = ["WINDOWS", "Page", "Refresh", "View"]

Refresh = Callable[[], Awaitable[None]]

WINDOWS = {"600": "10 min", "10800": "3 h", "86400": "1 d", "all": "all time"}


class Page(Protocol):
    """The page of a topology, as a view sees it."""

    token: str | None
    """The token that the reader gave last, for what changes something."""

    @property
    def name(self) -> str:
        """The topology."""

    @property
    def source(self) -> FactSource:
        """Whom to ask now; another after a run has begun or ended."""

    @property
    def window(self) -> str:
        """The span of time that counts are wanted for, a key of WINDOWS."""

    @property
    def query(self) -> Mapping[str, str]:
        """What stands behind the question mark in the address."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the source answered last to `topology`: name, kind, status, graph, states."""

    def link(self, view: str, **query: str) -> str:
        """Return the address of another view of this topology."""


@dataclass(frozen=True, slots=True)
class View:
    """A view of a topology."""

    path: str
    """What stands in the address; empty for the first."""
    label: str
    icon: str
    build: Callable[[Page], Refresh]
    """Make the elements in the current slot; return what brings them up to date."""
    has_windows: bool = False
    """Whether the switch of windows means something to it."""
    hidden: bool = False
    """Reached by links only; not in the row of views."""
    kinds: tuple[str, ...] = ("core", "transactional", "trident")
    """The kinds of topology that have it."""
