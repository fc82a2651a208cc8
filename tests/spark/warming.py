"""A topology that uses much of Spark: what it makes the JVM load, the tests need too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.trident.support import capture, finish
from waterspout import Config
from waterspout.spark.starting import embedded_session
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, Split, Sum, TridentTopology, expr

ROWS = [("the cow jumped over the moon", 1), ("the man went", 2), ("four score and", 3)]


def run_widely(folder: Path) -> Any:
    """Run the topology; return the process of the JVM, whose session has ended."""
    spark = embedded_session(folder / "spark.log")
    topology = TridentTopology("warming")
    rows = topology.new_stream("rows", FixedBatchSpout("s string, n bigint", 2, ROWS))
    words = rows.each("s", Split(), out="word").each("word", lambda word: len(word), out="m bigint")
    state = SQLiteState.opaque(folder / "t.db", table="t")
    counts = words.group_by("word").persistent_aggregate(state, Count(), out="count")
    capture(counts.new_values_stream(), "word", "count")
    sums = rows.filter(expr("n > 0")).group_by("s").aggregate("n", Sum(), out="total")
    capture(topology.join(rows, "s", sums, "s", out="s, n, total"))
    capture(rows.shuffle().parallelism_hint(2).partition_aggregate("n", Sum(), out="total"))
    finish(topology, spark, Config(home=str(folder / "home")), timeout=300)
    process = spark.sparkContext._gateway.proc
    spark.stop()
    return process
