"""The process that the demo kills: a word count that tells its progress as lines of JSON.

    python -m waterspout.cli.demo_child FOLDER

It knows nothing of the demo: run again after its death, the same command goes on.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from waterspout.cli.demo_layout import (
    DATABASE,
    HOME,
    IN_FLIGHT_MAX,
    LOG,
    PARTITIONS,
    SENTENCES,
    TABLE,
)
from waterspout.cli.watching import start_waiting
from waterspout.config import Config
from waterspout.run import Run, submit
from waterspout.spark.starting import open_session
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology

__all__ = ["main", "word_count"]

_LOOK_EVERY_S = 0.1


def word_count(folder: Path) -> TridentTopology:
    """Count the words of all sentences, one file per batch."""
    topology = TridentTopology("demo")
    (
        topology.new_stream("sentences", FileSpout(folder / SENTENCES, max_files=1))
        .each("value", Split(), "word")
        .group_by("word")
        .persistent_aggregate(SQLiteState.opaque(folder / DATABASE, TABLE), Count(), "count")
        .parallelism_hint(PARTITIONS)
    )
    return topology


def main(folder: Path) -> int:
    """Run until every file is counted; report on standard output."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    conf = Config(max_spout_pending=IN_FLIGHT_MAX, home=str(folder / HOME))
    session = open_session(folder / LOG)
    try:
        run = submit(word_count(folder), session, conf)
        done = start_waiting(run)
        _tell("started")
        while not done.wait(_LOOK_EVERY_S):
            _tell_progress("progress", run)
        run.stop()
        run.await_termination()
        _tell_progress("done", run)
    except Exception as error:
        logging.exception("the demo's run failed")
        _tell("failed", error=str(error))
        return 1
    finally:
        session.stop()
    return 0


def _tell_progress(event: str, run: Run) -> None:
    now = run.snapshot()
    txid, replayed = now.totals["last_txid"], now.totals["replayed"]
    _tell(event, txid=txid, replayed=replayed, in_flight=len(now.in_flight))


def _tell(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
