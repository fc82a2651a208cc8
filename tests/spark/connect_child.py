"""Word counts over Spark Connect: committed by the driver, by tasks, and as a core topology."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.core_components import Count as CountBolt
from tests.spark.core_components import Split, counted
from waterspout import Config, TopologyBuilder, submit
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FeederSpout, FixedBatchSpout
from waterspout.trident import Count, Function, TridentTopology


class Words(Function):
    def execute(self, tuple, collector):
        for word in tuple[0].split():
            collector.emit((word,))

    def output_types(self, inputs):
        return ["string"]


def count(spark, folder: Path, mode: str) -> dict[str, int]:
    topology = TridentTopology(f"over-connect-{mode}")
    path = folder / f"{mode}.db"
    rows = ["the cow jumped over the moon", "the man went to the store"] * 3
    (
        topology.new_stream("lines", FixedBatchSpout("value", 2, rows))
        .each("value", Words(), out="word")
        .group_by("word")
        .persistent_aggregate(
            SQLiteState.opaque(path, table="word_counts", driver_only=mode == "driver"),
            Count(),
            out="count",
        )
    )
    config = Config(home=str(folder / "home"), commit_in=mode, max_spout_pending=2)
    run = submit(topology, spark, config)
    run.process_all_available(timeout=100)
    run.stop()
    with sqlite3.connect(path) as db:
        return dict(db.execute("SELECT word, count FROM word_counts"))


def count_by_bolts(spark, folder: Path) -> dict[str, int]:
    feeder = FeederSpout("sentence")
    for number in range(6):
        rows = ["the cow jumped over the moon", "the man went to the store"]
        feeder.feed([rows[number % 2]], msg_id=number)
    builder = TopologyBuilder()
    builder.set_spout("sentences", feeder)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
    (folder / "bolts").mkdir()
    count = builder.set_bolt("count", CountBolt(folder / "bolts"), 3)
    count.fields_grouping("split", "word")
    config = Config(home=str(folder / "home"), wave_collapse_tuples=0)
    run = submit(builder.create_topology("over-connect-core"), spark, config)
    run.process_all_available(timeout=100)
    run.stop()
    assert feeder.tracker.acks == dict.fromkeys(range(6), 1)
    return counted(folder / "bolts")


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[2]")
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    for key, value in {**settings, "spark.driver.host": "127.0.0.1"}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    found = {mode: count(spark, folder, mode) for mode in ("driver", "tasks")}
    found["bolts"] = count_by_bolts(spark, folder)
    (folder / "result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
