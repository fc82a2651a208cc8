"""Exactly-once states: contracts, the three maps, and the wrappers around them.

Backends are imported by path (`waterspout.state.sqlite`), since each brings a dependency.
"""

# fmt: off
# isort: off
from waterspout._serde import encode_key
from waterspout.state._base import (
    BackingMap, FencedMap, MapState, Risk, Snapshottable, State, StateFactory, StateKind,
    ValueUpdater,
)
from waterspout.state._cache import CachedMap
from waterspout.state._comparing import ComparingMap
from waterspout.state._head import Head, Stamp, check_stamp, takes_over
from waterspout.state._kinds import (
    NonTransactionalMap, OpaqueMap, OpaqueValue, SnapshottableMap, TransactionalMap,
    TransactionalValue,
)
from waterspout.state._memory import MemoryMapState
from waterspout.state._records import decode_record, encode_record
from waterspout.state._rows import RowsState, RowsStore, RowsStoreState
from waterspout.state._store import StoreState

__all__ = [
    "BackingMap", "CachedMap", "ComparingMap", "FencedMap", "Head", "MapState", "MemoryMapState",
    "NonTransactionalMap", "OpaqueMap", "OpaqueValue", "Risk", "RowsState", "RowsStore",
    "RowsStoreState", "Snapshottable", "SnapshottableMap", "Stamp", "State", "StateFactory",
    "StateKind", "StoreState", "TransactionalMap", "TransactionalValue", "ValueUpdater",
    "check_stamp", "decode_record", "encode_key", "encode_record", "takes_over",
]
