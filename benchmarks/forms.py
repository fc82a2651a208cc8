"""One function in all its forms, side by side: `make bench-forms`.

The word count of `benchmarks.word_count`, in batches of 500,000 sentences, with the split written
as a built-in that runs in the JVM, over Arrow batches, over pandas, and as plain Python. Beside
them two Spark jobs that are neither streams nor write to a store: one counts all in the JVM, one
splits in a Python loop in one `mapInArrow`. The forms do more for their time: each batch is
written to SQLite, exactly once, and checked word by word at the end.

Peers take turns. A rate is that of the whole last pass of a process, from the submission of the
topology to its last commit; what to look at is the median of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.data import make_data, true_counts
from benchmarks.results import Ratio, Results, add_json_option
from benchmarks.word_count import check_counts, passes_of

JOB, LOOP = "Spark job, in the JVM", "Spark job, a Python loop"
PEERS = {
    JOB: ["batch"],
    LOOP: ["loop"],
    "built-in": ["waterspout", "--form", "native"],
    "Arrow function": ["waterspout", "--form", "arrow"],
    "pandas function": ["waterspout", "--form", "pandas"],
    "Python, yields": ["waterspout", "--form", "generator"],
    "Python, returns a list": ["waterspout", "--form", "list"],
    "Python, Function class": ["waterspout", "--form", "class"],
}
AIMS = {("built-in", JOB): 0.5, ("Python, yields", LOOP): 0.6}
PASSES = {"batch": 3, "loop": 3, "waterspout": 2}


def main() -> None:
    """Run all forms in turn and print their rates, ratios, and the aims that were missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--size", type=int, default=500_000, help="sentences of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="parts of the names of the peers to run")
    add_json_option(parser)
    arguments = parser.parse_args()
    sentences = arguments.batches * arguments.size
    data = make_data(Path(__file__).parent / "data", sentences, arguments.batches)
    truth = true_counts(data)
    wanted = arguments.only or [""]
    chosen = {n: c for n, c in PEERS.items() if any(part in n for part in wanted)}
    rounds = []
    for turn in range(arguments.rounds):
        rates = {}
        for name, command in chosen.items():
            rates[name] = sentences / seconds_of(command, data, truth)
            print(f"round {turn + 1}  {name:26} {rates[name]:12,.0f} sentences/s", flush=True)
        rounds.append(rates)
    print_table(rounds)
    by_peer = {name: [rates[name] for rates in rounds] for name in chosen}
    ratios = [
        Ratio.between(name, peer, by_peer, aim)
        for (name, peer), aim in AIMS.items()
        if name in chosen and peer in chosen
    ]
    Results(by_peer, ratios).write(arguments.json)


def seconds_of(command: list[str], data: Path, truth: Counter[str]) -> float:
    """Run one peer in a process of its own; return how long its last pass took."""
    passes = PASSES[command[0]]
    with tempfile.TemporaryDirectory(prefix="waterspout-bench-") as work:
        last = passes_of(command, data, Path(work), passes)[-1]
        if command[0] == "waterspout":
            check_counts(Path(work) / f"counts-{passes - 1}", truth, command)
    return float(last["ends"][-1] - last["began"])


def print_table(rounds: list[dict[str, float]]) -> None:
    """Print medians over the rounds: of the rates, and of the ratios within a round."""
    print(f"\n{'':26} {'sentences/s':>14} {'of the job':>12} {'of the loop':>12}")
    for name in rounds[0]:
        rate = statistics.median(rates[name] for rates in rounds)
        shown = [f"{ratio:.2f}" if (ratio := _ratio(rounds, name, p)) else "-" for p in (JOB, LOOP)]
        print(f"{name:26} {rate:14,.0f} {shown[0]:>12} {shown[1]:>12}")
    for (name, peer), aim in AIMS.items():
        ratio = _ratio(rounds, name, peer)
        if ratio is not None and ratio < aim:
            print(f"missed: {name!r} is {ratio:.2f} of {peer!r}; the aim is {aim}")


def _ratio(rounds: list[dict[str, float]], name: str, peer: str) -> float | None:
    """Return the median over the rounds of one rate by another; None if one of them did not run."""
    if name not in rounds[0] or peer not in rounds[0]:
        return None
    return statistics.median(rates[name] / rates[peer] for rates in rounds)


if __name__ == "__main__":
    main()
