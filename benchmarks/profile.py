"""Where each millisecond of a batch and of a wave goes: `make profile`.

Calls that matter are timed as they are made, each without what is timed inside it, in whatever
thread. A batch is that of the word count, one in flight, into SQLite; a wave is that of the word
count of spouts and bolts. What is printed is a mean over batches (waves) of a warm run, with how
often something is called. Last comes which process uses the cores where all are busy.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core import run as run_waves
from benchmarks.data import make_data
from benchmarks.processor_time import costs_of_words

SIZES = (1_000, 50_000)
BATCHES = 20
WAVE = 50_000


@dataclass
class Total:
    """What was found of one kind of calls: their own time, and how many there were."""

    seconds: float = 0.0
    calls: int = 0


class Spans:
    """Times calls; a call within another is taken off the other."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.totals: dict[str, Total] = defaultdict(Total)
        self._lock = threading.Lock()
        self._here = threading.local()

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Time a method of a class, or a function of a module, under a label."""
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.span(label):
                return function(*args, **kwargs)

        setattr(owner, name, timed)

    @contextmanager
    def span(self, label: str) -> Iterator[None]:
        """Time what is done here."""
        stack: list[float] = self._here.__dict__.setdefault("inner", [])
        stack.append(0.0)
        began = self._clock()
        try:
            yield
        finally:
            took = self._clock() - began
            inner = stack.pop()
            if stack:
                stack[-1] += took
            with self._lock:
                total = self.totals[label]
                total.seconds += took - inner
                total.calls += 1

    def clear(self) -> None:
        """Forget what was found."""
        with self._lock:
            self.totals.clear()


def watch(spans: Spans) -> None:
    """Time what a batch and a wave are made of."""
    from py4j.clientserver import JavaClient
    from pyspark.sql.classic.dataframe import DataFrame

    from waterspout.coordination.commit_protocol import CommitProtocol
    from waterspout.coordination.embedded import EmbeddedStore
    from waterspout.coordination.wave_loop import WaveLoop
    from waterspout.spark import engine
    from waterspout.spark.prepared import Filled, PreparedPlans
    from waterspout.spark.steps import StepRunner
    from waterspout.spark.supersteps import SparkWaves
    from waterspout.spouts.files import _FilePlanner
    from waterspout.state.sqlite._map import SQLiteMap

    spans.wrap(JavaClient, "send_command", "calls into the JVM (py4j)")
    for owner, name in ((DataFrame, "toArrow"), (Filled, "to_arrow")):
        spans.wrap(owner, name, "the Spark job, and its rows as Arrow")
    spans.wrap(PreparedPlans, "_fill", "fill in a plan: the rest")
    for name, label in (
        ("process", "processing: the rest"),
        ("_read", "describe the read"),
        ("_derive", "describe the operations"),
        ("_collect", "bring rows to the driver: the rest"),
        ("_prepared", "prepare rows for the state"),
        ("_write_and_tell", "write the state: the rest"),
    ):
        spans.wrap(StepRunner, name, label)
    spans.wrap(engine, "input_rows", "count what was read")
    spans.wrap(EmbeddedStore, "save", "the ledger, durably")
    for name in ("claim", "settle", "mark", "begin"):
        spans.wrap(CommitProtocol, name, f"{name}: the rest")
    spans.wrap(SQLiteMap, "move_head", "SQLite: heads")
    spans.wrap(SQLiteMap, "_upsert", "SQLite: rows")
    spans.wrap(_FilePlanner, "plan", "plan the next batch: which files")
    spans.wrap(_FilePlanner, "_look", "look for new files")
    for name, label in (
        ("_collect", "spouts: collect and tell"),
        ("_start_wave", "prepare the wave"),
        ("_finish", "fold its acks, tell spouts"),
    ):
        spans.wrap(WaveLoop, name, label)
    spans.wrap(SparkWaves, "_guard", "the Spark job of the wave: the rest")


def main() -> None:
    """Print a table for batches of each size, and one for waves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="sentences in a batch")
    parser.add_argument("--waves", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--processor", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    spans = Spans()
    watch(spans)
    for size in arguments.sizes:
        profile_batches(spans, size)
    if arguments.waves:
        profile_waves(spans)
    if arguments.processor:
        profile_processes()


def profile_batches(spans: Spans, size: int) -> None:
    """Run the word count twice; the second time counts."""
    from waterspout import Config, submit
    from waterspout.spouts.files import FileSpout
    from waterspout.state.sqlite import SQLiteState
    from waterspout.trident import Count, Split, TridentTopology

    data = make_data(Path(__file__).parent / "data", size * BATCHES, BATCHES)
    with tempfile.TemporaryDirectory(prefix="waterspout-profile-") as folder:
        for turn in range(3):
            spans.clear()
            topology = TridentTopology(f"profile-{turn}")
            state = SQLiteState.opaque(Path(folder) / f"{turn}.db", table="counts")
            lines = topology.new_stream("lines", FileSpout(data, max_files=1))
            words = lines.each("value", Split(), out="word").group_by("word")
            words.persistent_aggregate(state, Count(), out="count").parallelism_hint(1)
            conf = Config(home=f"{folder}/home", max_spout_pending=1)
            run = submit(topology, config=conf)
            run.process_all_available(timeout=600)
            run.stop()
            progress = list(run.recent_progress)[2:]
        between = progress[-1]["timestamp"] - progress[0]["timestamp"]
        whole = between / (len(progress) - 1)
    print_table(f"a batch of {size:,} sentences, one in flight", spans, BATCHES, whole)


def profile_waves(spans: Spans) -> None:
    """Run waves twice; the second time counts."""
    from waterspout.spark.starting import embedded_session

    data = make_data(Path(__file__).parent / "data", 1_000_000, 20)
    file = sorted(data.iterdir())[0]
    sentences = 10 * WAVE
    for _ in range(2):
        spans.clear()
        rate = run_waves(embedded_session(), file, sentences, WAVE, "tracked")
    waves = spans.totals["the Spark job of the wave: the rest"].calls or 1
    print_table(f"a wave of {WAVE:,} sentences, tracked", spans, waves, 9 * sentences / rate / 10)


def profile_processes(passes: int = 4, pending: int = 3) -> None:
    """Show how the processes of a topology share the cores, pass by pass."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"a batch of 50,000 sentences into Redis, {pending} in flight: processor time, ms"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    heads = ("pass", "by the clock", "JVM's compilers", "JVM, the rest", "driver", "Redis")
    for head in heads:
        table.add_column(head, justify="right")
    for number, cost in enumerate(costs_of_words(passes, pending), 1):
        parts = (cost.clock, cost.compilers, cost.jvm - cost.compilers, cost.driver, cost.redis)
        table.add_row(str(number), *(f"{each:.0f}" for each in parts))
    Console(width=100).print(table)


def print_table(title: str, spans: Spans, times: int, whole_s: float) -> None:
    """Print what was found for each of them; steps that take next to nothing are added up."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}: {1000 * whole_s:.1f} ms", box=box.SIMPLE, title_justify="left")
    table.add_column("")
    for head in ("ms", "calls"):
        table.add_column(head, justify="right")
    rows: Sequence[tuple[str, Total]] = sorted(
        spans.totals.items(), key=lambda each: -each[1].seconds
    )
    for label, total in rows:
        each = 1000 * total.seconds / times
        if each >= 0.05:
            table.add_row(label, f"{each:.1f}", f"{total.calls / times:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
