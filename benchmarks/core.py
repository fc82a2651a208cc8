"""The word count of spouts and bolts, in three forms side by side: `make bench-core`.

With `--latency` instead how long a message takes at a steady rate: from its emit to its ack.

Tuples one by one, tracked and untracked; and tracked by column (`execute_batch`). All tuples are
counted: a sentence and its eight words are nine, each of them anchored and acked where there are
ackers. The forms take turns in one process, on one session; the first waves of a run, which find
their size, are left out. The counts are checked against a recount.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.data import make_data
from benchmarks.results import Ratio, Results, add_json_option
from waterspout import Bolt, Config, Spout, TopologyBuilder, submit
from waterspout.spark.starting import embedded_session
from waterspout.topology import LogSpout, Topology

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


class SentenceLog(LogSpout):
    """The same sentences as a log of two partitions, read by column on the executors."""

    output_fields = ("sentence",)

    def __init__(self, path: Path, total: int) -> None:
        self._path = str(path)
        self._total = total

    def partitions(self) -> list[int]:
        """Return two."""
        return [0, 1]

    def end(self, partition: Any) -> int:
        """Return how many sentences a partition has."""
        return len(range(partition, self._total, 2))

    def read(self, partition: Any, start: int, end: int) -> Any:
        """Give sentences one by one."""
        for offsets, columns in self.read_batch(partition, start, end):
            yield from zip(offsets, zip(columns[0].to_pylist(), strict=True), strict=True)

    def read_batch(self, partition: Any, start: int, end: int) -> Any:
        """Give sentences by column."""
        lines = _lines(self._path)
        numbers = pa.array(range(partition + 2 * start, partition + 2 * end, 2))
        if len(numbers):
            own = pc.subtract(numbers, pc.multiply(pc.divide(numbers, len(lines)), len(lines)))
            yield range(start, end), [lines.take(own)]


_read: dict[str, pa.Array] = {}


def _lines(path: str) -> pa.Array:
    """Return the lines of the file; a worker reads it once."""
    if path not in _read:
        _read[path] = pa.array(Path(path).read_text().splitlines())
    return _read[path]


class SplitColumns(Bolt):
    """Sentences to words, by column."""

    output_fields = ("word",)

    def execute_batch(self, batch: Any, collector: Any) -> None:
        """Emit all words, each anchored to its sentence."""
        words = pc.split_pattern(batch.column(0), " ")
        collector.emit_batch([words.flatten()], parents=pc.list_parent_indices(words))


class CountColumns(Count):
    """Words to their counts so far, by column."""

    def execute_batch(self, batch: Any, collector: Any) -> None:
        """Count the words, and emit each with its count after this batch."""
        encoded = pc.dictionary_encode(batch.column(0))
        words = encoded.dictionary.to_pylist()
        times = [0] * len(words)
        for each in pc.value_counts(encoded.indices).to_pylist():
            times[each["values"]] = each["counts"]
        counts = self.counts
        for word, n in zip(words, times, strict=True):
            counts[word] = counts.get(word, 0) + n
        so_far = pa.array([counts[word] for word in words]).take(encoded.indices)
        collector.emit_batch([batch.column(0), so_far])


class Paced(Sentences):
    """So many sentences a second, each when it is due; remembers how long each took to its ack."""

    def __init__(self, path: Path, total: int, rate: float) -> None:
        super().__init__(path, total)
        self._rate = rate

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        """Start the clock."""
        super().open(conf, context, collector)
        self._began = time.monotonic()
        self.took: list[float] = []

    def next_tuple(self) -> None:
        """Emit one sentence if it is due."""
        if time.monotonic() >= self._began + self._next / self._rate:
            super().next_tuple()

    def ack(self, msg_id: Any) -> None:
        """Note the time since the sentence was due: one that waits to be asked for is late too."""
        super().ack(msg_id)
        self.took.append(time.monotonic() - self._began - msg_id / self._rate)

    def is_drained(self) -> bool:
        """Tell whether there is nothing more to come."""
        return self._next >= self._total


FORMS = {"tracked": 1, "untracked": 0, "by column": 1}


def main() -> None:
    """Take turns, and print rates and ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--wave", type=int, default=100_000, help="sentences in a wave")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", nargs="*", choices=list(FORMS), help="all of them, if left out")
    parser.add_argument("--latency", action="store_true", help="emit to ack, at a steady rate")
    parser.add_argument("--rate", type=float, default=3_000, help="sentences a second, for that")
    parser.add_argument("--seconds", type=float, default=30, help="how long, for that")
    add_json_option(parser)
    arguments = parser.parse_args()
    data = make_data(Path(__file__).parent / "data", 1_000_000, 20)
    file = sorted(data.iterdir())[0]
    spark = embedded_session()
    if arguments.latency:
        latency(spark, file, arguments)
        return
    rates: dict[str, list[float]] = {form: [] for form in arguments.forms or FORMS}
    for turn in range(arguments.rounds):
        for form, found in rates.items():
            rate = run(spark, file, arguments.sentences, arguments.wave, form)
            found.append(rate)
            print(f"round {turn + 1}  {form:10} {rate:12,.0f} tuples/s", flush=True)
    medians = {form: statistics.median(found) for form, found in rates.items()}
    print()
    for form, rate in medians.items():
        of = f"{rate / medians['tracked']:.2f} of tracked" if "tracked" in medians else ""
        print(f"{form:10} {rate:12,.0f} tuples/s  {of}")
    others = [form for form in rates if form != "tracked" and "tracked" in rates]
    Results(rates, [Ratio.between(form, "tracked", rates) for form in others]).write(arguments.json)


def latency(spark: Any, file: Path, arguments: argparse.Namespace) -> None:
    """Print how long messages take from when they are due to their ack."""
    found: dict[str, list[float]] = {"p50": [], "p99": []}
    warm_up = 5.0
    for turn in range(arguments.rounds):
        total = int(arguments.rate * (arguments.seconds + warm_up))
        spout = Paced(file, total, arguments.rate)
        with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as folder:
            builder = TopologyBuilder()
            builder.set_spout("sentences", spout)
            builder.set_bolt("split", Split(), 4).shuffle_grouping("sentences")
            builder.set_bolt("count", Count(folder), 4).fields_grouping("split", "word")
            made = builder.create_topology("latency")
            running = submit(made, spark, Config(home=folder))
            running.process_all_available(timeout=600)
            waves = len(running.recent_progress)
            running.stop()
            check(Path(folder), file, total)
        took = sorted(spout.took[int(arguments.rate * warm_up) :])
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            found[name].append(1000 * took[int(share * (len(took) - 1))])
        told = "  ".join(f"{name} {each[-1]:7.0f} ms" for name, each in found.items())
        print(f"round {turn + 1}  {told}  at {arguments.rate:,.0f}/s, {waves} waves", flush=True)
    print()
    for name, each in found.items():
        print(f"complete latency, {name} {statistics.median(each):7.0f} ms")
    Results(found, []).write(arguments.json)


def topology(file: Path, sentences: int, form: str, folder: str) -> tuple[Topology, Any]:
    """Return the word count in one of its forms, and its spout."""
    by_column = form == "by column"
    spout = (SentenceLog if by_column else Sentences)(file, sentences)
    builder = TopologyBuilder()
    builder.set_spout("sentences", spout, 2 if by_column else 1)
    split = SplitColumns() if by_column else Split()
    builder.set_bolt("split", split, 4).shuffle_grouping("sentences")
    count = CountColumns(folder) if by_column else Count(folder)
    builder.set_bolt("count", count, 4).fields_grouping("split", "word")
    return builder.create_topology("bench"), spout


def run(spark: Any, file: Path, sentences: int, wave: int, form: str) -> float:
    """Run the topology once; return the tuples per second of its full waves."""
    ackers, by_column = FORMS[form], form == "by column"
    with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as folder:
        made, spout = topology(file, sentences, form, folder)
        config = Config(
            ackers=ackers, home=folder, wave_max_tuples=wave, wave_secs=60, wave_budget_secs=60
        )
        running = submit(made, spark, config)
        running.process_all_available(timeout=600)
        progress = running.recent_progress
        running.stop()
        check(Path(folder), file, sentences)
    acked = sentences if by_column else spout.acked  # by column: the counts and positions tell
    assert acked == sentences, f"{acked} of {sentences} acked"
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
