"""A word count as one writes it without waterspout: what `waterspout bench` measures against."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["count_by_hand", "count_in_one_job"]

_TABLE = (
    "CREATE TABLE IF NOT EXISTS word_counts"
    " (word TEXT PRIMARY KEY, count INTEGER, txid INTEGER) WITHOUT ROWID"
)
# Add, unless this batch was added before.
_UPSERT = (
    "INSERT INTO word_counts VALUES (?, ?, ?) ON CONFLICT (word) DO UPDATE SET"
    " count = count + excluded.count, txid = excluded.txid WHERE txid <> excluded.txid"
)


def count_in_one_job(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Count everything at once, without a stream and without a store."""
    lines = spark.read.schema("value string").text(str(folder))
    table = _words(lines).groupBy("word").count().toArrow()
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))


def count_by_hand(spark: SparkSession, folder: Path, database: Path, work: Path) -> list[float]:
    """Count a file a batch into SQLite by `foreachBatch`; return when each batch was done.

    The counts of a batch are collected and added in one transaction, which remembers the batch in
    every row: the shortest exact way, and on one machine the fastest.
    """
    ends: list[float] = []

    def each_batch(frame: DataFrame, batch_id: int) -> None:
        table = frame.groupBy("word").count().toArrow()
        columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
        with closing(_opened(database)) as db:
            db.execute("BEGIN IMMEDIATE")
            rows = ((word, count, batch_id) for word, count in zip(*columns, strict=True))
            db.executemany(_UPSERT, rows)
            db.execute("COMMIT")
        ends.append(time.time())

    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
    query = (
        _words(lines)
        .writeStream.foreachBatch(each_batch)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return ends


def _words(lines: DataFrame) -> DataFrame:
    return lines.select(F.explode(F.split("value", " ")).alias("word"))


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(_TABLE)
    return db
