"""Word counts over Spark Connect: by Trident in both ways, by core bolts, by batch bolts."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import traceback
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.core_components import Count as CountBolt
from tests.spark.core_components import Split, counted
from waterspout import Config, FailedException, TopologyBuilder, submit
from waterspout.cli.doctor import _elsewhere
from waterspout.errors import OutsideError
from waterspout.spark.connect import connect_session
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FeederSpout, FixedBatchSpout
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)
from waterspout.trident import Count, Function, TridentTopology

COMPARES = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"


class Words(Function):
    def execute(self, tuple, collector):
        for word in tuple[0].split():
            collector.emit((word,))

    def output_types(self, inputs):
        return ["string"]


class FailsOnce(Words):
    """Asks for a replay, once in each folder."""

    def __init__(self, folder: Path) -> None:
        self.token = str(folder / "failed")

    def execute(self, tuple, collector):
        if not os.path.exists(self.token):
            open(self.token, "x").close()
            raise FailedException("not yet")
        super().execute(tuple, collector)


def count(spark, folder: Path, mode: str) -> dict[str, int]:
    topology = TridentTopology(f"over-connect-{mode}")
    path = folder / f"{mode}.db"
    rows = ["the cow jumped over the moon", "the man went to the store"] * 3
    (
        topology.new_stream("lines", FixedBatchSpout("value", 2, rows))
        .each("value", FailsOnce(folder), out="word")
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
    # The first of the two topologies was asked for a replay: Spark's retry did not hide it.
    assert (1 in [entry["attempt"] for entry in run.recent_progress]) == (mode == "driver")
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


class SplitBatch(BatchBolt):
    output_fields = ("tx", "word")

    def execute(self, tuple):
        for word in tuple[1].split():
            self.collector.emit([self.id, word])


class CountBatch(BatchBolt, Committer):
    """Counts the words of a batch and writes them to a file of this task and batch."""

    output_fields = ("tx", "count")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.counts: dict[str, int] = {}
        self.task = context.this_task_id

    def execute(self, tuple):
        self.counts[tuple[1]] = self.counts.get(tuple[1], 0) + 1

    def finish_batch(self):
        path = self.folder / f"{self.id.txid}-{self.task}.json"
        assert not path.exists()
        path.write_text(json.dumps(self.counts))


def count_by_batches(spark, folder: Path) -> dict[str, int]:
    (folder / "batches").mkdir()
    rows = ["the cow jumped over the moon", "the man went to the store"] * 3
    spout = MemoryTransactionalSpout([rows[:4], rows[4:]], "sentence", 2)
    builder = TransactionalTopologyBuilder("over-connect-batches", "sentences", spout)
    builder.set_bolt("split", SplitBatch(), 2).shuffle_grouping("sentences")
    count = builder.set_bolt("count", CountBatch(folder / "batches"), 3)
    count.fields_grouping("split", "word")
    config = Config(home=str(folder / "home"), wave_collapse_tuples=0)
    run = submit(builder.build_topology(), spark, config)
    run.process_all_available(timeout=100)
    run.stop()
    found: dict[str, int] = {}
    for path in (folder / "batches").iterdir():
        for word, n in json.loads(path.read_text()).items():
            found[word] = found.get(word, 0) + n
    return found


def reach(spark) -> list[str]:
    """Say what becomes of connecting to the server with its token, and with another."""
    place = spark._client._builder.endpoint
    other = connect_session(f"sc://{place}/;token=${{SPARK_CONNECT_AUTHENTICATE_TOKEN}}", 20)
    said = [str(other.range(3).count())]
    try:
        connect_session(f"sc://{place}/;token=hunter2", 20)
    except OutsideError as error:
        said.append("".join(traceback.format_exception(error)).splitlines()[-1])
    return said


def look_around(spark) -> list[list[str]]:
    """Say what `waterspout doctor --remote` finds at the server."""
    place = spark._client._builder.endpoint
    address = f"sc://{place}/;token=${{SPARK_CONNECT_AUTHENTICATE_TOKEN}}"
    return [[each.mark, each.name, each.text] for each in _elsewhere(None, address)]


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[2,4]")  # tasks are retried
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    for key, value in {**settings, "spark.driver.host": "127.0.0.1"}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.conf.set(COMPARES, "false")
    found = {mode: count(spark, folder, mode) for mode in ("driver", "tasks")}
    found["bolts"] = count_by_bolts(spark, folder)
    found["batches"] = count_by_batches(spark, folder)
    found["addresses"] = reach(spark)
    found["compares"] = spark.conf.get(COMPARES)
    found["doctor"] = look_around(spark)
    (folder / "result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
