"""A table beside a stream, joined by Structured Streaming and by us: `make bench-joins`.

The same Parquet files, one a batch; the same table of items with their category, of which nine of
ten rows of the stream have one; count and sum of each category, kept in SQLite with
`synchronous=FULL`, once for each batch. Structured Streaming joins and groups in foreachBatch and
adds to the store by hand, or it keeps the totals in its own state and writes those that changed.
Each run is a process of its own, peers take turns, and every category is compared with a recount.

Joins of two streams are left out, because there is nothing to compare: a topology joins batch 7 of
one stream with batch 7 of the other, and Structured Streaming joins rows of all batches, within a
watermark, out of its state.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Iterator
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

ADDS, KEEPS = "structured streaming, foreachBatch", "structured streaming, stateful"
STREAMING = (ADDS, KEEPS)
FORMS = {
    "cached": "a cached table",
    "frame": "a table read anew",
    "arrow": "a pyarrow table",
}
"""How the table is given: a frame that Spark keeps or reads in each batch, or the driver's rows."""

REGIONS = 10
MISSING = 0.1
"""What share of the rows has an item that is not in the table."""


def main() -> None:
    """Run all peers in turn and print a table of rates and ratios."""
    parser = argparse.ArgumentParser()
    add_options(parser, (*STREAMING, OURS))
    parser.add_argument("--items", type=int, default=100_000, help="rows of the table")
    parser.add_argument("--categories", type=int, default=1000)
    parser.add_argument("--tables", nargs="+", choices=list(FORMS), default=["cached"])
    parser.add_argument("--against", nargs="+", choices=STREAMING, default=STREAMING)
    arguments = parser.parse_args()
    items = _make_items(arguments)
    data = _make_data(arguments)
    if arguments.peer:
        _child(arguments, data, items)
    results, truth = Results(), _recount(data, items)
    for form in arguments.tables:
        _compare(form, arguments, truth, results)
    results.write(arguments.json)


def _compare(
    form: str, arguments: argparse.Namespace, truth: dict[str, list[int]], results: Results
) -> None:
    more = {"items": arguments.items, "categories": arguments.categories, "tables": form}

    def run(peer: str) -> float:
        return turn_of("joins", arguments, peer, truth, more)

    take_turns(f"join, {FORMS[form]}", arguments.against, arguments.rounds, run, results)


def _make_items(arguments: argparse.Namespace) -> Path:
    """Write the table once (seed 8), in one file, in no order."""

    def items() -> Iterator[pa.Table]:
        rng = np.random.default_rng(8)
        drawn = rng.integers(0, arguments.categories, arguments.items)
        yield pa.table(
            {
                "item": pa.array(rng.permutation(arguments.items)),
                "category": pa.array([f"category {number}" for number in drawn]),
                "region": pa.array([f"region {number % REGIONS}" for number in drawn]),
            }
        )

    return written_once(DATA / f"items-{arguments.items}-{arguments.categories}", items)


def _make_data(arguments: argparse.Namespace) -> Path:
    """Write the sales once (seed 7)."""

    def sales() -> Iterator[pa.Table]:
        rng = np.random.default_rng(7)
        count = arguments.rows // arguments.files
        for _ in range(arguments.files):
            drawn = rng.integers(0, round(arguments.items / (1 - MISSING)), count)
            yield pa.table({"item": pa.array(drawn), "v": pa.array(rng.integers(0, 1000, count))})

    name = f"sales-{arguments.rows}-{arguments.files}-{arguments.items}"
    return written_once(DATA / name, sales)


def _recount(data: Path, items: Path) -> dict[str, list[int]]:
    """Return count and sum of each category, by numpy."""
    table = pq.read_table(items)
    categories = np.array(table.column("category").to_pylist())
    names, numbers = np.unique(categories, return_inverse=True)
    number_of = np.empty(table.num_rows, np.int64)
    number_of[table.column("item").to_numpy()] = numbers
    sales = pq.read_table(data)
    item, v = sales.column("item").to_numpy(), sales.column("v").to_numpy()
    known = item < table.num_rows
    found = number_of[item[known]]
    counts = np.bincount(found, minlength=len(names))
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, found, v[known])
    rows = zip(names.tolist(), counts.tolist(), totals.tolist(), strict=True)
    return {name: [n, total] for name, n, total in rows if n}


def _child(arguments: argparse.Namespace, data: Path, items: Path) -> None:
    run = _waterspout if arguments.peer == OURS else _structured_streaming
    work, ends = last_of_passes(arguments, lambda work: run(arguments, data, items, work))
    with sqlite3.connect(work / "results.db") as db:
        rows = db.execute("SELECT category, n, total FROM results").fetchall()
    report({"ends": ends, "found": {category: [n, total] for category, n, total in rows}})


def _table(session: Any, form: str, items: Path) -> Any:
    if form == "arrow":
        return session.createDataFrame(pq.read_table(items))
    frame = session.read.parquet(str(items))
    return frame.cache() if form == "cached" else frame


def _structured_streaming(
    arguments: argparse.Namespace, data: Path, items: Path, work: Path
) -> list[float]:
    """A join of a stream with a static frame; what is grouped is upserted by foreachBatch."""
    from pyspark.sql import functions as F

    session, ends = two_core_session(), []
    (form,) = arguments.tables
    table = F.broadcast(_table(session, form, items))
    sales = session.readStream.schema("item bigint, v bigint")
    sales = sales.option("maxFilesPerTrigger", 1).parquet(str(data))

    def grouped(frame: Any) -> Any:
        groups = frame.join(table, "item").groupBy("category")
        return groups.agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("total"))

    is_kept = arguments.peer == KEEPS
    path = work / "results.db"

    def each_batch(frame: Any, batch_id: int) -> None:
        found = (frame if is_kept else grouped(frame)).toArrow()
        columns = [column.to_pylist() for column in found.columns]
        _write(path, list(zip(*columns, strict=True)), batch_id, adds=not is_kept)
        ends.append(time.time())

    if is_kept:
        run_streaming(grouped(sales), "update", work, each_batch)
    else:
        run_streaming(sales, "append", work, each_batch)
    return ends


def _write(path: Path, rows: list[tuple[str, int, int]], batch_id: int, *, adds: bool) -> None:
    """Write by hand: add, unless this batch was added before; or put new totals there."""
    db = open_sqlite(
        path, "results (category TEXT PRIMARY KEY, n INTEGER, total INTEGER, txid INT)"
    )
    change = "n = n + excluded.n, total = total + excluded.total, txid = excluded.txid"
    if not adds:
        change = "n = excluded.n, total = excluded.total, txid = excluded.txid"
    db.execute("BEGIN IMMEDIATE")
    db.executemany(
        f"INSERT INTO results VALUES (?, ?, ?, {batch_id}) ON CONFLICT (category) DO UPDATE SET"
        f" {change} WHERE txid <> excluded.txid",
        rows,
    )
    db.execute("COMMIT")
    db.close()


def _waterspout(arguments: argparse.Namespace, data: Path, items: Path, work: Path) -> list[float]:
    """The same as a Trident topology with an opaque state."""
    from waterspout.spark.starting import embedded_session
    from waterspout.spouts.files import FileSpout
    from waterspout.state.sqlite import SQLiteState
    from waterspout.trident import Columns, Count, Sum, TridentTopology

    session = embedded_session()
    (form,) = arguments.tables
    table = pq.read_table(items) if form == "arrow" else _table(session, form, items)
    topology = TridentTopology("bench")
    spout = FileSpout(data, "parquet", "item bigint, v bigint", max_files=1)
    (
        topology.new_stream("sales", spout)
        .join_static(table, on="item")
        .group_by("category")
        .persistent_aggregate(
            SQLiteState.opaque(work / "results.db", table="results"),
            Columns(n=Count(), total=("v", Sum())),
        )
        .parallelism_hint(1)
    )
    return run_topology(topology, work, session)


if __name__ == "__main__":
    main()
