"""The word count of spouts and bolts, tracked and untracked side by side: `make bench-core`.

All tuples are counted: a sentence and its eight words are nine, each of them anchored and acked
where there are ackers. The two take turns in one process, on one session; the first waves of a run,
which find their size, are left out. The counts are checked against a recount.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.data import make_data
from waterspout import Bolt, Config, Spout, TopologyBuilder, submit
from waterspout.spark.starting import embedded_session

WORDS = 8


class Sentences(Spout):
    """Sentences of a file, over and over, each with an id."""

    output_fields = ("sentence",)

    def __init__(self, path: Path, total: int) -> None:
        self._path = str(path)
        self._total = total

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        """Read the file."""
        self._sentences = Path(self._path).read_text().splitlines()
        self._collector = collector
        self._next = 0
        self.acked = 0

    def next_tuple(self) -> None:
        """Emit one sentence."""
        number = self._next
        if number < self._total:
            self._next = number + 1
            sentence = self._sentences[number % len(self._sentences)]
            self._collector.emit([sentence], msg_id=number)

    def ack(self, msg_id: Any) -> None:
        """Count it."""
        self.acked += 1


class Split(Bolt):
    """Sentences to words."""

    output_fields = ("word",)

    def execute(self, tuple: Any) -> None:
        """Emit each word, anchored to its sentence."""
        for word in tuple["sentence"].split(" "):
            self.collector.emit([word], tuple)
        self.collector.ack(tuple)


class Count(Bolt):
    """Words to their counts so far, in memory."""

    output_fields = ("word", "count")

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        """Begin with nothing."""
        self.collector = collector
        self.counts: dict[str, int] = {}
        self._task = context.this_task_id

    def execute(self, tuple: Any) -> None:
        """Count a word and emit its count."""
        word = tuple["word"]
        count = self.counts.get(word, 0) + 1
        self.counts[word] = count
        self.collector.emit([word, count], tuple)
        self.collector.ack(tuple)

    def cleanup(self) -> None:
        """Leave the counts to be checked."""
        Path(self._folder, f"{self._task}.json").write_text(json.dumps(self.counts))


def main() -> None:
    """Take turns, and print rates and ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--wave", type=int, default=100_000, help="sentences in a wave")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    data = make_data(Path(__file__).parent / "data", 1_000_000, 20)
    file = sorted(data.iterdir())[0]
    spark = embedded_session()
    rates: dict[int, list[float]] = {1: [], 0: []}
    for turn in range(arguments.rounds):
        for ackers, found in rates.items():
            rate = run(spark, file, arguments.sentences, arguments.wave, ackers)
            found.append(rate)
            name = "tracked" if ackers else "untracked"
            print(f"round {turn + 1}  {name:10} {rate:12,.0f} tuples/s", flush=True)
    tracked, untracked = (statistics.median(rates[ackers]) for ackers in (1, 0))
    print(f"\ntracked    {tracked:12,.0f} tuples/s, all anchored and acked")
    print(f"untracked  {untracked:12,.0f} tuples/s (ackers=0)")
    print(f"tracking costs {1 - tracked / untracked:.0%}")


def run(spark: Any, file: Path, sentences: int, wave: int, ackers: int) -> float:
    """Run the topology once; return the tuples per second of its full waves."""
    with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as folder:
        spout = Sentences(file, sentences)
        builder = TopologyBuilder()
        builder.set_spout("sentences", spout)
        builder.set_bolt("split", Split(), 4).shuffle_grouping("sentences")
        builder.set_bolt("count", Count(folder), 4).fields_grouping("split", "word")
        config = Config(
            ackers=ackers, home=folder, wave_max_tuples=wave, wave_secs=60, wave_budget_secs=60
        )
        running = submit(builder.create_topology("bench"), spark, config)
        running.process_all_available(timeout=600)
        progress = running.recent_progress
        running.stop()
        check(Path(folder), file, sentences)
    assert spout.acked == sentences, f"{spout.acked} of {sentences} acked"
    full = [entry for entry in progress if entry["tuples"] >= wave]
    executed = sum(sum(entry["executed"].values()) for entry in full[1:])
    return executed / (full[-1]["timestamp"] - full[0]["timestamp"])


def check(folder: Path, file: Path, sentences: int) -> None:
    """Compare what the bolts have counted with a recount."""
    lines = file.read_text().splitlines()
    truth: Counter[str] = Counter()
    for number, line in enumerate(lines):
        times = len(range(number, sentences, len(lines)))
        for word in line.split(" "):
            truth[word] += times
    found: Counter[str] = Counter()
    for path in folder.glob("*.json"):
        found.update(json.loads(path.read_text()))
    assert found == truth, "the counts are wrong"


if __name__ == "__main__":
    main()
