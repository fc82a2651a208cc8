"""A topology that nobody serves: what its home or ZooKeeper holds of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from waterspout.coordination.commands.outside import Sight
from waterspout.coordination.commands.sights import facts
from waterspout.ui._sources import NotAnswered

__all__ = ["StoredSource"]


class StoredSource:
    """What is stored of a topology, in the shapes of the API."""

    live = False

    def __init__(self, name: str, where: str, look: Callable[[], Awaitable[Sight | None]]) -> None:
        self.name = name
        self.where = where
        self._look = look

    async def get(self, path: str, **query: object) -> Any:
        sight = await self._look()
        if sight is None:
            raise NotAnswered("absent", f"there is no topology {self.name!r} in {self.where}")
        if path == "topology":
            return {"name": self.name, "status": sight.status, "driver": sight.driver}
        if path == "snapshot" and sight.snapshot:
            return dict(sight.snapshot)
        if path == "resumes":
            return facts(sight)["resumes"]
        raise NotAnswered("absent", "only a run that is served tells that; none is to be reached")

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, token: str | None = None
    ) -> Any:
        raise NotAnswered("refused", "it is not served, so that nobody can be told to do it")

    async def close(self) -> None:
        """Hold nothing, so that there is nothing to give up."""
