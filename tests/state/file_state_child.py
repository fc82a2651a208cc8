"""Commits batches into a file state in a process of its own, to be killed.

    python -m tests.state.file_state_child FOLDER EPOCH LAST_TXID

goes on from FOLDER/ledger, which stands for the coordination store: written before a head is
claimed and after a batch was written. Each batch adds 1 and something that tells its attempt.
With `--every-operation` FOLDER/killed is copied to FOLDER/1, FOLDER/2 and so on, and a driver
that goes on there is killed before the first operation on a file, the second and so on (a write
is left half done), until one driver comes through.
"""

from __future__ import annotations

import builtins
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout.state._batched import BatchedMap
from waterspout.state.files import FileState
from waterspout.state.files import _locations as file_locations
from waterspout.testing._batches import OWNER, Batches
from waterspout.transactional._ledger import Ledger

SNAPSHOT_EVERY = 2  # so that three batches pass through deltas, a merge and a snapshot


def partials(txid: int, attempt: int) -> dict[str, int]:
    """Return what is in a batch: other tuples in each attempt."""
    return {"every": 1 + attempt, f"batch {txid} attempt {attempt}": 1}


def load_ledger(folder: Path) -> Ledger:
    path = folder / "ledger"
    return Ledger.from_json(json.loads(path.read_text())) if path.exists() else Ledger(OWNER)


def save_ledger(folder: Path, ledger: Ledger) -> None:
    new = folder / "ledger.new"
    new.write_text(json.dumps(ledger.to_json()))
    new.replace(folder / "ledger")


def open_state(folder: Path) -> BatchedMap[Any, Any]:
    state = FileState.opaque(folder / "counts", snapshot_every=SNAPSHOT_EVERY)
    return state.make_state(Config(), 0, 1)


def commit_the_rest(folder: Path, epoch: int, last_txid: int) -> Batches:
    ledger = load_ledger(folder)
    emitted = ledger.emitted.get(ledger.current)
    batches = Batches(
        open_state(folder),
        epoch,
        ledger=ledger,
        attempt=-1 if emitted is None else emitted.attempt,
        save=lambda new: save_ledger(folder, new),
    )
    if ledger.committed_attempt is not None and not ledger.begun:
        batches.settle()
    while batches.txid <= last_txid:
        attempt = batches.claim()
        batches.write(partials(batches.txid, attempt))
        batches.mark()
        batches.settle()
    return batches


class HalfWritten:
    """A file that is left half written when the process is killed in it."""

    def __init__(self, file: Any, kills: Callable[[], bool]) -> None:
        self._file, self._kills = file, kills

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fileno(self) -> int:
        return int(self._file.fileno())

    def read(self) -> bytes:
        return bytes(self._file.read())

    def write(self, content: bytes) -> int:
        if self._kills():
            self._file.write(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return int(self._file.write(content))


def kill_before_operation(nth: int) -> None:
    operations = count(1)

    def kills() -> bool:
        return next(operations) == nth

    def killing(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if kills():
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*args, **options)

        return run

    for name in ("fsync", "link", "unlink", "mkdir", "rename", "replace"):
        setattr(os, name, killing(getattr(os, name)))
    opening = killing(builtins.open)
    file_locations.open = lambda *args, **options: HalfWritten(opening(*args, **options), kills)


def kill_at_every_operation(folder: Path, epoch: int, last_txid: int) -> None:
    for nth in count(1):
        copy = shutil.copytree(folder / "killed", folder / str(nth))
        child = os.fork()
        if child == 0:
            kill_before_operation(nth)
            commit_the_rest(copy, epoch, last_txid)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    if "--every-operation" in sys.argv:
        kill_at_every_operation(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
        sys.exit()
    commit_the_rest(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).state.close()
    print("done")
