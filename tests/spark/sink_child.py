"""A streaming query with `exactly_once`: `sink_child.py FOLDER [classic|connect]`.

Counts the words of FOLDER/in into FOLDER/counts.db, one file per batch, until there is nothing
more. Kill points come in the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from waterspout.sinks import exactly_once
from waterspout.spark.starting import embedded_session
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


def main(folder: Path, mode: str) -> None:
    if mode == "connect":
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
    else:
        spark = embedded_session(folder / "spark.log")
    running = query(spark, folder, sink_of(folder))
    running.processAllAvailable()
    running.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "classic")
