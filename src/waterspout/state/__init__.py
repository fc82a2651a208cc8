"""Exactly-once states: contracts, the three maps, and the wrappers around them.

Backends are imported by path (`waterspout.state.sqlite`), since each brings a dependency.
"""

from waterspout.state.base import (
    BackingMap,
    MapState,
    Snapshottable,
    State,
    StateFactory,
    StateKind,
    ValueUpdater,
)
from waterspout.state.cache import CachedMap
from waterspout.state.memory import MemoryMapState
from waterspout.state.non_transactional import NonTransactionalMap
from waterspout.state.opaque import OpaqueMap, OpaqueValue
from waterspout.state.snapshot import SnapshottableMap
from waterspout.state.transactional import TransactionalMap, TransactionalValue

__all__ = [
    "BackingMap",
    "CachedMap",
    "MapState",
    "MemoryMapState",
    "NonTransactionalMap",
    "OpaqueMap",
    "OpaqueValue",
    "Snapshottable",
    "SnapshottableMap",
    "State",
    "StateFactory",
    "StateKind",
    "TransactionalMap",
    "TransactionalValue",
    "ValueUpdater",
]
