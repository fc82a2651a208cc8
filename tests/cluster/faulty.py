"""Sums of numbers by tasks of a cluster.

    python -m tests.cluster.faulty FOLDER MASTER [OPTION=VALUE]

Every attempt at a batch draws its size anew, so that what a lost one has written differs from what
counts. Appends each committed batch to FOLDER/committed, as txid:attempt. Kill points come in the
environment. If there is FOLDER/hold, the sums of a batch are made behind a shuffle, and stand still
there until there is FOLDER/go.
"""

from __future__ import annotations

import os
import sys
import time
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
LIMIT = 2_200
LARGE = 60_000
"""So many that a batch of a third of them is shuffled."""


def sums_below(limit: int) -> dict[int, tuple[int, int]]:
    return {k: (sum(range(k, limit, KEYS)), len(range(k, limit, KEYS))) for k in range(KEYS)}


SUMS = sums_below(LIMIT)


def key_of(value: int) -> int:
    return value % KEYS


class Hold:
    """Passes keys on; stands still while it is told to, and leaves a file of its worker's pid."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __call__(self, key: int) -> int:
        folder, pid = Path(self._folder), os.getpid()
        if not (folder / "go").exists():
            (folder / f"held-{pid}").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
        return key


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


def summed_behind_a_shuffle(folder: Path) -> TridentTopology:
    topology = TridentTopology("sums")
    state = SQLiteState.opaque(folder / "sums.db", table="sums", driver_only=False)
    (
        topology.new_stream("numbers", Numbers(LARGE, (20_000, 25_000), (12_000, 15_000)))
        .each("value", key_of, out="k")
        .group_by("k")
        .aggregate(Columns(total=("value", Sum()), n=Count()))
        .each("k", Hold(folder), out="held bigint")
        .group_by("k")
        .persistent_aggregate(state, Columns(total=("total", Sum()), n=("n", Sum())))
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
                file.write(f"{event.attempt}\n")

    form = summed_behind_a_shuffle if (folder / "hold").exists() else summed
    run = submit(form(folder), spark, config)
    run.subscribe(note)
    run.process_all_available(timeout=240)
    run.stop()
    spark.stop()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except WaterspoutError as error:
        sys.exit(paragraph(error))
