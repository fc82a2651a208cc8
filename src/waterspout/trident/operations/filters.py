"""Filters that come with Trident."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._tuples import TridentTuple
from waterspout.errors import TopologyError
from waterspout.trident.operations.contracts import Filter, OperationContext

__all__ = ["Debug", "Equals", "FilterNull", "Negate", "TrueFilter"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Debug(Filter):
    """Print every tuple (on the executor) and keep it."""

    name: str = "debug"
    use_logger: bool = False

    def is_keep(self, tuple: TridentTuple) -> bool:
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
        return None not in tuple.values


@dataclass(frozen=True)
class Equals(Filter):
    """Keep tuples whose fields are all equal; nulls are equal to each other."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        return all(value == tuple[0] for value in tuple)


@dataclass(frozen=True)
class Negate(Filter):
    """Keep what another filter drops."""

    filter: Filter

    def __post_init__(self) -> None:
        if not isinstance(self.filter, Filter):
            raise TopologyError(f"Negate needs a Filter, not {self.filter!r}")

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether the other filter is."""
        return self.filter.deterministic

    def _check_use(self, inputs: Schema, where: str) -> None:
        self.filter._check_use(inputs, where)

    def prepare(self, conf: Config, context: OperationContext) -> None:
        self.filter.prepare(conf, context)

    def cleanup(self) -> None:
        self.filter.cleanup()

    def is_keep(self, tuple: TridentTuple) -> bool:
        return not self.filter.is_keep(tuple)


@dataclass(frozen=True)
class TrueFilter(Filter):
    """Keep everything."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        return True
