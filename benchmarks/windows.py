"""Windows of event time beside those of Structured Streaming: `make bench-windows`.

The same Parquet files, one a batch; the same windows, keys, watermark and aggregates; the same
store. What closes is added up, so that windows are measured and not the writing of rows (`--sink
rows` writes every row). Peers take turns, each run is a process of its own, and its results are
compared with a recount. The rate is that of the last pass without its first two batches.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.results import Results
from benchmarks.turns import (
    DATA,
    OURS,
    add_options,
    last_of_passes,
    open_sqlite,
    report,
    run_streaming,
    run_topology,
    take_turns,
    turn_of,
    two_core_session,
    written_once,
)

LAG_S = 20
KINDS = ("tumbling", "sliding", "session")
LENGTH_S, SLIDE_S, GAP_S = 10, 5, 2
STREAMING = {"structured streaming": "memory", "structured streaming, RocksDB": "rocksdb"}
_START = 1_700_000_000_000_000  # in microseconds: a multiple of 10 s


def main() -> None:
    """Run all peers in turn and print a table of rates and ratios."""
    parser = argparse.ArgumentParser()
    add_options(parser, (*STREAMING, OURS))
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--windows", nargs="*", choices=KINDS, default=["tumbling", "sliding"])
    parser.add_argument("--sink", choices=["totals", "rows"], default="totals")
    arguments = parser.parse_args()
    data = _make_data(arguments)
    if arguments.peer:
        _child(arguments, data)
    results = Results()
    for kind in arguments.windows:
        _compare(kind, data, arguments, results)
    results.write(arguments.json)


def _compare(kind: str, data: Path, arguments: argparse.Namespace, results: Results) -> None:
    truths = {is_spark: _recount(data, kind, joins_at_gap=is_spark) for is_spark in (False, True)}
    more = {"keys": arguments.keys, "windows": kind, "sink": arguments.sink}

    def run(peer: str) -> float:
        return turn_of("windows", arguments, peer, truths[peer in STREAMING], more)

    take_turns(f"{kind} windows", list(STREAMING), arguments.rounds, run, results)


def _make_data(arguments: argparse.Namespace) -> Path:
    """Write events once (seed 7), a millisecond apart, up to 10 s out of order."""
    name = f"events-{arguments.rows}-{arguments.files}-{arguments.keys}"
    return written_once(DATA / name, lambda: _events(arguments))


def _events(arguments: argparse.Namespace) -> Iterator[pa.Table]:
    rng = np.random.default_rng(7)
    each = arguments.rows // arguments.files
    for number in range(arguments.files + 1):
        count = each if number < arguments.files else 1
        steps = np.arange(number * each, number * each + count, dtype=np.int64)
        times = _START + 1000 * (steps + rng.integers(0, 10_000, count))
        if number == arguments.files:  # far behind all others: it closes their windows
            times += 3_600_000_000
        yield pa.table(
            {
                "key": pa.array([f"k{i}" for i in rng.integers(0, arguments.keys, count)]),
                "at": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
                "v": pa.array(rng.integers(0, 1000, count)),
            }
        )


def _recount(data: Path, kind: str, *, joins_at_gap: bool) -> list[int]:
    """Return how many windows of keys there are, of how many rows, and the sum, by pyarrow.

    A row exactly a gap after the last belongs to the same session for Spark, and not for us.
    """
    table = pa.concat_tables([pq.read_table(path) for path in sorted(data.iterdir())[:-1]])
    table = table.set_column(1, "at", table.column("at").cast(pa.int64()))
    if kind == "session":
        return _recount_sessions(table, joins_at_gap)
    step = (LENGTH_S if kind == "tumbling" else SLIDE_S) * 1_000_000
    found: set[tuple[str, int]] = set()
    rows = total = 0
    for shift in range(0, LENGTH_S * 1_000_000, step):
        starts = table.column("at").to_numpy() // step * step - shift
        shifted = table.set_column(1, "at", pa.array(starts))
        made = shifted.group_by(["key", "at"]).aggregate([("v", "count"), ("v", "sum")])
        pairs = zip(made.column("key").to_pylist(), made.column("at").to_pylist(), strict=True)
        found.update(pairs)
        rows += sum(made.column("v_count").to_pylist())
        total += sum(made.column("v_sum").to_pylist())
    return [len(found), rows, total]


def _recount_sessions(table: pa.Table, joins_at_gap: bool) -> list[int]:
    ordered = table.sort_by([("key", "ascending"), ("at", "ascending")])
    keys = np.array(ordered.column("key").to_pylist())
    times = ordered.column("at").to_numpy()
    gap = GAP_S * 1_000_000 + joins_at_gap
    breaks = (keys[1:] != keys[:-1]) | (np.diff(times) >= gap)
    return [1 + int(breaks.sum()), len(times), int(ordered.column("v").to_numpy().sum())]


def _child(arguments: argparse.Namespace, data: Path) -> None:
    (kind,) = arguments.windows
    run = _waterspout if arguments.peer == OURS else _structured_streaming
    work, ends = last_of_passes(arguments, lambda work: run(arguments, kind, data, work))
    report({"ends": ends, "found": _found(work / "results.db")})


def _open(path: Path) -> sqlite3.Connection:
    columns = "key TEXT, start INTEGER, windows INTEGER, n INTEGER, total INTEGER"
    return open_sqlite(path, f"results ({columns}, PRIMARY KEY (key, start))")


def _write(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    db = _open(path)
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?)", rows)
    db.execute("COMMIT")
    db.close()


def _found(path: Path) -> list[int]:
    db = _open(path)
    return list(db.execute("SELECT sum(windows), sum(n), sum(total) FROM results").fetchone())


def _structured_streaming(
    arguments: argparse.Namespace, kind: str, data: Path, work: Path
) -> list[float]:
    """Windows, watermark and aggregates of Spark's; what closes is upserted by foreachBatch."""
    from pyspark.sql import functions as F

    session, ends = two_core_session(), []
    if STREAMING[arguments.peer] == "rocksdb":
        session.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
    windows = {
        "tumbling": lambda: F.window("at", f"{LENGTH_S} seconds"),
        "sliding": lambda: F.window("at", f"{LENGTH_S} seconds", f"{SLIDE_S} seconds"),
        "session": lambda: F.session_window("at", f"{GAP_S} seconds"),
    }
    events = session.readStream.schema("key string, at timestamp, v bigint")
    events = events.option("maxFilesPerTrigger", 1).parquet(str(data))
    closed = (
        events.withWatermark("at", f"{LAG_S} seconds")
        .groupBy("key", windows[kind]().alias("w"))
        .agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("total"))
        .select("key", F.unix_micros("w.start").alias("start"), F.lit(1), "n", "total")
    )
    path = work / "results.db"

    def each_batch(frame: Any, batch_id: int) -> None:
        if arguments.sink == "totals":
            frame = frame.agg(F.count(F.lit(1)), F.sum("n"), F.sum("total"))
            frame = frame.select(F.lit(""), F.lit(batch_id), "*")
        columns = [column.to_pylist() for column in frame.toArrow().columns]
        _write(path, list(zip(*columns, strict=True)))
        ends.append(time.time())

    run_streaming(closed, "append", work, each_batch)
    return ends


def _waterspout(arguments: argparse.Namespace, kind: str, data: Path, work: Path) -> list[float]:
    """The same as a Trident topology; both states are opaque."""
    from datetime import timedelta

    from waterspout.spouts.files import FileSpout
    from waterspout.state.sqlite import SQLiteState
    from waterspout.trident import Columns, Count, Sum, TridentTopology

    topology = TridentTopology("bench")
    spout = FileSpout(data, "parquet", "key string, at timestamp, v bigint", max_files=1)
    groups = topology.new_stream("events", spout).group_by("key")
    total = Columns(n=Count(), total=("v", Sum()))
    times = {"event_time": "at", "lag": timedelta(seconds=LAG_S)}
    length, slide = timedelta(seconds=LENGTH_S), timedelta(seconds=SLIDE_S)
    closed = {
        "tumbling": lambda: groups.tumbling_window(length, total, **times),
        "sliding": lambda: groups.sliding_window(length, slide, total, **times),
        "session": lambda: groups.session_window(timedelta(seconds=GAP_S), total, **times),
    }[kind]()
    results = SQLiteState.opaque(work / "states.db", table="results")
    sums = Columns(windows=Count(), n=("n", Sum()), total=("total", Sum()))
    if arguments.sink == "totals":
        state = closed.persistent_aggregate(results, sums)
    else:
        state = closed.group_by(["key", "window_start"]).persistent_aggregate(results, sums)
    state.parallelism_hint(1)
    ends = run_topology(topology, work)
    with sqlite3.connect(work / "states.db") as db:
        rows = db.execute("SELECT windows, n, total FROM results").fetchall()
    _write(work / "results.db", [("", number, *row) for number, row in enumerate(rows)])
    return ends


if __name__ == "__main__":
    main()
