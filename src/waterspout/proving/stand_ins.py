"""What stands in for the stores of a topology while it is proved: SQLite, of the same kind.

Nothing of the user's is written. Kind, fields, partitions, and whether tasks write or the driver,
stay as they are: those decide what a crash can do. A state of a class that is not known here can
bring a stand-in of its own: a method `stand_in(folder)` that returns a recipe which keeps
everything in that folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory, StateKind, require_factory
from waterspout.state._memory import MemoryMapState, MemoryRowsState
from waterspout.state._rows import RowsStoreState
from waterspout.state._store import ANY_VALUE, StoreState
from waterspout.state.sqlite import SQLiteState
from waterspout.state.sqlite._rows import SQLiteRowsState
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology

__all__ = ["Stateful", "described", "replaced", "stand_in", "written_states"]

Stateful = TridentTopology | TransactionalTopology

_FILE = "states.db"


@dataclass(frozen=True)
class _PinnedState(SQLiteState):
    """In place of a store that cannot take a lost attempt back: batches are pinned for it."""

    pins_batches = True


@dataclass(frozen=True)
class _PinnedRows(SQLiteRowsState):
    """The same, of rows that are appended."""

    pins_batches = True


def stand_in(factory: StateFactory, name: str, folder: Path) -> StateFactory:
    """Return the recipe that stands in for a state, in a table of its name in this folder."""
    own = getattr(factory, "stand_in", None)
    if own is not None:
        made = own(folder)
        require_factory(made, f"stand_in of {name}")
        assert isinstance(made, StateFactory)
        return made
    path = str(folder / _FILE)
    pinned = factory.pins_batches
    maps, rows = (_PinnedState, _PinnedRows) if pinned else (SQLiteState, SQLiteRowsState)
    match factory:
        case MemoryMapState(types=types):
            keys, values = (None, ANY_VALUE) if types is None else (types.keys, types.values)
            return maps(path, name, kind=factory.kind, keys=keys, values=values)
        case StoreState():
            return maps(
                path,
                name,
                kind=factory.kind,
                keys=factory.keys,
                values=factory.values,
                cache=factory.cache,
                driver_only=factory.driver_only,
            )
        case RowsStoreState(keys=()):
            where: Any = {"path": path, "table": name, "driver_only": factory.driver_only}
            return rows(**where, rows=factory.rows)
        case RowsStoreState():
            upserted = maps(path, name, driver_only=factory.driver_only)
            return upserted.bind_rows(factory.rows, factory.keys, factory.order_by)
    raise TopologyError(
        f"{name} cannot be proved: it is kept by {type(factory).__name__}, a class of your own, "
        "for which nothing can stand in. To prove the topology, give that class a method "
        "stand_in(self, folder) that returns a recipe which keeps everything below that folder, "
        "or try the topology with a state of waterspout's, such as SQLiteState or MemoryMapState."
    )


def written_states(topology: Stateful) -> dict[str, tuple[str, StateFactory]]:
    """Return, by the names of the states that a topology writes, the table and the recipe of each.

    The table is that of its stand-in. What the topology keeps for itself (windows, keys that have
    passed, letters) is in its home already.
    """
    if isinstance(topology, TransactionalTopology):
        given = {name: spec.factory for name, spec in topology.states.items()}
    else:
        given = {
            name: spec.factory
            for name, spec in topology.given_states().items()
            if not spec.static and not hasattr(spec.factory, "at")
        }
    return {name: (f"s_{n}", factory) for n, (name, factory) in enumerate(given.items(), 1)}


def replaced(topology: Stateful, folder: Path) -> Stateful:
    """Return the topology with its stand-ins; one of Trident is changed in place.

    A static state is only read: it stays, unless it is one that is also written here.
    """
    written = written_states(topology)
    made = {name: stand_in(factory, table, folder) for name, (table, factory) in written.items()}
    if isinstance(topology, TransactionalTopology):
        states = {n: replace(s, factory=made[n]) for n, s in topology.states.items()}
        return replace(topology, states=states)
    at = {f.location(): made[name] for name, (_, f) in written.items() if f.location() is not None}
    for name, spec in topology.given_states().items():
        factory = at.get(spec.factory.location()) if spec.static else made.get(name)
        if factory is not None:
            topology.replace_state(name, factory)
    return topology


def described(factory: StateFactory) -> str:
    """Return class and kind of a recipe: `PostgresState, opaque`."""
    kind = factory.kind.value if isinstance(factory.kind, StateKind) else "of its own kind"
    rows = " rows" if factory.keeps_rows else ""
    return f"{_names.get(type(factory), type(factory).__name__)}, {kind}{rows}"


# What only stand-ins are, or made by a recipe that the user knows by another name.
_names = {
    SQLiteRowsState: "SQLite",
    MemoryRowsState: "MemoryMapState",
    _PinnedState: "SQLite",
    _PinnedRows: "SQLite",
}
