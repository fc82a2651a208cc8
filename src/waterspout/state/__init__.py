"""Exactly-once states: contracts, the three maps, and the wrappers around them.

Backends are imported by path (`waterspout.state.sqlite`), since each brings a dependency.
"""

from waterspout.serde import encode_key
from waterspout.state.base import (
    BackingMap,
    ComparingMap,
    FencedMap,
    MapState,
    Snapshottable,
    State,
    StateFactory,
    StateKind,
    ValueUpdater,
)
from waterspout.state.cache import CachedMap
from waterspout.state.head import Head, Stamp, check_stamp
from waterspout.state.kinds import (
    NonTransactionalMap,
    OpaqueMap,
    OpaqueValue,
    SnapshottableMap,
    TransactionalMap,
    TransactionalValue,
)
from waterspout.state.memory import MemoryMapState
from waterspout.state.records import decode_record, encode_record
from waterspout.state.store import StoreState

__all__ = [
    "BackingMap",
    "CachedMap",
    "ComparingMap",
    "FencedMap",
    "Head",
    "MapState",
    "MemoryMapState",
    "NonTransactionalMap",
    "OpaqueMap",
    "OpaqueValue",
    "Snapshottable",
    "SnapshottableMap",
    "Stamp",
    "State",
    "StateFactory",
    "StateKind",
    "StoreState",
    "TransactionalMap",
    "TransactionalValue",
    "ValueUpdater",
    "check_stamp",
    "decode_record",
    "encode_key",
    "encode_record",
]
