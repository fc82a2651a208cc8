"""What the shell offers behind TAB: the topologies of a home, and the names of options.

Whatever goes wrong offers nothing: a shell has no place for an error while somebody types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from waterspout._config import Config
from waterspout.coordination.factory import known_topologies

__all__ = ["complete_setting", "topologies_of"]

_Reader = Callable[[Path | None, Path | None, Sequence[str] | None], Config]
_Completer = Callable[[typer.Context, str], list[str]]


def topologies_of(read: _Reader) -> _Completer:
    """Return what completes the name of a topology; `read` makes a Config of a command's options.

    In ZooKeeper nobody is asked: the shell would stand still for as long as it does not answer.
    """

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        given = context.params
        try:
            conf = read(given.get("home"), given.get("config"), given.get("setting"))
            names = known_topologies(conf) if conf.zookeeper_servers is None else []
        except Exception:
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return the options of a run that begin so, as `name=`, with what each is."""
    rows = Config.describe()
    return [(f"{row.name}=", row.doc) for row in rows if f"{row.name}=".startswith(incomplete)]
