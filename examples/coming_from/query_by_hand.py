"""Structured Streaming, exactly once by hand: the batch id is stored with the counts."""

import sqlite3
from contextlib import closing

from pyspark.sql import SparkSession

DATABASE = "words_by_hand.db"


def add(frame, batch_id):
    """Add the counts of a batch, unless the table has them already."""
    counts = [(row["word"], row["count"]) for row in frame.groupBy("word").count().collect()]
    with closing(sqlite3.connect(DATABASE)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER)")
        db.execute("CREATE TABLE IF NOT EXISTS done (batch INTEGER)")
        (last,) = db.execute("SELECT max(batch) FROM done").fetchone()
        if last is not None and batch_id <= last:
            return
        db.executemany(
            "INSERT INTO counts VALUES (?, ?) ON CONFLICT (word) DO UPDATE"
            " SET count = count + excluded.count",
            counts,
        )
        db.execute("INSERT INTO done VALUES (?)", (batch_id,))


def count_words(spark: SparkSession, folder: str, checkpoint: str) -> None:
    """Count what is there, and return."""
    words = spark.readStream.text(folder).selectExpr("explode(split(value, ' ')) AS word")
    query = words.writeStream.foreachBatch(add).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
