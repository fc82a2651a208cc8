"""Word count side by side: `make bench`.

Peers take turns, so that a disturbance of the machine hits all of them; each run is a process
of its own, checked word by word against a recount; the rate is that of the last pass, without
its first two batches. Ratios are what to look at: the machine itself is noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.data import make_data, true_counts
from benchmarks.peers import TABLE
from benchmarks.results import Ratio, Results, add_json_option
from benchmarks.turns import WARM_UP, report_of, steady_rate
from tests.services.servers import RedisServer

STREAMS = {
    "by hand, driver": ["by-hand-driver"],
    "by hand, executors": ["by-hand-executors"],
    "waterspout, 1 in flight": ["waterspout", "--pending", "1"],
    "waterspout, 3 in flight": ["waterspout", "--pending", "3"],
    "waterspout, a backlog": ["backlog"],
}
IN_PYTHON = {
    "by hand, a Python UDF": ["by-hand-udf"],
    "waterspout, Python that yields": ["waterspout", "--form", "generator"],
}


def main() -> None:
    """Run all peers in turn and print a table of rates and ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="parts of the names of the peers to run")
    parser.add_argument("--redis", action="store_true", help="count into a Redis, not SQLite")
    parser.add_argument("--cores", type=int, help="how many of the machine's to use")
    parser.add_argument("--aims", nargs="*", default=[], metavar="PEER=RATIO")
    add_json_option(parser)
    arguments = parser.parse_args()
    data = make_data(Path(__file__).parent / "data", arguments.sentences, arguments.files)
    truth = true_counts(data)
    peers = {"one batch job": ["batch"], **STREAMS, **IN_PYTHON}
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])  # and children
    wanted = arguments.only or [""]
    chosen = {n: c for n, c in peers.items() if any(part in n for part in wanted)}
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    with RedisServer(durable=False) if arguments.redis else nullcontext() as server:
        store = [] if server is None else ["--redis", server.url]
        for turn in range(arguments.rounds):
            for name, command in chosen.items():
                rate = run_peer([*command, *store], data, truth, arguments.sentences)
                rates[name].append(rate)
                print(f"round {turn + 1}  {name:26} {rate:12,.0f} sentences/s", flush=True)
    print_table({name: statistics.median(found) for name, found in rates.items()})
    aims = {name: float(aim) for name, _, aim in (each.partition("=") for each in arguments.aims)}
    Results(rates, ratios_of(rates, aims)).write(arguments.json)


def ratios_of(rates: dict[str, list[float]], aims: dict[str, float]) -> list[Ratio]:
    """Return what waterspout reached of the best by hand, and of the batch job."""
    by_hand = [name for name in rates if name in STREAMS and "by hand" in name]
    udf, ours = IN_PYTHON
    found = [Ratio.between(ours, udf, rates, aims.get(ours))] if {udf, ours} <= set(rates) else []
    for name in rates:
        if "in flight" in name and by_hand:
            aim = aims.get(name)
            found.append(Ratio.between(name, "the best by hand", rates, aim, best_of=by_hand))
        elif "backlog" in name and "one batch job" in rates:
            found.append(Ratio.between(name, "one batch job", rates, aims.get(name)))
    return found


def run_peer(command: list[str], data: Path, truth: Counter[str], sentences: int) -> float:
    """Run one peer; return its sentences per second; refuse a wrong count."""
    passes = 4 if command[0] in ("batch", "backlog") else 2  # few jobs a pass: the JVM is cold
    with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as work:
        last = passes_of(command, data, Path(work), passes)[-1]
        if command[0] != "batch":
            check_counts(Path(work) / f"counts-{passes - 1}", truth, command)
    ends: list[float] = last["ends"]
    if len(ends) <= WARM_UP:
        return sentences / (ends[-1] - float(last["began"]))
    return steady_rate(sentences, len(ends), ends)


def passes_of(command: list[str], data: Path, work: Path, passes: int) -> list[dict[str, Any]]:
    """Run one peer in a process of its own; return when each pass began and its batches ended."""
    options = ["--data", str(data), "--work", str(work), "--passes", str(passes)]
    found: list[dict[str, Any]] = report_of("peers", [*command, *options])["passes"]
    return found


def check_counts(path: Path, truth: Counter[str], command: list[str]) -> None:
    """Compare the store with the recount, word by word."""
    if "--redis" in command:
        found = json.loads(path.with_suffix(".json").read_text())
    else:
        with sqlite3.connect(path.with_suffix(".db")) as db:
            found = dict(db.execute(f"SELECT word, count FROM {TABLE}"))
    if found != truth:
        wrong = sum(found.get(word) != count for word, count in truth.items())
        raise SystemExit(f"{command}: {wrong} of {len(truth)} words are wrong")


def print_table(rates: dict[str, float]) -> None:
    """Print each rate as a ratio of the best hand-written stream and of the batch job."""
    hands = [rate for name, rate in rates.items() if name in STREAMS and "by hand" in name]
    by_hand = max(hands, default=None)
    ceiling = rates.get("one batch job")
    print(f"\n{'':26} {'sentences/s':>14} {'of best by hand':>16} {'of batch job':>13}")
    for name, rate in rates.items():
        hand = f"{rate / by_hand:.2f}" if by_hand else "-"
        batch = f"{rate / ceiling:.2f}" if ceiling else "-"
        print(f"{name:26} {rate:14,.0f} {hand:>16} {batch:>13}")


if __name__ == "__main__":
    main()
