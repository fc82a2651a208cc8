"""How a batch's cost grows with partitions, tasks, states and sources: `make bench-scale`.

What does not depend on the data: the ledger that the driver writes, by the number of partitions of
a Kafka that a batch pins; what tasks answer to the driver and how long a batch of next to nothing
takes, by the number of tasks that write; the same by the number of states, and of spouts whose
streams are merged. Partitions are simulated, tasks are real, on one machine: times say how costs
grow, not what a cluster takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from waterspout import Config, submit
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.zookeeper_records import pack
from waterspout.spark.starting import embedded_session
from waterspout.spouts._kafka_plan import metadata_of
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger
from waterspout.trident import Count, TridentTopology

IN_FLIGHT = 3
BATCHES = 8
WARM_UP = 3
SAVES = 30


def main() -> None:
    """Print four tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, nargs="*", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--tasks", type=int, nargs="*", default=[2, 10, 100, 1_000])
    parser.add_argument("--states", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--sources", type=int, nargs="*", default=[1, 4, 16])
    arguments = parser.parse_args()
    print(
        "| partitions | a batch's metadata, bytes | the ledger, bytes | in ZooKeeper, bytes "
        "| save, ms |"
    )
    print("|---|---|---|---|---|")
    for partitions in arguments.partitions:
        print("| " + " | ".join(f"{value:,}" for value in _ledger(partitions)) + " |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        spark = embedded_session(Path(folder) / "spark.log")
        for what in ("tasks", "states", "sources"):
            print(f"\n| {what} | answers of a batch, bytes | processing, ms | commit, ms |")
            print("|---|---|---|---|")
            for number in getattr(arguments, what):
                given = {"tasks": 2, what: number}
                answers, *times = _batches(spark, Path(folder) / f"{what}{number}", **given)
                print(f"| {number:,} | {answers:,} | {times[0]:.0f} | {times[1]:.0f} |", flush=True)
        spark.stop()


def _ledger(partitions: int) -> tuple[Any, ...]:
    """Return the sizes of what is stored with some batches in flight, and how long a save takes."""
    positions = {("events", number): 10**9 + 7919 * number for number in range(partitions)}
    ledger = Ledger("scale", {"spouts": {"events": "opaque"}}, "0" * 32)
    metadata: dict[str, Any] = {}
    for txid in range(1, IN_FLIGHT + 2):
        shares = {place: 900 + (17 * txid + place[1]) % 200 for place in positions}
        firsts = dict.fromkeys(positions, 0)
        metadata = {
            "events": metadata_of(
                positions,
                shares,
                ids={"events": "r2CSQ9nNRZCS517j2gNxug"},
                firsts=firsts,
                spout_id="events",
                lost=0,
            )
        }
        attempt = TransactionAttempt(txid, 0)
        ledger = ledger.emit(attempt, metadata)
        if txid == 1:
            ledger = ledger.begin(attempt).commit(attempt)
        positions = {place: start + shares[place] for place, start in positions.items()}
    with tempfile.TemporaryDirectory() as folder:
        store = EmbeddedStore(Path(folder), "scale")
        store.acquire({"spouts": {"events": "opaque"}})
        took = []
        for _ in range(SAVES):
            began = time.perf_counter()
            store.save(ledger)
            took.append(1000 * (time.perf_counter() - began))
        store.release()
    stored = json.dumps(ledger.to_json(), separators=(",", ":"))
    return (
        partitions,
        len(json.dumps(metadata, separators=(",", ":"))),
        len(stored),
        len(pack("ledger", ledger.to_json())),
        round(statistics.median(took), 1),
    )


def _batches(
    spark: Any, folder: Path, tasks: int, states: int = 1, sources: int = 1
) -> tuple[int, float, float]:
    """Run batches of one row for each task; return what they answered, and both phases."""
    folder.mkdir()
    topology = TridentTopology(f"scale-{tasks}-{states}-{sources}")
    rows = [(number,) for number in range(tasks)] * BATCHES
    streams = [
        topology.new_stream(f"rows{number}", FixedBatchSpout("k bigint", tasks, rows))
        for number in range(sources)
    ]
    stream = topology.merge(*streams) if sources > 1 else streams[0]
    for number in range(states):
        path = folder / f"{number}.db"
        state = SQLiteState.opaque(path, table="counts", driver_only=False)
        counted = stream.group_by("k").persistent_aggregate(state, Count(), f"n{number}")
        counted.parallelism_hint(tasks)
    config = Config(home=str(folder / "home"), commit_in="tasks", max_spout_pending=1)
    before = _answered(spark)
    run = submit(topology, spark, config)
    run.process_all_available(timeout=600)
    run.stop()
    entries = list(run.recent_progress)[WARM_UP:]
    return (
        (_answered(spark) - before) // BATCHES,
        1000 * statistics.median(entry["processing_s"] for entry in entries),
        1000 * statistics.median(entry["commit_s"] for entry in entries),
    )


def _answered(spark: Any) -> int:
    """Return the bytes that tasks have sent to the driver as their results, up to now."""
    context = spark.sparkContext
    store = context._jsc.sc().statusStore()
    tracker = context.statusTracker()
    total = 0
    stages = {
        stage
        for job in tracker.getJobIdsForGroup(None)
        if (info := tracker.getJobInfo(job)) is not None
        for stage in info.stageIds
    }
    for stage in stages:
        total += store.lastStageAttempt(stage).resultSize()
    return total


if __name__ == "__main__":
    main()
