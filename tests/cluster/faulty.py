"""Sums of numbers by tasks of a cluster.

    python -m tests.cluster.faulty FOLDER MASTER [OPTION=VALUE]

Every attempt at a batch draws its size anew, so that what a lost one has written differs from what
counts. Appends the txid of each committed batch to FOLDER/committed. Kill points come in the
environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.backend_support import Numbers
from waterspout import Config, submit
from waterspout.cli.failures import paragraph
from waterspout.errors import WaterspoutError
from waterspout.events import BatchCommitted
from waterspout.spark.starting import open_session
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology

KEYS = 7
LIMIT = 3_000
SUMS = {k: (sum(range(k, LIMIT, KEYS)), len(range(k, LIMIT, KEYS))) for k in range(KEYS)}


def key_of(value: int) -> int:
    return value % KEYS


def summed(folder: Path) -> TridentTopology:
    topology = TridentTopology("sums")
    state = SQLiteState.opaque(folder / "sums.db", table="sums", driver_only=False)
    (
        topology.new_stream("numbers", Numbers(LIMIT, (500, 600), (200, 300)))
        .each("value", key_of, out="k")  # in Python: the point in processing is in such a task
        .group_by("k")
        .persistent_aggregate(state, Columns(total=("value", Sum()), n=Count()))
        .parallelism_hint(2)
    )
    return topology


def main(folder: Path, master: str, *settings: str) -> None:
    spark = open_session(folder / "spark.log", master=master)
    options = dict(setting.split("=") for setting in settings)
    config = Config(
        home=str(folder / "home"),
        commit_in="tasks",
        idle_poll_millis=20,
        retry_backoff_millis=20,
        **{name: float(value) for name, value in options.items()},
    )

    def note(event: object) -> None:
        if isinstance(event, BatchCommitted):
            with open(folder / "committed", "a") as file:
                file.write(f"{event.attempt.txid}\n")

    run = submit(summed(folder), spark, config)
    run.subscribe(note)
    run.process_all_available(timeout=240)
    run.stop()
    spark.stop()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except WaterspoutError as error:
        sys.exit(paragraph(error))
