"""A driver that wants a topology whenever nobody else has it: on a host of its own, see test_hosts.

    python -m tests.cluster.elsewhere FOLDER NAME ZOOKEEPER REDIS

Appends to FOLDER/NAME.jsonl what happens to it. Ends when FOLDER/stop is there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.cluster.faulty import KEYS
from tests.spark.backend_support import Numbers
from waterspout import Config, submit
from waterspout.errors import LeaseHeldError, WaterspoutError
from waterspout.events import BatchCommitted
from waterspout.spark.starting import embedded_session
from waterspout.state.redis import RedisState
from waterspout.trident import Columns, Count, Sum, TridentState, TridentTopology, expr

LEASE_S = 3.0
OUTAGE_S = 20.0
WITHOUT_END = 10**12


def summed(redis: str) -> tuple[TridentTopology, TridentState]:
    """Sums of numbers in Redis; each attempt at a batch draws its size anew."""
    topology = TridentTopology("sums")
    state = RedisState.opaque(redis, "sums", timeout_secs=2)
    sums = (
        topology.new_stream("numbers", Numbers(WITHOUT_END, (500, 600), (200, 300)))
        .each("value", expr(f"cast(value % {KEYS} as bigint)"), out="k bigint")
        .group_by("k")
        .persistent_aggregate(state, Columns(total=("value", Sum()), n=Count()))
        .parallelism_hint(2)
    )
    return topology, sums


def main(folder: Path, name: str, zookeeper: str, redis: str) -> None:
    def tell(**what: Any) -> None:
        with open(folder / f"{name}.jsonl", "a") as file:
            file.write(json.dumps({"at": time.time(), **what}) + "\n")

    config = Config(
        home=str(folder / f"home-{name}"),
        zookeeper_servers=[zookeeper],
        lease_secs=LEASE_S,
        outage_secs=OUTAGE_S,
        commit_in="tasks",
        retry_backoff_millis=20,
        batch_timeout_secs=30,
    )
    spark = embedded_session(folder / f"{name}-spark.log")
    tell(what="ready")
    while not (folder / "stop").exists():
        try:
            run = submit(summed(redis)[0], spark, config)
        except LeaseHeldError:
            time.sleep(0.2)
            continue
        except WaterspoutError as error:
            tell(what="refused", error=f"{type(error).__name__}: {error}")
            time.sleep(0.5)
            continue
        tell(what="took over")
        run.subscribe(
            lambda event: (
                tell(what="committed", txid=event.attempt.txid)
                if isinstance(event, BatchCommitted)
                else None
            )
        )
        try:
            while not run.await_termination(0.2):
                if (folder / "stop").exists():
                    run.stop()
        except WaterspoutError as error:
            tell(what="lost it", error=f"{type(error.__cause__ or error).__name__}: {error}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
