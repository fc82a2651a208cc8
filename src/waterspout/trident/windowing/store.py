"""Where a stream keeps what it needs for itself: a given store, or the topology's own.

That are the tuples of windows, and the keys that `deduplicate` has let pass. The topology's own
store is a file in its folder, or this process.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory, StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._memory import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.trident.windowing.buffer import KEYS, VALUES

__all__ = ["FILE_NAME", "OwnStore", "WindowsFile", "require_opaque"]

FILE_NAME = "windows.db"


@dataclass(frozen=True)
class WindowsFile(SQLiteState):
    """A table of the file in the topology's folder, which is made when the run starts."""

    def check(self) -> None:
        """See that what is there is ours; the folder is made when the run starts."""
        if Path(self.path).parent.is_dir():
            super().check()


@dataclass(frozen=True)
class OwnStore(StateFactory):
    """The topology's own store: a table of `windows.db` in its folder.

    `at` gives it the folder, when a plan is made that is to run. Without a folder, as in tests of
    a topology that keep everything else in memory, it lives in this process.
    """

    table: str
    keys: Schema = KEYS
    values: Schema = VALUES
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    kind = StateKind.OPAQUE
    driver_only = True
    volatile = True
    fenced = True

    def at(self, folder: Path) -> StateFactory:
        """Return the store in a topology's folder."""
        return WindowsFile.opaque(folder / FILE_NAME, self.table).bind(self.keys, self.values)

    def make_state(
        self, conf: Config, partition_index: int, num_partitions: int
    ) -> BatchedMap[Any, Any]:
        return self._memory.make_state(conf, partition_index, num_partitions)

    def identity(self) -> Mapping[str, Any]:
        return {"backend": "windows", "table": self.table}

    def location(self) -> str:
        return self._memory.location()

    @property
    def _memory(self) -> MemoryMapState:
        return MemoryMapState(id=f"windows-{self.id}-{self.table}")


def require_opaque(store: Any, where: str, what: str) -> StateFactory:
    """Refuse a store that cannot give back what was before a lost attempt."""
    if not isinstance(store, StateFactory):
        raise TopologyError(
            f"{where} keeps {what} in a state; give it the recipe of an opaque one, such as "
            f"SQLiteState.opaque(path, table=...), not {store!r}"
        )
    if store.kind is not StateKind.OPAQUE:
        kind = "of your own kind" if store.kind is None else store.kind.value
        raise TopologyError(
            f"{where} needs an opaque store, and this one is {kind}. A batch that is replayed "
            f"must find {what} as the batch before it left them, and only an opaque state still "
            "has that. Use .opaque(...), or leave the store out."
        )
    return store
