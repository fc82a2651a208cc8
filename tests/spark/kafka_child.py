"""Counts the messages of topics of a Kafka, or copies them, in a process that is killed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.spark.killing import session
from waterspout import Config, submit
from waterspout.spouts.kafka import OpaqueKafkaSpout, TransactionalKafkaSpout
from waterspout.state.kafka import KafkaState
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState
from waterspout.trident import AppendRows, Columns, Count, Sum, TridentTopology

KINDS = {"transactional": TransactionalKafkaSpout, "opaque": OpaqueKafkaSpout}
KEYS = 1_000


def state_of(store: str, address: str):
    if store == "postgres":
        return PostgresState.opaque(address, table="counts")
    return RedisState.opaque(address, prefix="counts")


def topology_of(settings) -> TridentTopology:
    """Return a topology that counts words into a store, or copies messages into a topic."""
    topology, copies = TridentTopology("storm"), settings["store"] == "kafka"
    spout = KINDS[settings["kind"]](
        settings["bootstrap"],
        settings["topics"],
        value_schema=None if copies else "word string, n bigint",
        columns=["value"] if copies else [],
        max_batch_size=settings["size"],
        refresh_secs=1,
        timeout_secs=3,
    )
    messages = topology.new_stream("messages", spout)
    if copies:
        target = KafkaState(
            settings["bootstrap"], topic=settings["address"], partitions=6, replicas=3
        )
        messages.partition_persist(target, AppendRows()).parallelism_hint(2)
    else:
        state = state_of(settings["store"], settings["address"])
        messages.group_by("word").persistent_aggregate(
            state, Columns(count=Count(), total=("n", Sum()))
        )
    return topology


def main() -> None:
    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text())
    config = Config(max_spout_pending=2, lease_secs=2, outage_secs=300)
    run = submit(topology_of(settings), session(folder / "spark.log"), config)
    told = (folder / "events").open("a", buffering=1)
    run.subscribe(lambda event: told.write(f"{type(event).__name__} {event}\n"))
    (folder / "running").touch()
    while not (folder / "all-sent").exists():
        time.sleep(0.1)
    # A partition that is away is not waited for by an opaque spout: come to rest until all are in.
    while True:
        run.process_all_available(timeout=600)
        lag = run.last_progress.lag["messages"]["offsets"] if run.last_progress else 1
        if lag == 0 and not run.last_progress.unreachable and (folder / "calm").exists():
            break
        time.sleep(0.2)
    run.stop()
    (folder / "done").touch()


if __name__ == "__main__":
    main()
