"""The note that the last batch is settled, in a file beside the embedded ledger.

The ledger says so itself, but only from its next save on: a save of its own would be one more
durable write a batch. This file is written without waiting for the disk. It outlives the process at
once; a power cut may take it back, and then nothing is known, as before.

It names the batch, the attempt and the ledger, so an old one says nothing of a later batch. Whoever
takes the lease moves it into the ledger and empties the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from waterspout._serde import checksum, encode_value
from waterspout.transactional._ledger import Ledger

__all__ = ["SettledNote"]

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_BYTES = 4096


class SettledNote:
    """One line in one file, written in place; the caller sees to errors of the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def write(self, ledger: Ledger) -> None:
        """Note that the last committed batch of this ledger is settled."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600)
        # What is left of a longer line stands behind the end of this one.
        os.pwrite(self._file, _line(ledger), 0)

    def added_to(self, ledger: Ledger) -> Ledger:
        """Return the ledger with the note, if it is about its last batch."""
        if ledger.settled or ledger.committed_attempt is None:
            return ledger
        try:
            file = os.open(self._path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return ledger
        try:
            found = os.read(file, _MAX_BYTES)
        finally:
            os.close(file)
        return ledger.settle() if found.startswith(_line(ledger)) else ledger

    def clear(self) -> None:
        """Forget the note: the ledger has it now, or it is about another batch."""
        if self._path.exists():
            os.close(os.open(self._path, os.O_WRONLY | os.O_TRUNC | _FLAGS))

    def close(self) -> None:
        """Close the file; the next note opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _line(ledger: Ledger) -> bytes:
    named = encode_value([ledger.history, ledger.current - 1, ledger.committed_attempt])
    return f"{named} {checksum(named)}\n".encode()
