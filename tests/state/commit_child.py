"""Commits three batches into a SQLite state in a process of its own, to be killed.

    python commit_child.py FOLDER KIND PATH

goes on from FOLDER/ledger, which stands for the coordination store: written before a head is
claimed and after a batch was written. Kill points come in the environment. With `--statements`
FOLDER/killed is copied to FOLDER/1, FOLDER/2 and so on, and a driver that goes on there is
killed before the first SQL statement that writes, the second and so on, until one driver
comes through batch 2.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

from tests.state_support import OWNER, Batches
from waterspout import faults
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.state._base import StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional._ledger import Ledger
from waterspout.trident import Sum

LAST_TXID = 3


def partials(kind: StateKind, txid: int, attempt: int) -> dict[str, int]:
    """Return what is in a batch: if opaque, other tuples in each attempt."""
    if kind is StateKind.TRANSACTIONAL:
        return {"every": 1, f"batch {txid}": txid}
    return {"every": 1 + attempt, f"batch {txid} attempt {attempt}": 1}


def load_ledger(folder: Path) -> Ledger:
    path = folder / "ledger"
    return Ledger.from_json(json.loads(path.read_text())) if path.exists() else Ledger(OWNER)


def save_ledger(folder: Path, ledger: Ledger) -> None:
    new = folder / "ledger.new"
    new.write_text(json.dumps(ledger.to_json()))
    new.replace(folder / "ledger")


def open_state(folder: Path, kind: StateKind) -> BatchedMap[Any, Any]:
    factory = SQLiteState(str(folder / "counts.db"), "word_counts", kind=kind)
    bound = factory.bind(Schema.parse("word string"), Schema.parse("count bigint"))
    return bound.make_state(Config(), 0, 1)


def commit_the_rest(
    folder: Path, kind: StateKind, path: str, *, epoch: int, kill_at: int = 0
) -> None:
    """Commit what is left; with `kill_at`, up to batch 2, and die before that statement of it."""
    ledger = load_ledger(folder)
    emitted = ledger.emitted.get(ledger.current)
    state = open_state(folder, kind)
    batches = Batches(
        state,
        epoch,
        Sum() if path == "combined" else None,
        ledger,
        -1 if emitted is None else emitted.attempt,
        lambda new: save_ledger(folder, new),
    )
    if ledger.committed_attempt is not None and not ledger.begun:
        batches.settle()
    while batches.txid <= LAST_TXID:
        txid = batches.txid
        if kill_at and txid == 2:
            kill_before_statement(state, kill_at)
        faults.point("head.before", txid=txid)
        attempt = batches.claim()
        faults.point("head.after", txid=txid)
        batches.write(partials(kind, txid, attempt))
        batches.mark()
        batches.settle()
        if kill_at and txid == 2:
            return
    state.close()


def kill_before_statement(state: BatchedMap[Any, Any], nth: int) -> None:
    statements = count(1)

    def trace(statement: str) -> None:
        # To be killed before a SELECT is the same as before the next statement that writes.
        if not statement.startswith("SELECT") and next(statements) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    state.read_head()
    state._backing._db.set_trace_callback(trace)


def kill_at_every_statement(folder: Path, kind: StateKind, path: str) -> None:
    for nth in count(1):
        copy = shutil.copytree(folder / "killed", folder / str(nth))
        child = os.fork()
        if child == 0:
            commit_the_rest(copy, kind, path, epoch=2, kill_at=nth)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    run = (Path(sys.argv[1]), StateKind(sys.argv[2]), sys.argv[3])
    if "--statements" in sys.argv:
        kill_at_every_statement(*run)
    else:
        commit_the_rest(*run, epoch=1)
