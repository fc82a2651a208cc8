"""A streaming query with `exactly_once`: `python -m tests.spark.sink_child FOLDER`.

Counts the words of FOLDER/in into FOLDER/counts.db, one file per batch, until there is nothing
more. Kill points come in the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as F

from tests.spark.killing import session
from waterspout.sinks import exactly_once
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Max, Sum


def query(spark, folder: Path, sink):
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    words = lines.select(F.explode(F.split("value", " ")).alias("word"))
    sized = words.select("word", F.length("word").cast("bigint").alias("size"))
    return (
        sized.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def sink_of(folder: Path):
    path = folder / "counts.db"
    return exactly_once(
        SQLiteState.opaque(path, table="word_counts"),
        keys=["word"],
        count=Count(),
        letters=("size", Sum()),
        longest=("size", Max()),
    ).also(SQLiteState.transactional(path, table="total"), count=Count())


def main(folder: Path) -> None:
    spark = session(folder / "spark.log")
    running = query(spark, folder, sink_of(folder))
    running.processAllAvailable()
    running.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
