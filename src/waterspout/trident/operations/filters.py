"""Filters that come with Trident."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from waterspout.trident.operations.contracts import Filter
from waterspout.tuples import TridentTuple

__all__ = ["Debug", "Equals", "FilterNull", "Negate"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Debug(Filter):
    """Print every tuple (on the executor) and keep it."""

    name: str = "debug"
    use_logger: bool = False

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Print and keep."""
        line = f"DEBUG({self.name}): {list(tuple)}"
        if self.use_logger:
            log.info(line)
        else:
            print(line, flush=True)
        return True


@dataclass(frozen=True)
class FilterNull(Filter):
    """Drop tuples with a null among the fields."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Keep if no value is None."""
        return None not in tuple.values


@dataclass(frozen=True)
class Equals(Filter):
    """Keep tuples whose fields are all equal; nulls are equal to each other."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Compare each value with the first."""
        return all(value == tuple[0] for value in tuple)


@dataclass(frozen=True)
class Negate(Filter):
    """Keep what another filter drops."""

    filter: Filter

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Ask the other filter."""
        return not self.filter.is_keep(tuple)
