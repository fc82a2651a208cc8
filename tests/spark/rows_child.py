"""A topology that writes rows: `python -m tests.spark.rows_child FOLDER`.

Numbers go to FOLDER/rows.db and, with receipts, to FOLDER/rows, until there are none left.
Kill points come in the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as F

from tests.rows.stores import FolderState
from tests.spark.backend_support import Numbers
from tests.spark.killing import session
from waterspout import Config, submit
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import AppendRows, TridentTopology, UpsertRows, expr

KEYS = 7


def rows_topology(spout, appended, upserted=None, published=None):
    """Numbers and their keys: appended, the last of each key, and appended once more."""
    topology = TridentTopology("rows")
    stream = topology.new_stream("numbers", spout).project("value")
    stream = stream.each("value", expr(f"cast(value % {KEYS} as bigint)"), out="k bigint")
    topology.handles = [stream.partition_persist(appended, AppendRows())]
    if upserted is not None:
        topology.handles.append(
            stream.partition_persist(upserted, UpsertRows("k", order_by="value"))
        )
    if published is not None:
        topology.handles.append(stream.partition_persist(published, AppendRows()))
    return topology


def query(spark, folder: Path, sink):
    """One file a batch; each word with its size."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    words = lines.select(F.explode(F.split("value", " ")).alias("word"))
    sized = words.select("word", F.length("word").cast("bigint").alias("size"))
    return (
        sized.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def main(folder: Path) -> None:
    appended = SQLiteState.opaque(folder / "rows.db", table="appended")
    published = FolderState(folder=str(folder / "rows"))
    topology = rows_topology(Numbers(1_200, (500, 600), (200, 300)), appended, published=published)
    config = Config(home=str(folder / "home"), state_partitions=3, idle_poll_millis=20)
    spark = session(folder / "spark.log")
    run = submit(topology, spark, config)
    run.process_all_available(timeout=120)
    run.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
