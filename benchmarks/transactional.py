"""The global count with batches in flight: `make bench-transactional`.

A committer that waits, as for a slow database, as long as the processing of a batch takes. With one
batch in flight the two add up; with four, one batch waits while others are processed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Ratio, Results, add_json_option
from waterspout import Config, submit
from waterspout.spark.starting import embedded_session
from waterspout.transactional import (
    BatchBolt,
    BatchCoordinator,
    BatchEmitter,
    Committer,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)

WARM_UP = 4
"""Batches at the beginning that do not count: with four in flight so many begin in the dark, before
the first has told how much there is to do."""


class Ranges(TransactionalSpout):
    """Batches of numbers: each task emits its share of a range."""

    output_fields = ("tx", "n")

    def __init__(self, size: int, batches: int) -> None:
        self.size = size
        self.batches = batches

    def get_coordinator(self, conf: Any, context: Any) -> BatchCoordinator:
        """Return who cuts the ranges."""
        return _Cut(self.size, self.batches)

    def get_emitter(self, conf: Any, context: Any) -> BatchEmitter:
        """Return who emits them."""
        return _Emit(context)


class _Cut(BatchCoordinator):
    def __init__(self, size: int, batches: int) -> None:
        self._size = size
        self._left = batches

    def is_ready(self) -> bool:
        return self._left > 0

    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        self._left -= 1
        start = 0 if previous is None else previous[1]
        return [start, start + self._size]


class _Emit(BatchEmitter):
    def __init__(self, context: Any) -> None:
        self._index = context.this_task_index
        self._tasks = len(context.tasks[context.this_component_id])

    def emit_batch(self, attempt: Any, metadata: Any, collector: Any) -> None:
        for n in range(metadata[0] + self._index, metadata[1], self._tasks):
            collector.emit([attempt, n])


class RangesByColumn(Ranges):
    """The same, each share as one column."""

    def get_emitter(self, conf: Any, context: Any) -> BatchEmitter:
        """Return who emits them."""
        return _EmitByColumn(context)


class _EmitByColumn(_Emit):
    def emit_batch(self, attempt: Any, metadata: Any, collector: Any) -> None:
        collector.emit_batch([np.arange(metadata[0] + self._index, metadata[1], self._tasks)])


class PartialCount(BatchBolt):
    """Counts what a task gets."""

    output_fields = ("tx", "count")

    def prepare(self, conf: Any, context: Any, collector: Any, id: Any) -> None:
        """Begin with nothing."""
        super().prepare(conf, context, collector, id)
        self.count = 0

    def execute(self, tuple: Any) -> None:
        """Count."""
        self.count += 1

    def finish_batch(self) -> None:
        """Pass the count on."""
        self.collector.emit([self.id, self.count])


class PartialCountByColumn(PartialCount):
    """The same, by column."""

    def execute_batch(self, batch: Any) -> None:
        """Count."""
        self.count += batch.num_rows


class SlowSum(BatchBolt, Committer):
    """Adds the counts to a file, with the txid, after a wait."""

    output_fields = ("tx", "sum")

    def __init__(self, path: str, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s

    def prepare(self, conf: Any, context: Any, collector: Any, id: Any) -> None:
        """Begin with nothing."""
        super().prepare(conf, context, collector, id)
        self.sum = 0

    def execute(self, tuple: Any) -> None:
        """Add a partial count."""
        self.sum += tuple["count"]

    def finish_batch(self) -> None:
        """Wait, then store the sum unless this batch is already in it."""
        time.sleep(self._wait_s)
        path = Path(self._path)
        txid, value = map(int, path.read_text().split()) if path.exists() else (0, 0)
        if txid != self.id.transaction_id:
            path.write_text(f"{self.id.transaction_id} {value + self.sum}")


def main() -> None:
    """Learn how long processing takes, then take turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuples", type=int, default=100_000, help="tuples in a batch")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--by-column", action="store_true", help="also by column")
    add_json_option(parser)
    arguments = parser.parse_args()
    spark = embedded_session()
    forms = {"": False, ", by column": True} if arguments.by_column else {"": False}
    rates: dict[str, list[float]] = {}
    for form, by_column in forms.items():
        rates |= measure(spark, arguments, form, by_column)
    print()
    ratios = [
        Ratio.between(f"4 in flight{form}", f"1 in flight{form}", rates, 1.8) for form in forms
    ]
    for ratio in ratios:
        print(f"{ratio.name:24} {ratio.median:.2f} of {ratio.of}")
    Results(rates, ratios).write(arguments.json)


def measure(
    spark: Any, arguments: argparse.Namespace, form: str, by_column: bool
) -> dict[str, list[float]]:
    """Learn how long one form's processing takes; return its rates with such a wait, in turns."""
    size, batches = arguments.tuples, arguments.batches
    run(spark, size, batches, 1, 0.0, by_column)  # the JVM warms up
    _, processing_s = run(spark, size, batches, 1, 0.0, by_column)
    print(f"processing{form} takes {processing_s:.3f} s; so does the wait in each commit")
    rates: dict[str, list[float]] = {f"1 in flight{form}": [], f"4 in flight{form}": []}
    for turn in range(arguments.rounds):
        for (name, found), pending in zip(rates.items(), (1, 4), strict=True):
            rate, _ = run(spark, size, batches, pending, processing_s, by_column)
            found.append(rate)
            print(f"round {turn + 1}  {name:24} {rate:12,.0f} tuples/s", flush=True)
    return rates


def run(
    spark: Any, size: int, batches: int, pending: int, wait_s: float, by_column: bool = False
) -> tuple[float, float]:
    """Run the topology; return its tuples per second, and how long processing takes."""
    spout = (RangesByColumn if by_column else Ranges)(size, batches)
    partial = PartialCountByColumn() if by_column else PartialCount()
    with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as folder:
        path = Path(folder, "sum")
        builder = TransactionalTopologyBuilder("bench", "numbers", spout, 4)
        builder.set_bolt("partial", partial, 4).shuffle_grouping("numbers")
        builder.set_bolt("sum", SlowSum(str(path), wait_s)).global_grouping("partial")
        config = Config(home=folder, max_spout_pending=pending)
        running = submit(builder.build_topology(), spark, config)
        running.process_all_available(timeout=600)
        progress = running.recent_progress
        running.stop()
        assert path.read_text() == f"{batches} {batches * size}", path.read_text()
    times = [entry["timestamp"] for entry in progress]
    rate = size * (len(times) - 1 - WARM_UP) / (times[-1] - times[WARM_UP])
    return rate, statistics.median(entry["processing_s"] for entry in progress[WARM_UP:])


if __name__ == "__main__":
    main()
