"""Recipes of states in files: what is sent to a task names the file that the driver means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["SentWithItsPath"]


class SentWithItsPath:
    """A recipe with a `path`, which may be relative or begin with `~`.

    A task runs in another folder than the driver, perhaps as another user. So the recipe is
    pickled with the whole path. A URI is whole; what `${NAME}` stands for, each takes from its own
    environment.
    """

    path: str | Path

    def __getstate__(self) -> dict[str, Any]:
        path = str(self.path)
        if "://" not in path and "${" not in path:
            path = str(Path(path).expanduser().absolute())
        return {**self.__dict__, "path": path}
