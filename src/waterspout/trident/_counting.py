"""What is counted into a state, or written to it as rows, apart from any topology."""

from __future__ import annotations

from dataclasses import dataclass

from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory, StateKind, require_factory
from waterspout.trident.operations.aggregators import Columns
from waterspout.trident.operations.row_updaters import RowUpdater

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """A state and what is counted into it; or how rows are written to it as they are."""

    factory: StateFactory
    keys: tuple[str, ...]
    columns: Columns | RowUpdater

    def __post_init__(self) -> None:
        require_factory(self.factory)
        if self.factory.kind not in (StateKind.OPAQUE, StateKind.TRANSACTIONAL):
            raise TopologyError(
                f"exactly_once needs an opaque or a transactional state; {self.factory!r} would "
                "count a repeated batch twice. Use .opaque(...)."
            )
