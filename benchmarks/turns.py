"""What benchmarks beside Structured Streaming have in common.

Files in an order, one a batch; each run a process of its own, which makes several passes and
reports the last one; peers in turns; the rate of that pass without its first two batches.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.results import Ratio, Results, add_json_option

__all__ = [
    "DATA",
    "OURS",
    "WARM_UP",
    "add_options",
    "last_of_passes",
    "open_sqlite",
    "report",
    "report_of",
    "run_streaming",
    "run_topology",
    "steady_rate",
    "take_turns",
    "turn_of",
    "two_core_session",
    "written_once",
]

OURS = "waterspout"
WARM_UP = 2
DATA = Path(__file__).parent / "data"
_REPORT = "REPORT "


def add_options(parser: argparse.ArgumentParser, peers: Iterable[str]) -> None:
    """Add the options of all who run peers over files, and those that are for their children."""
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--files", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--peer", choices=list(peers), help="for the children")
    parser.add_argument("--work", type=Path)
    add_json_option(parser)


def written_once(target: Path, tables: Callable[[], Iterable[pa.Table]]) -> Path:
    """Write tables as Parquet files, if that was not done before; return their folder."""
    folder = target / "in"
    if (target / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables()):
        path = folder / f"part-{number:05}.parquet"
        pq.write_table(table, path)
        os.utime(path, (number + 1, number + 1))  # Spark takes them in the order of their times
    (target / "done").touch()
    return folder


def take_turns(
    title: str,
    streaming: Sequence[str],
    rounds: int,
    run: Callable[[str], float],
    results: Results,
) -> None:
    """Run all peers in turn, print a table, and add what was found; the aim is to be as fast."""
    peers = (*streaming, OURS)
    rates: dict[str, list[float]] = {name: [] for name in peers}
    for turn in range(rounds):
        for name in peers:
            rate = run(name)
            rates[name].append(rate)
            print(f"round {turn + 1}  {title:22} {name:34} {rate:12,.0f} rows/s", flush=True)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    best = max(medians[name] for name in streaming)
    print(f"\n{title:34} {'rows/s':>12} {'of the best of Spark':>22}")
    for name, rate in medians.items():
        print(f"{name:34} {rate:12,.0f} {rate / best:22.2f}")
    print(flush=True)
    ratio = Ratio.between(OURS, "Structured Streaming", rates, 1.0, best_of=streaming)
    results.ratios.append(replace(ratio, name=title))
    results.rates |= {f"{title}, {name}": found for name, found in rates.items()}


def turn_of(
    module: str, arguments: argparse.Namespace, peer: str, truth: Any, more: Mapping[str, Any]
) -> float:
    """Run one peer in a process of its own; return its rows per second; refuse wrong results."""
    sizes = {name: getattr(arguments, name) for name in ("rows", "files", "passes")}
    options = [f"--{name}={value}" for name, value in {**sizes, **more, "peer": peer}.items()]
    with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as work:
        found = report_of(module, [*options, f"--work={work}"])
    if found["found"] != truth:
        shown = str(found["found"])[:500], str(truth)[:500]
        raise SystemExit(f"{module}, {peer}: found {shown[0]}, and not {shown[1]}")
    return steady_rate(arguments.rows, arguments.files, found["ends"])


def steady_rate(rows: int, files: int, ends: Sequence[float]) -> float:
    """Return rows per second from when each batch ended, without those of the warm-up."""
    batches = min(len(ends), files)
    share = (batches - WARM_UP) / files
    return float(rows * share / (ends[batches - 1] - ends[WARM_UP - 1]))


def report_of(module: str, options: Sequence[str]) -> dict[str, Any]:
    """Run a benchmark's module as a process of its own; return what it reports."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *options],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(_REPORT)]
    if done.returncode or not lines:
        raise SystemExit(f"{module} {options}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(_REPORT))
    return found


def report(found: Mapping[str, Any]) -> None:
    """Tell the parent what was found, and end this process."""
    print(_REPORT + json.dumps(found), flush=True)
    # Nothing is left to do; a JVM that shuts down in order would take seconds.
    os._exit(0)


def last_of_passes(
    arguments: argparse.Namespace, run: Callable[[Path], list[float]]
) -> tuple[Path, list[float]]:
    """Run several passes, each in a folder of its own; return the last one's folder and ends."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for number in range(arguments.passes):
        work = arguments.work / str(number)
        work.mkdir()
        ends = run(work)
    return work, ends


def two_core_session() -> Any:
    """The settings that suit the hand-written peers best on two cores."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def run_streaming(
    frame: Any, mode: str, work: Path, each_batch: Callable[[Any, int], None]
) -> None:
    """Run a stream of Structured Streaming over all that is there, with foreachBatch."""
    query = (
        frame.writeStream.foreachBatch(each_batch)
        .outputMode(mode)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run_topology(topology: Any, work: Path, session: Any = None) -> list[float]:
    """Run a topology over all that is there, three batches in flight; return when each ended."""
    from waterspout import Config, submit

    config = Config(max_spout_pending=3, home=str(work / "home"))
    run = submit(topology, session, config)
    run.process_all_available(timeout=600)
    run.stop()
    return [progress["timestamp"] for progress in run.recent_progress]


def open_sqlite(path: Path, columns: str) -> sqlite3.Connection:
    """Open a file with a table of results as careful as a state of ours: each commit is synced."""
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(f"CREATE TABLE IF NOT EXISTS {columns} WITHOUT ROWID")
    return db
