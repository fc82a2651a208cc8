"""States of rows in Delta Lake tables."""

from waterspout.state.delta._state import DeltaState

__all__ = ["DeltaState"]
