"""The ways in which a batch's rows go into a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from waterspout.trident.operations.contracts import (
    CombinerAggregator,
    ReducerAggregator,
    StateUpdater,
)

__all__ = ["CombineInto", "ReduceInto", "UpdateWith", "Updating"]


@dataclass(frozen=True, slots=True)
class CombineInto:
    """Each row is a key and a partial result (of several columns, maybe), one row per key."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    operation: CombinerAggregator[Any]


@dataclass(frozen=True, slots=True)
class ReduceInto:
    """Each row is a key and a tuple to fold into the key's value."""

    keys: tuple[str, ...]
    fields: tuple[str, ...]
    value: str
    operation: ReducerAggregator[Any]


@dataclass(frozen=True, slots=True)
class UpdateWith:
    """The user's own way to update a state, be it a map or of the user's own kind."""

    fields: tuple[str, ...]
    operation: StateUpdater[Any]
    keys: tuple[str, ...] | None = None
    """The fields that are the key, if the operation says so: it touches keys of its tuples only."""

    every_batch: bool = False
    """Whether it is called for partitions, and batches, without tuples, too."""

    by_partition: bool = False
    """Whether its keys hold the number of the partition: then no other partition has them."""


Updating = CombineInto | ReduceInto | UpdateWith
