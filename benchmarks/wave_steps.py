"""What a tuple costs, step by step, without Spark: `python -m benchmarks.wave_steps`.

The wave loop and its shards in one process, over the word count of `benchmarks.core`. What is
printed is processor time, the least of all waves, in microseconds for each tuple: it hardly changes
when the machine is busy with something else, and a step that got slower is found in half a minute.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.core import FORMS, WORDS, check, topology
from benchmarks.data import make_data
from benchmarks.profile import Spans
from waterspout import Config
from waterspout.coordination import spout_tasks
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.coordination.wave_loop import WaveLoop, WaveSetup
from waterspout.testing._waves import InProcessWaves
from waterspout.waves import over_waves, shards, spouts
from waterspout.waves.bolts import BoltTask


def watch(spans: Spans) -> None:
    """Time the steps of a wave."""
    for owner, name, label in (
        (BoltTask, "_execute", "worker: execute"),
        (BoltTask, "_execute_batches", "worker: execute"),
        (BoltTask, "run", "worker: intake"),
        (BoltTask, "state", "worker: memories"),
        (BoltTask, "close_books", "worker: acks"),
        (over_waves, "combine", "worker: acks"),
        (over_waves, "seal", "worker: ids"),
        (over_waves, "weeded", "worker: look at values"),
        (shards.ShardInput, "row", "pack"),
        (over_waves, "pack", "pack"),
        (shards, "unpack", "unpack"),
        (over_waves, "unpack", "unpack"),
        (spouts.SpoutTask, "hand_out", "driver: frames and ids"),
        (spout_tasks.SpoutTasks, "ask", "driver: ask spouts"),
        (spout_tasks.SpoutTasks, "_track", "driver: acks"),
        (spout_tasks.SpoutTasks, "finish_wave", "driver: acks"),
        (spout_tasks.SpoutTasks, "_ack", "driver: tell spouts"),
    ):
        spans.wrap(owner, name, label)


def main() -> None:
    """Run some waves and print the least that each step took in one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--form", choices=list(FORMS), default="tracked")
    parser.add_argument("--wave", type=int, default=25_000, help="sentences in a wave")
    parser.add_argument("--waves", type=int, default=6)
    arguments = parser.parse_args()
    file = sorted(make_data(Path(__file__).parent / "data", 1_000_000, 20).iterdir())[0]
    spans = Spans(time.process_time)
    watch(spans)
    with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as folder:
        found = waves(spans, file, folder, arguments)
        check(Path(folder), file, arguments.wave * arguments.waves)
    tuples = arguments.wave * (WORDS + 1)
    for label, seconds in sorted(found.items(), key=lambda each: -each[1]):
        print(f"{label:24} {1e6 * seconds / tuples:7.3f} us a tuple")
    print(f"{'together':24} {1e6 * sum(found.values()) / tuples:7.3f} us a tuple")


def waves(spans: Spans, file: Path, folder: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the least time of each step in any full wave."""
    size = arguments.wave
    made, _ = topology(file, size * arguments.waves, arguments.form, folder)
    config = Config(
        ackers=FORMS[arguments.form],
        home=folder,
        wave_max_tuples=size,
        wave_secs=60,
        wave_budget_secs=60,
        wave_collapse_tuples=0,
    )
    letters = DeadLetters(None, limit=10)
    setup = WaveSetup(made, InProcessWaves(2), MemoryCoordinationStore("bench"), letters, config)
    loop: Any = WaveLoop(setup, time.monotonic)
    loop.start()
    loop._pacing.size = size  # whole waves from the first one on
    least: dict[str, float] = {}
    while not loop.is_idle:
        while loop.spouts.collected < size and loop.spouts.ask(size):
            pass
        before = loop.waves
        loop.step()  # a wave begins and ends in it
        if loop.waves > before:
            for label, total in spans.totals.items():
                least[label] = min(total.seconds, least.get(label, total.seconds))
            spans.clear()
    loop.close()
    return least


if __name__ == "__main__":
    main()
