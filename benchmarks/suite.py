"""All that is measured, in one command of at most twenty minutes: `make bench`.

Runs the benchmarks with sizes that fit, prints each ratio beside its aim, writes build/bench.json
and pictures, and says what got slower than the last run that was kept, by more than noise. With
`--keep` the run is added to the history and the pictures go to the documents.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.pictures import draw_all
from benchmarks.results import Ratio, Results

ROOT = Path(__file__).parents[1]
HISTORY = Path(__file__).parent / "history.jsonl"
NOISE = 0.10
"""Ratios that differ by less than this share are taken for equal, however close the rounds were."""


@dataclass(frozen=True)
class Part:
    """One benchmark and how it is run here."""

    name: str
    module: str
    arguments: tuple[str, ...]
    is_cost: bool = False
    """Whether its ratios are shown as costs: how long a batch takes, not how many there are."""


HALF = ("--sentences", "500000", "--files", "10")
"""Half of the usual sentences, in batches of the usual size: it has to fit into the time."""


def _words(name: str, *arguments: str, is_cost: bool = False) -> Part:
    return Part(name, "word_count", arguments, is_cost)


PARTS = (
    _words("words, SQLite", *HALF, "--only", "by hand, driver", "in flight"),
    _words(
        "words, a backlog", "--only", "batch job", "backlog",
        "--aims", "waterspout, a backlog=0.75",
    ),
    _words(
        "words, Redis", "--redis", "--only", "by hand, driver", "3 in flight",
        "--aims", "waterspout, 3 in flight=3.0",
    ),
    _words(
        "words, Python", *HALF, "--only", "Python",
        "--aims", "waterspout, Python that yields=2.5",
    ),
    _words(
        "1,000 sentences a batch", "--sentences", "20000", "--only", "by hand, driver", "1 in",
        "--aims", "waterspout, 1 in flight=3.34", is_cost=True,
    ),
    _words(
        "10,000 sentences a batch", "--sentences", "200000", "--rounds", "1",
        "--only", "by hand, driver", "1 in", is_cost=True,
    ),
    _words(
        "words on one core", *HALF, "--cores", "1", "--rounds", "1", "--only", "3 in",
    ),
    Part("spouts and bolts", "core", ("--sentences", "300000", "--wave", "30000")),
    Part("transactional", "transactional", ()),
    Part("windows", "windows", ("--rows", "800000", "--files", "8", "--windows", "tumbling")),
    Part(
        "joins", "joins",
        (
            *("--rows", "800000", "--files", "8", "--rounds", "2"),
            *("--against", "structured streaming, foreachBatch"),
        ),
    ),
    Part(
        "states", "states",
        ("--backend", "redis", "postgres", "sqlite", "--part", "rates", "sizes"),
    ),
)  # fmt: skip


def main() -> None:
    """Measure, print, write, draw, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", help="parts of the names of what to run")
    parser.add_argument("--rounds", type=int, help="of each; as each has it, if left out")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--keep", action="store_true", help="add the run to the history")
    arguments = parser.parse_args()
    wanted = arguments.only or [""]
    arguments.out.mkdir(parents=True, exist_ok=True)
    screen, found = Console(width=110), {}
    for part in PARTS:
        if any(word in part.name for word in wanted):
            began = time.monotonic()
            found[part.name] = measure(part, arguments.out, arguments.rounds)
            screen.print(f"[dim]{part.name}: {time.monotonic() - began:.0f} s[/dim]")
    run = described(found)
    (arguments.out / "bench.json").write_text(json.dumps(run, indent=2) + "\n")
    screen.print(table_of(found))
    before = last_kept()
    for line in slower(found, before) if before else ():
        screen.print(f"[red]{line}[/red]")
    pictures = ROOT / "docs" / "images" if arguments.keep else arguments.out
    draw_all(found, pictures)
    if arguments.keep:
        with open(HISTORY, "a") as file:
            file.write(json.dumps(run) + "\n")
    screen.print(f"numbers: {arguments.out / 'bench.json'}; pictures: {pictures}")


def measure(part: Part, out: Path, rounds: int | None) -> Results:
    """Run one benchmark in a process of its own."""
    target = out / f"{part.name.replace(' ', '-').replace(',', '')}.json"
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{part.module}", *part.arguments]
    command += ["--json", str(target)]
    if rounds is not None and "--rounds" not in part.arguments:
        command += ["--rounds", str(rounds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode or not target.exists():
        raise SystemExit(f"{part.name} failed:\n{done.stdout[-3000:]}")
    if part.module == "states":
        return of_states(json.loads(target.read_text()))
    results = Results.read(target)
    if part.is_cost:
        results.ratios = [as_cost(ratio) for ratio in results.ratios]
    return results


def as_cost(ratio: Ratio) -> Ratio:
    """Return how long something takes instead of how much of it there is in a second."""
    aim = None if ratio.aim is None else round(1 / ratio.aim, 2)
    return replace(ratio, values=[1 / each for each in ratio.values], aim=aim, at_most=True)


def of_states(found: Mapping[str, Any]) -> Results:
    """Return the numbers of the states in the common form: shares, and how batches grow."""
    results = Results()
    for rate in found["rates"]:
        name = f"{rate['store']}, {rate['what']}"
        results.rates[name] = [rate["keys_per_s"]]
        if rate["what"] == "opaque, combine" or rate["what"] == "opaque, update":
            aim = 0.85 if "combine" in rate["what"] else 0.5
            results.ratios.append(Ratio(name, "the bare client", [rate["share"]], aim))
    for size in found["sizes"]:
        key = f"{size['store']}, {size['keys']:,} keys"
        results.rates[key] = [1 / size["batch_s"]]
        results.rates[f"bare {key}"] = [1 / size["bare_s"]]
    for store in {size["store"]: None for size in found["sizes"]}:
        last = [size for size in found["sizes"] if size["store"] == store][-1]
        growth = last["growth"] / last["bare_growth"]
        name = f"{store}, a batch with {last['keys']:,} keys"
        results.ratios.append(Ratio(name, "the bare client's growth", [growth], 1.1, at_most=True))
    return results


def described(found: Mapping[str, Results]) -> dict[str, Any]:
    """Return a run as it is kept."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "parts": {name: asdict(results) for name, results in found.items()},
    }


def table_of(found: Mapping[str, Results]) -> Table:
    """Return all ratios, with their aims."""
    table = Table(box=box.SIMPLE)
    for head in ("", "", "of", "median", "rounds", "aim", ""):
        table.add_column(head, justify="right" if head in ("median", "aim") else "left")
    for part, results in found.items():
        for ratio in results.ratios:
            rounds = " ".join(f"{value:.2f}" for value in ratio.values)
            sign = "<=" if ratio.at_most else ">="
            aim = "" if ratio.aim is None else f"{sign} {ratio.aim:g}"
            met = {None: "", True: "[green]met[/green]", False: "[red]missed[/red]"}[ratio.is_met]
            table.add_row(part, ratio.name, ratio.of, f"{ratio.median:.2f}", rounds, aim, met)
    return table


def last_kept() -> Mapping[str, Any] | None:
    """Return the newest run of the history."""
    lines = HISTORY.read_text().splitlines() if HISTORY.exists() else []
    return json.loads(lines[-1]) if lines else None


def slower(found: Mapping[str, Results], before: Mapping[str, Any]) -> Iterable[str]:
    """Give a line for each ratio that is worse than before, by more than noise.

    Noise is what the rounds of either run differ by, and ten percent at least.
    """
    for part, results in found.items():
        old = {
            (r["name"], r["of"]): Ratio(**r)
            for r in before["parts"].get(part, {}).get("ratios", ())
        }
        for ratio in results.ratios:
            was = old.get((ratio.name, ratio.of))
            if was is None:
                continue
            noise = max(NOISE, ratio.spread, was.spread)
            change = ratio.median / was.median
            if (change > 1 + noise) if ratio.at_most else (change < 1 - noise):
                yield (
                    f"slower than on {before['date']} ({before['commit']}): {part}, {ratio.name}: "
                    f"{was.median:.2f} -> {ratio.median:.2f} of {ratio.of}"
                )


if __name__ == "__main__":
    main()
