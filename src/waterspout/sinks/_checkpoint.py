"""Read a checkpoint of Structured Streaming: the query, its last batch, the files it has read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from waterspout.errors import SourceError

__all__ = ["Checkpoint", "read_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stopped query: its id, its last committed batch, and the positions of its sources."""

    path: Path
    query: str
    last_batch: int
    positions: tuple[Any, ...]

    def files(self) -> dict[str, int]:
        """Return the files that the query's one source has read, each with its batch."""
        if len(self.positions) != 1 or "logOffset" not in (self.positions[0] or {}):
            raise SourceError(
                f"the query of {self.path} does not read one directory of files, and only such a "
                "query can be adopted"
            )
        end = self.positions[0]["logOffset"]
        found: dict[str, int] = {}
        for log in _numbered(self.path / "sources" / "0"):
            for line in _lines(log)[1:]:
                entry = json.loads(line)
                if entry["batchId"] <= end:
                    found[_local(entry["path"])] = entry["batchId"]
        return found


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint; refuse one whose last batch Spark has not finished."""
    folder = Path(path)
    try:
        query = json.loads((folder / "metadata").read_text())["id"]
        planned = max(int(p.name) for p in _numbered(folder / "offsets"))
        done = max((int(p.name) for p in _numbered(folder / "commits")), default=-1)
        _, _, *positions = _lines(folder / "offsets" / str(planned))
    except (OSError, ValueError, KeyError) as error:
        raise SourceError(
            f"{folder} is not the checkpoint of a streaming query: {error}"
        ) from error
    if planned != done:
        raise SourceError(
            f"the query of {folder} has begun batch {planned} and not finished it. Start the query "
            "once more, let it come to rest, and stop it."
        )
    parsed = tuple(None if text == "-" else json.loads(text) for text in positions)
    return Checkpoint(folder, query, done, parsed)


def _numbered(folder: Path) -> Iterator[Path]:
    """Yield the logs of a folder; a compacted log contains all those before it."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.split(".")[0].isdigit() and path.suffix in ("", ".compact"):
            yield path


def _lines(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    if not lines or lines[0] != "v1":
        raise SourceError(
            f"{path} has the format {lines[:1]}, and only v1 can be read. Was the checkpoint "
            "written by a newer Spark?"
        )
    return lines


def _local(address: str) -> str:
    parts = urlparse(address)
    if parts.scheme not in ("", "file"):
        raise SourceError(f"{address} is not a local file, and FileSpout reads only those")
    return os.path.abspath(unquote(parts.path))
