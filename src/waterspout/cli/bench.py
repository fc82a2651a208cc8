"""`waterspout bench`: how fast is it here, beside Spark code written by hand?"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from waterspout._config import Config
from waterspout._run import submit
from waterspout.cli.answers import AsJson, print_json
from waterspout.cli.demo_source import count_words, write_sentences
from waterspout.cli.failures import FAILED
from waterspout.cli.screen import Screen, counted, print_table
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology

__all__ = ["Measured", "bench", "rate"]

_JOB, _BY_HAND, _OURS = "one Spark job, no store", "foreachBatch by hand", "waterspout"
_WARM_UP = 2
_PASSES = 2
_PENDING = 3
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one of them did in its last pass."""

    name: str
    rate: float
    """Sentences a second."""
    exact: bool
    """Whether every count of every pass was right."""


def bench(
    sentences: Annotated[
        int, typer.Option(metavar="N", min=1000, help="How many sentences to count.")
    ] = 400_000,
    batches: Annotated[
        int, typer.Option(metavar="N", min=_WARM_UP + 1, help="In how many batches.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Measure a word count into SQLite beside Spark code written by hand, on this machine.

    All of it runs on one embedded Spark, in turns, twice; the second pass counts. Every count is
    checked against a recount. Look at the ratio: the machine itself is noisy.
    """
    from waterspout.spark.java import require_java
    from waterspout.spark.starting import open_session

    require_java()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="waterspout-bench-") as folder,
        Screen(quiet=as_json) as screen,
    ):
        work = Path(folder)
        screen.spin("writing the sentences")
        write_sentences(work / "in", sentences, batches)
        truth = count_words(*(work / "in").iterdir())
        screen.spin("Spark is starting")
        session = open_session(work / "spark.log")
        try:
            measured = _measure(session, work, truth, sentences, screen)
            spark = session.version
        finally:
            session.stop()
    ratio = _ratio(measured, _BY_HAND)
    exact = all(each.exact for each in measured)
    if as_json:
        print_json(
            {
                "sentences": sentences,
                "batches": batches,
                "cores": os.cpu_count(),
                "spark": spark,
                "exact": exact,
                "sentences_per_s": {each.name: round(each.rate) for each in measured},
                "of_by_hand": round(ratio, 3),
                "of_one_job": round(_ratio(measured, _JOB), 3),
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    else:
        _print(measured, sentences, batches)
    if not exact:
        raise typer.Exit(FAILED)


def rate(sentences: int, began: float, ends: Sequence[float]) -> float:
    """Return sentences a second, without the first batches of several, which warm up.

    >>> rate(400, 0.0, [5.0, 7.0, 8.0, 9.0])
    100.0
    >>> rate(400, 0.0, [4.0])
    100.0
    """
    if len(ends) <= _WARM_UP:
        return sentences / (ends[-1] - began)
    share = (len(ends) - _WARM_UP) / len(ends)
    return sentences * share / (ends[-1] - ends[_WARM_UP - 1])


def _measure(
    session: Any, work: Path, truth: Mapping[str, int], sentences: int, screen: Screen
) -> list[Measured]:
    from waterspout.spark.peers import count_by_hand, count_in_one_job

    rates: dict[str, float] = {}
    wrong: set[str] = set()
    for number in range(_PASSES):
        place = work / f"pass-{number}"
        for name in (_JOB, _BY_HAND, _OURS):
            screen.spin(f"pass {number + 1} of {_PASSES}: {name}")
            database = place.with_name(f"{place.name}-{name.split()[0]}.db")
            began = time.time()
            if name == _JOB:
                found = count_in_one_job(session, work / "in")
                ends = [time.time()]
            elif name == _BY_HAND:
                ends = count_by_hand(session, work / "in", database, place)
                found = _stored(database)
            else:
                ends = _count(session, work / "in", database, work / "home", number)
                found = _stored(database)
            rates[name] = rate(sentences, began, ends)
            if found != truth:
                wrong.add(name)
    return [Measured(name, rates[name], name not in wrong) for name in rates]


def _count(session: Any, folder: Path, database: Path, home: Path, number: int) -> list[float]:
    """Count a file a batch as a Trident topology; return when each batch was done."""
    topology = TridentTopology(f"bench-{number}")
    (
        topology.new_stream("lines", FileSpout(folder, max_files=1))
        .each("value", Split(), out="word")
        .group_by("word")
        .persistent_aggregate(SQLiteState.opaque(database, "word_counts"), Count(), out="count")
        .parallelism_hint(1)
    )
    run = submit(topology, session, Config(max_spout_pending=_PENDING, home=str(home)))
    try:
        run.process_all_available(timeout=_TIMEOUT_S)
        return [progress["timestamp"] for progress in run.recent_progress]
    finally:
        run.stop()


def _stored(database: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        return dict(db.execute("SELECT word, count FROM word_counts"))


def _ratio(measured: Sequence[Measured], other: str) -> float:
    rates = {each.name: each.rate for each in measured}
    return rates[_OURS] / rates[other]


def _print(measured: Sequence[Measured], sentences: int, batches: int) -> None:
    cores = counted(os.cpu_count() or 1, "core")
    typer.echo(f"{sentences:,} sentences in {batches} batches into SQLite, {cores}")
    by_hand = next(each.rate for each in measured if each.name == _BY_HAND)
    rows = [
        (
            each.name,
            f"{each.rate:,.0f}",
            f"{each.rate / by_hand:.2f}",
            "exact" if each.exact else "WRONG",
        )
        for each in measured
    ]
    columns = ("", "sentences/s", "of by hand", "counts")
    print_table(columns, rows, right=("sentences/s", "of by hand"))
