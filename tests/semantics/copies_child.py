"""Counts into a state of which a copy is taken in the middle of batch 2, and is then killed.

    python copies_child.py FOLDER POINT TXID

The state is in FOLDER/s.db, the copy in FOLDER/copy.db, the ledger in FOLDER/home. The process is
killed where it first passes the kill point in that batch; with "never" it runs to the end.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path

from waterspout import Config, faults
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology

WORDS = [f"w{i}" for i in range(8)]
BATCHES = 3


def topology_of(folder: Path) -> TridentTopology:
    """Count eight words a batch, in four partitions, and all together."""
    topology = TridentTopology("copied")
    words = topology.new_stream("words", FixedBatchSpout("word string", 8, WORDS * BATCHES))
    counts = SQLiteState.opaque(folder / "s.db", table="words")
    words.group_by("word").persistent_aggregate(counts, Count(), out="n").parallelism_hint(4)
    total = SQLiteState.opaque(folder / "total.db", table="total")
    words.persistent_aggregate(total, Count(), out="n")
    return topology


def run(folder: Path) -> None:
    """Run until there is nothing more."""
    it = LocalRun(topology_of(folder), Config(), store=EmbeddedStore(folder / "home", "copied"))
    try:
        it.finish()
    finally:
        it.close()


class CopyAndKill:
    """A hook for `faults`: copies after the second write of batch 2, kills where it is told."""

    def __init__(self, folder: Path, point: str, txid: int) -> None:
        self._folder, self._at = folder, (point, txid)
        self._writes = 0

    def __call__(self, name, context):
        if (name, context.get("txid")) == ("write.after", 2):
            self._writes += 1
            if self._writes == 2:
                copy(self._folder / "s.db", self._folder / "copy.db")
        if (name, context.get("txid")) == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def copy(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as there, sqlite3.connect(target) as here:
        there.backup(here)


if __name__ == "__main__":
    folder, point, txid = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    faults.install(CopyAndKill(folder, point, txid))
    run(folder)
