"""Reading a Kafka beside a bare loop of its client: `make bench-kafka`.

All read the same messages of one broker on this machine, in turns, and say how many bytes of values
they have seen, which is checked. *Bare* is confluent-kafka's `consume` in one process, which only
adds up the lengths of values. *By column* is what a task of ours does: the same, as Arrow data.
*Trident on Spark* is a whole topology: batches planned and committed, bytes added up in SQLite.
With `--package org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0`, where Maven's repository can be
reached, Structured Streaming's own source reads them too, into `foreachBatch`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tests.services.kafka import KafkaCluster
from waterspout import Config, submit
from waterspout.spark.starting import embedded_session
from waterspout.spouts._kafka_reading import COLUMNS, read_columns
from waterspout.spouts.kafka import TransactionalKafkaSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology, expr

TOPIC = "bench"


def bare(bootstrap: str, messages: int, partitions: int) -> int:
    """Read everything with the client alone; return the bytes of all values."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bare", "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 2}
    )  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
    seen = size = 0
    while seen < messages:
        for message in consumer.consume(10_000, 1.0):
            size += len(message.value())
            seen += 1
    consumer.close()
    return size


def by_column(
    spout: TransactionalKafkaSpout, messages: int, partitions: int, batch: int, names: list[str]
) -> int:
    """Read batch after batch as a task does; return the bytes of all values."""
    size, each, share = 0, messages // partitions, batch // partitions
    for start in range(0, each, share):
        ranges = [[start, min(each, start + share)]] * partitions
        read: Any = spout.read({"spout": "", "topics": {TOPIC: {"id": "", "ranges": ranges}}})
        for found in read_columns(read, read.ranges, names, with_position=False):
            size += pc.sum(pc.binary_length(found.column(names.index("value")))).as_py()
    return size


def on_spark(
    spark: Any, bootstrap: str, batch: int, pending: int, folder: Path
) -> tuple[int, float]:
    """Run a topology over everything; return the bytes of all values, and how long it took."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    topology = TridentTopology("bench")
    spout = TransactionalKafkaSpout(bootstrap, TOPIC, max_batch_size=batch)
    (
        topology.new_stream("messages", spout)
        .each("value", expr("cast(length(value) as bigint)"), "size bigint")
        .group_by("partition")
        .persistent_aggregate(
            SQLiteState.opaque(folder / "bytes.db", table="bytes"),
            Columns(count=Count(), bytes=("size", Sum())),
        )
    )
    config = Config(home=folder / "home", max_spout_pending=pending)
    began = time.monotonic()
    run = submit(topology, spark, config)
    run.process_all_available(timeout=1_000)
    took = time.monotonic() - began
    run.stop()
    with closing(sqlite3.connect(folder / "bytes.db")) as db:
        ((size,),) = db.execute("SELECT sum(bytes) FROM bytes").fetchall()
    return int(size), took


def structured(spark: Any, bootstrap: str, batch: int, folder: Path) -> tuple[int, float]:
    """Let Structured Streaming's source read everything."""
    sizes: list[int] = []

    def add(frame: Any, _: int) -> None:
        sizes.append(frame.selectExpr("sum(length(value))").collect()[0][0] or 0)

    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = source.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    frame = source.option("maxOffsetsPerTrigger", batch).load()
    query = (
        frame.writeStream.foreachBatch(add)
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(1_000)
    return sum(sizes), time.monotonic() - began


def main() -> None:
    """Measure, check, print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=1_000_000)
    arguments.add_argument("--bytes", type=int, default=100)
    arguments.add_argument("--partitions", type=int, default=4)
    arguments.add_argument("--batch", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--package")
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    settings = {"spark.jars.packages": given.package} if given.package else {}
    results: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, KafkaCluster() as cluster:
        folder = Path(name)
        cluster.create_topic(TOPIC, given.partitions)
        body = b"x" * given.bytes
        cluster.send(
            TOPIC, (body for _ in range(given.messages)), partition=lambda n: n % given.partitions
        )
        spark = embedded_session(folder / "spark.log", settings)
        spout = TransactionalKafkaSpout(cluster.bootstrap, TOPIC)
        sizes = (given.messages, given.partitions)
        ways: dict[str, Callable[[], Any]] = {
            "bare confluent-kafka": lambda: bare(cluster.bootstrap, *sizes),
            "by column, value": lambda: by_column(spout, *sizes, given.batch, ["value"]),
            "by column, all seven": lambda: by_column(
                spout, *sizes, given.batch, list(COLUMNS.names)
            ),
            "Trident on Spark, 1 in flight": lambda: on_spark(
                spark, cluster.bootstrap, given.batch, 1, folder / "one"
            ),
            "Trident on Spark, 3 in flight": lambda: on_spark(
                spark, cluster.bootstrap, given.batch, 3, folder / "three"
            ),
        }
        if given.package:
            ways["Structured Streaming"] = lambda: structured(
                spark, cluster.bootstrap, given.batch, folder / "checkpoint"
            )
        for turn in range(given.rounds + 1):  # the first warms up, and does not count
            for way, run in ways.items():
                began = time.monotonic()
                answer = run()
                took = time.monotonic() - began
                seen, took = answer if isinstance(answer, tuple) else (answer, took)
                assert seen == given.messages * given.bytes, (way, seen)
                if turn:
                    results.setdefault(way, []).append(given.messages / took)
        spark.stop()
    medians = {way: statistics.median(found) for way, found in results.items()}
    best = medians["bare confluent-kafka"]
    if given.json:
        print(json.dumps(medians))
        return
    print(f"{given.messages:,} messages of {given.bytes} bytes, {given.partitions} partitions")
    for way, speed in medians.items():
        print(f"{way:<32} {speed:>12,.0f} messages/s {speed / best:>6.2f} of the bare loop")


if __name__ == "__main__":
    main()
