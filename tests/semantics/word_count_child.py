"""A word count in a process of its own, to be killed: `-m tests.semantics.word_count_child FOLDER`.

Reads FOLDER/in, counts into FOLDER/counts.db, until there is nothing more. Kill points come
in the environment. With FOLDER/kill-in-processing the driver is killed from within a task.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.spark.killing import session
from waterspout import Config, submit
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Function, TridentTopology


class Words(Function):
    """Splits; on its way it may kill the driver, once."""

    def __init__(self, token: Path, driver: int) -> None:
        self._token = str(token)
        self._driver = driver

    def execute(self, tuple, collector):
        if os.path.exists(self._token):
            os.unlink(self._token)
            os.kill(self._driver, signal.SIGKILL)
        for word in tuple["value"].split():
            collector.emit((word,))

    def output_types(self, inputs):
        return ["string"]


def main(folder: Path) -> None:
    topology = TridentTopology("killed")
    words = topology.new_stream("lines", FileSpout(folder / "in", max_files=1)).each(
        "value", Words(folder / "kill-in-processing", os.getpid()), out="word"
    )
    state = SQLiteState.opaque(folder / "counts.db", table="word_counts")
    words.group_by("word").persistent_aggregate(state, Count(), out="count")
    total = SQLiteState.transactional(folder / "counts.db", table="total")
    words.persistent_aggregate(total, Count(), out="count")
    config = Config(home=str(folder / "home"), max_spout_pending=2, lease_secs=2)
    run = submit(topology, session(folder / "spark.log"), config)
    run.process_all_available(timeout=100)
    run.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
