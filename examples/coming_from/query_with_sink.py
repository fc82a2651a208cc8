"""The same query with a sink of waterspout: nothing but what is to be counted, and where."""

from pyspark.sql import SparkSession

from waterspout.sinks import exactly_once
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count

DATABASE = "words.db"


def count_words(spark: SparkSession, folder: str, checkpoint: str) -> None:
    """Count what is there, and return."""
    counts = SQLiteState.opaque(DATABASE, table="counts")
    add = exactly_once(counts, keys=["word"], count=Count())

    words = spark.readStream.text(folder).selectExpr("explode(split(value, ' ')) AS word")
    query = words.writeStream.foreachBatch(add).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
