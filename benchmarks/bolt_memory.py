"""What a wave costs by what its bolt remembers: `make bench-memory`.

A bolt counts in a dict. The sizes of the dict take turns in one process and session; waves of 1,000
tuples, whose keys are drawn from all of it. What counts is the time from the end of a wave to the
end of the next, beside that of the smallest dict. The counts are checked against a recount.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from waterspout import BasicBolt, Config, Spout, TopologyBuilder, submit
from waterspout.spark.starting import embedded_session

WAVE = 1_000


class Keys(Spout):
    """Keys drawn at random, each with an id."""

    output_fields = ("key",)

    def __init__(self, drawn: list[str]) -> None:
        self._drawn = drawn

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        """Begin."""
        self._collector = collector
        self._next = 0

    def next_tuple(self) -> None:
        """Emit one key."""
        if self._next < len(self._drawn):
            self._collector.emit([self._drawn[self._next]], msg_id=self._next)
            self._next += 1


class Count(BasicBolt):
    """Counts keys, in memory; from the start it has one of each."""

    def __init__(self, keys: int, folder: str) -> None:
        self._keys, self._folder = keys, folder

    def prepare(self, conf: Any, context: Any) -> None:
        """Begin with one of each."""
        self.counts = dict.fromkeys(map(key, range(self._keys)), 1)

    def execute(self, tuple: Any, collector: Any) -> None:
        """Count a key."""
        self.counts[tuple["key"]] = self.counts.get(tuple["key"], 0) + 1

    def cleanup(self) -> None:
        """Leave the counts to be checked."""
        Path(self._folder, "counts.json").write_text(json.dumps(self.counts))


def key(number: int) -> str:
    """Return one of the keys."""
    return f"key-{number}"


def main() -> None:
    """Take turns, and print times and ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--waves", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default=None, help="as local-cluster[2,1,1024]; else local")
    arguments = parser.parse_args()
    if arguments.master:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.master(arguments.master).getOrCreate()
    else:
        spark = embedded_session()
    seconds: dict[int, list[float]] = {keys: [] for keys in arguments.keys}
    for turn in range(arguments.rounds):
        for keys, found in seconds.items():
            times = run(spark, keys, arguments.waves)
            found += times
            print(
                f"round {turn + 1}  {keys:9,} keys  median {statistics.median(times) * 1e3:7.1f} ms"
                f"  mean {statistics.mean(times) * 1e3:7.1f} ms  a wave",
                flush=True,
            )
    smallest = arguments.keys[0]
    print()
    for keys, found in seconds.items():
        median = statistics.median(found) / statistics.median(seconds[smallest])
        mean = statistics.mean(found) / statistics.mean(seconds[smallest])
        print(
            f"{keys:9,} keys: a wave of {WAVE:,} tuples takes {median:.2f} times as long as with "
            f"{smallest:,} (mean {mean:.2f})"
        )


def run(spark: Any, keys: int, waves: int) -> list[float]:
    """Run the topology once; return the seconds of each wave, the first ten left out."""
    dice = random.Random(keys)
    drawn = [key(dice.randrange(keys)) for _ in range(WAVE * (waves + 10))]
    with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as folder:
        builder = TopologyBuilder()
        builder.set_spout("keys", Keys(drawn))
        builder.set_bolt("count", Count(keys, folder)).fields_grouping("keys", "key")
        config = Config(home=folder, wave_max_tuples=WAVE, wave_secs=60, wave_budget_secs=60)
        running = submit(builder.create_topology("bench"), spark, config)
        running.process_all_available(timeout=600)
        ends = [entry["timestamp"] for entry in running.recent_progress if entry["tuples"]]
        running.stop()
        found = json.loads(Path(folder, "counts.json").read_text())
    truth = Counter(map(key, range(keys)))
    truth.update(drawn)
    assert found == truth, "the counts are wrong"
    return [after - before for before, after in pairwise(ends[10:])]


if __name__ == "__main__":
    main()
