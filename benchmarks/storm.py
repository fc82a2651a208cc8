"""The same work beside Apache Storm itself, taking turns: `make bench-storm STORM=FOLDER`.

FOLDER has the program `run`, which builds topologies for Storm's local mode and prints a line of
JSON for each workload that it is given: name, tuples_per_s, exact. It is copied to build/storm
first, since it builds in its own folder. Java, Maven and redis-server are needed. A sentence and
its eight words are nine tuples on either side. A result of Storm's that is not exact (a message
that was never acked) is told and left out; one of ours ends the run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import Ratio, Results, add_json_option

ROOT = Path(__file__).parents[1]
TUPLES_OF_A_SENTENCE = 9

Rates = dict[str, float]


@dataclass(frozen=True)
class Match:
    """What both do, and what is wanted of it."""

    storm: Sequence[str]
    """Storm's workloads; the fastest of them counts, and runs alone in later rounds."""
    ours: Sequence[str]
    """The arguments of our benchmark."""
    names: Mapping[str, tuple[str, float]]
    """Our rates by the name that the benchmark has for them: Storm's workload, and the aim."""
    tuples: int = 1
    """How many tuples one of what our benchmark counts is."""


def _core(storm: Sequence[str], forms: Mapping[str, float]) -> Match:
    # Waves of our best setting: what a wave costs beside its tuples is shared by more of them.
    ours = ["core", "--forms", *forms, "--sentences", "3000000", "--wave", "500000"]
    return Match(storm, ours, {form: ("", aim) for form, aim in forms.items()})


MATCHES = {
    "spouts and bolts": _core(["core-acked"], {"tracked": 1.0, "by column": 3.0}),
    "a bolt in Python, beside storm.py": _core(
        ["multilang/1000-1x1", "multilang/1000-2x1"], {"tracked": 20.0}
    ),
    "a bolt in Python, beside its best": _core(["multilang"], {"tracked": 20.0}),
    "Trident into Redis": Match(
        ["trident-redis/3"],
        ["word_count", "--redis", "--only", "waterspout, 3 in"],
        {"waterspout, 3 in flight": ("", 3.0)},
        TUPLES_OF_A_SENTENCE,
    ),
    "transactional": Match(
        ["transactional"],
        ["transactional", "--by-column"],
        {
            f"{pending} in flight{form}": (f"/{pending} pending", 1.0)
            for form in ("", ", by column")
            for pending in (1, 4)
        },
    ),
}


def main() -> None:
    """Take turns, and print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--storm", type=Path, required=True, help="the folder with Storm's side")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of what to run")
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    arguments = parser.parse_args()
    storm = copied(arguments.storm)
    results = Results()
    for name, match in MATCHES.items():
        if any(part in name for part in arguments.only):
            found = compare(name, match, storm, arguments.rounds)
            results.rates |= found.rates
            results.ratios += found.ratios
    for ratio in results.ratios:
        met = "" if ratio.is_met else "   missed"
        rounds = " ".join(f"{value:.2f}" for value in ratio.values)
        print(f"{ratio.name:40} {ratio.median:6.2f} of {ratio.of} ({rounds}); aim {ratio.aim}{met}")
    results.write(arguments.json)


def copied(folder: Path) -> Path:
    """Return a copy of Storm's side in which it may build; what was built before is kept."""
    if not (folder / "run").exists():
        raise SystemExit(f"{folder} has no program `run`: say where Storm's side is with STORM=...")
    target = ROOT / "build" / "storm"
    shutil.copytree(folder, target, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.name == "run" else 0o644)
    return target


def compare(name: str, match: Match, storm: Path, rounds: int) -> Results:
    """Let both take turns; return our share of Storm's best setting."""
    sides: list[tuple[str, Callable[[], Rates]]] = [
        ("Storm", lambda: storm_rates(storm, workloads)),
        ("ours", lambda: own_rates(match)),
    ]
    workloads = list(match.storm)
    rates: dict[str, list[float]] = {}
    for turn in range(rounds):
        for side, measure in sides:
            for what, rate in measure().items():
                rates.setdefault(f"{side}: {what}", []).append(rate)
                print(
                    f"round {turn + 1}  {name}  {side}: {what:34} {rate:12,.0f} tuples/s",
                    flush=True,
                )
        if turn == 0 and not any(suffix for suffix, _ in match.names.values()):
            workloads = [max(_of_storm(rates, ""), key=lambda each: statistics.median(rates[each]))]
            workloads = [each.removeprefix("Storm: ") for each in workloads]
    ratios = []
    for ours, (suffix, aim) in match.names.items():
        theirs = [each for each in _of_storm(rates, suffix) if len(rates[each]) == rounds]
        best = max(theirs, key=lambda each: statistics.median(rates[each]))
        pairs = zip(rates[f"ours: {ours}"], rates[best], strict=True)
        values = [mine / other for mine, other in pairs]
        ratios.append(Ratio(f"{name}, {ours}", best, values, aim))
    return Results({f"{name}, {each}": found for each, found in rates.items()}, ratios)


def _of_storm(rates: Mapping[str, Any], suffix: str) -> list[str]:
    return [each for each in rates if each.startswith("Storm: ") and each.endswith(suffix)]


def storm_rates(storm: Path, workloads: Sequence[str]) -> Rates:
    """Run Storm's workloads once; return tuples per second."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.jsonl")
        command = [sys.executable, "run", *workloads, "--out", str(out)]
        done = subprocess.run(command, cwd=storm, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    exact = [line for line in lines if line.get("exact")]
    for line in lines:
        if line not in exact:
            rate = line.get("tuples_per_s")
            print(f"left out, not exact: {line['name']} of Storm, {rate} tuples/s")
    lines = exact
    if not lines:
        raise SystemExit(
            f"{workloads} on Storm failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        )
    several = len({line["name"] for line in lines}) < len(lines)
    return {
        line["name"] + (f"/{line['pending']} pending" if several else ""): line["tuples_per_s"]
        for line in lines
    }


def own_rates(match: Match) -> Rates:
    """Run our benchmark once; it checks its results itself."""
    module, *options = match.ours
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "found.json")
        command = [sys.executable, "-m", f"benchmarks.{module}", *options, "--rounds", "1"]
        command += ["--json", str(target)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{options} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        found = Results.read(target)
    return {name: match.tuples * found.rates[name][0] for name in match.names}


if __name__ == "__main__":
    main()
