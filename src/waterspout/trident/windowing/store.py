"""Where windows are kept if no store is given: a file of the topology, or this process."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout.state._base import StateFactory, StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._memory import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.trident.windowing.buffer import KEYS, VALUES

__all__ = ["FILE_NAME", "OwnStore", "WindowsFile"]

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
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    kind = StateKind.OPAQUE
    driver_only = True
    volatile = True
    fenced = True

    def at(self, folder: Path) -> StateFactory:
        """Return the store in a topology's folder."""
        return WindowsFile.opaque(folder / FILE_NAME, self.table).bind(KEYS, VALUES)

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
