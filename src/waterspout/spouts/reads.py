"""Descriptions of what to read, for any engine to carry out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from waterspout.schema import Schema

__all__ = ["FilesRead", "RangeRead", "Read", "RowsRead"]


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows that the driver holds."""

    schema: Schema
    rows: Sequence[Sequence[Any]]

    @property
    def is_small(self) -> bool:
        """Whether it is safe to expect a small result."""
        return len(self.rows) <= 100_000


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The numbers from `start` to `end` (exclusive), each with a time `1/per_second` apart."""

    schema: Schema
    start: int
    end: int
    epoch_s: float
    per_second: float

    @property
    def is_small(self) -> bool:
        """Whether it is safe to expect a small result."""
        return self.end - self.start <= 100_000


@dataclass(frozen=True, slots=True)
class FilesRead:
    """Files in a format that Spark reads."""

    schema: Schema
    format: str
    paths: Sequence[str]
    size_bytes: int
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        """Whether it is safe to expect a small result."""
        return self.size_bytes <= 16_000_000


Read = RowsRead | RangeRead | FilesRead
