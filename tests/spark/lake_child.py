"""A topology over Delta tables and Parquet files: `python -m tests.spark.lake_child FOLDER`.

Numbers go to FOLDER/appended, FOLDER/merged and FOLDER/files until there are none left. Kill points
come in the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.backend_support import Numbers
from tests.spark.killing import session
from waterspout import Config, submit
from waterspout.state.delta import DeltaState
from waterspout.state.parquet import ParquetState
from waterspout.trident import AppendRows, TridentTopology, UpsertRows, expr

LIMIT, KEYS = 2_000, 7


def lake_topology(folder: Path) -> TridentTopology:
    """Numbers and their keys: appended twice, and the last of each key. Replays have fewer."""
    topology = TridentTopology("lake")
    spout = Numbers(LIMIT, (500, 700), (100, 200))
    stream = topology.new_stream("numbers", spout).project("value")
    stream = stream.each("value", expr(f"cast(value % {KEYS} as bigint)"), out="k bigint")
    topology.handles = [
        stream.partition_persist(DeltaState(folder / "appended"), AppendRows()),
        stream.partition_persist(ParquetState(folder / "files"), AppendRows()),
        stream.partition_persist(DeltaState(folder / "merged"), UpsertRows("k", order_by="value")),
    ]
    return topology


def main(folder: Path) -> None:
    config = Config(home=str(folder / "home"), state_partitions=3, idle_poll_millis=20)
    spark = session(folder / "spark.log")
    run = submit(lake_topology(folder), spark, config)
    run.process_all_available(timeout=120)
    run.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
