"""`LinesSpout`: lines appended to text files, each tracked as a message of its own.

A folder is the log, a file a partition of it, and the position of a line's first byte its offset.
The driver looks at sizes only; lines are read on the executors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from waterspout.errors import SourceError, TopologyError
from waterspout.topology._component import LogSpout

__all__ = ["LinesSpout"]

_GUESS_BYTES = 80
_SAMPLE_BYTES = 64 * 1024


class LinesSpout(LogSpout):
    """Every line of every file of a folder, in the order of the file, as one field.

    Files may grow while the topology runs, by whole lines: what comes after the last line break
    is not read yet. New files are found. A file must not shrink. Every executor must see the
    folder under the same path.
    """

    def __init__(self, folder: str | os.PathLike[str], *, field: str = "line") -> None:
        self._folder = os.path.abspath(os.fspath(folder))
        self.output_fields = (field,)
        if not isinstance(field, str) or not field:
            raise TopologyError(f"the field of LinesSpout is a name, not {field!r}")
        self._line_bytes: dict[str, float] = {}

    def partitions(self) -> Sequence[str]:
        """Return the names of the files; those that begin with "." or "_" are not for us."""
        try:
            with os.scandir(self._folder) as entries:
                return sorted(e.name for e in entries if e.is_file() and e.name[0] not in "._")
        except OSError as error:
            raise SourceError(
                f"the folder {self._folder} cannot be listed: {error.strerror or error}"
            ) from error

    def end(self, partition: int | str) -> int:
        """Return the position after the last line break."""
        path = self._path(partition)
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                while size:
                    start = max(0, size - _SAMPLE_BYTES)
                    file.seek(start)
                    found = file.read(size - start).rfind(b"\n")
                    if found >= 0:
                        return start + found + 1
                    size = start
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
        return 0

    def advance(self, partition: int | str, start: int, messages: int) -> int:
        """Guess from the length of the lines that come next."""
        name = str(partition)
        if name not in self._line_bytes:
            with self._path(partition).open("rb") as file:
                file.seek(start)
                sample = file.read(_SAMPLE_BYTES)
            lines = sample.count(b"\n")
            self._line_bytes[name] = len(sample) / lines if lines else _GUESS_BYTES
        return start + max(1, int(messages * self._line_bytes[name]))

    def read(self, partition: int | str, start: int, end: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the lines that begin in the range; the last may end behind it."""
        with self._path(partition).open("rb") as file:
            offset = start
            if start:
                # A line that begins before the range belongs to the one before.
                file.seek(start - 1)
                offset = start - 1 + len(file.readline())
            while offset < end:
                line = file.readline()
                if not line.endswith(b"\n"):
                    return
                yield offset, [line.rstrip(b"\r\n").decode("utf-8", "replace")]
                offset += len(line)

    def _path(self, partition: int | str) -> Path:
        return Path(self._folder) / str(partition)
