"""Pictures of what was measured, for docs/benchmarks.md: bars beside peers, costs as they grow."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.results import Results

__all__ = ["draw_all", "figure", "save"]

OURS, THEIRS, AIM = "#0f7a9c", "#9aa7b0", "#d35400"
mpl.rcParams["svg.hashsalt"] = "waterspout"  # the same picture of the same numbers
mpl.rcParams["font.size"] = 10


def figure(rows: int = 1, *, height: float = 3.0) -> tuple[Figure, Any]:
    """Return a figure of some panels, one below the other, and the panels."""
    made = Figure(figsize=(8.5, height), layout="constrained")
    panels = made.subplots(rows, 1, sharex=rows > 1)
    for panel in panels if rows > 1 else [panels]:
        panel.spines[["top", "right"]].set_visible(False)
    return made, panels


def save(made: Figure, path: Path) -> None:
    """Write a figure as SVG, without a date in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, metadata={"Date": None})


def draw_all(found: Mapping[str, Results], folder: Path) -> None:
    """Draw what there are numbers for."""
    rates = {part: _medians(results) for part, results in found.items()}
    _bars(found, folder / "bench-ratios.svg")
    sizes = {
        1_000: rates.get("1,000 sentences a batch"),
        10_000: rates.get("10,000 sentences a batch"),
        50_000: rates.get("words, SQLite"),
    }
    if all(sizes.values()):
        _by_size({size: each for size, each in sizes.items() if each}, folder / "bench-sizes.svg")
    if "states" in rates:
        _by_keys(rates["states"], folder / "bench-keys.svg")
    if {"words on one core", "words, SQLite"} <= set(rates):
        _by_cores(rates["words on one core"], rates["words, SQLite"], folder / "bench-cores.svg")


def _medians(results: Results) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in results.rates.items()}


def _bars(found: Mapping[str, Results], path: Path) -> None:
    """Draw all ratios of rates; a stroke is the aim."""
    ratios = [
        (f"{part}: {ratio.name.removeprefix('waterspout, ')}", ratio)
        for part, results in found.items()
        for ratio in results.ratios
        if not ratio.at_most
    ]
    made, panel = figure(height=0.9 + 0.34 * len(ratios))
    for row, (_, ratio) in enumerate(reversed(ratios)):
        low, high = ratio.median - min(ratio.values), max(ratio.values) - ratio.median
        panel.barh(row, ratio.median, height=0.6, color=OURS, xerr=[[low], [high]], ecolor="#444")
        if ratio.aim is not None:
            panel.plot([ratio.aim] * 2, [row - 0.38, row + 0.38], color=AIM, linewidth=2.5)
        end = ratio.median + high
        if ratio.aim is not None and end < ratio.aim < end + 0.2:
            end = ratio.aim  # the stroke would go through the number
        panel.text(end + 0.04, row, f"{ratio.median:.2f}", va="center", fontsize=9)
    panel.set_yticks(range(len(ratios)), [name for name, _ in reversed(ratios)], fontsize=9)
    panel.axvline(1, color=THEIRS, linestyle="--", linewidth=1)
    panel.set_title("Beside a peer that does the same: 1 is as fast. Orange: the aim.", loc="left")
    save(made, path)


def _by_size(sizes: Mapping[int, Mapping[str, float]], path: Path) -> None:
    made, panel = figure()
    for name, colour in (("by hand, driver", THEIRS), ("waterspout, 1 in flight", OURS)):
        points = [(size, 1000 * size / each[name]) for size, each in sizes.items() if name in each]
        panel.plot(*zip(*points, strict=True), marker="o", color=colour, label=name)
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("sentences in a batch")
    panel.set_ylabel("milliseconds a batch")
    panel.set_title("What a batch costs, one in flight", loc="left")
    panel.legend(frameon=False)
    save(made, path)


def _by_keys(rates: Mapping[str, float], path: Path) -> None:
    """Draw the batches of each store as its state grows, beside the bare client's."""
    points: dict[str, list[tuple[int, float]]] = {}
    for name, rate in rates.items():
        if match := re.fullmatch(r"(.*), ([\d,]+) keys", name):
            keys = int(match[2].replace(",", ""))
            points.setdefault(match[1], []).append((keys, 1000 / rate))
    if not points:
        return
    made, panel = figure()
    stores = [name for name in points if not name.startswith("bare ")]
    for number, store in enumerate(stores):
        for name, style in ((store, "-"), (f"bare {store}", ":")):
            label = store if name == store else f"{store}, bare client"
            line = zip(*sorted(points[name]), strict=True)
            panel.plot(*line, style, marker="o", color=f"C{number}", label=label)
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("keys in the state")
    panel.set_ylabel("milliseconds a batch")
    panel.set_title("A batch of 10,000 keys as the state grows", loc="left")
    panel.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    save(made, path)


def _by_cores(one: Mapping[str, float], two: Mapping[str, float], path: Path) -> None:
    names = [name for name in one if name in two]
    made, panel = figure(height=2.4)
    for number, name in enumerate(names):
        values = [one[name] / 1000, two[name] / 1000]
        panel.barh([2.6 * number + 1, 2.6 * number], values, color=[THEIRS, OURS], height=0.9)
        for row, value, cores in zip((1, 0), values, ("1 core", "2 cores"), strict=True):
            panel.text(
                value, 2.6 * number + row, f" {cores}: {value:,.0f}", va="center", fontsize=9
            )
    panel.set_yticks([2.6 * n + 0.5 for n in range(len(names))], names)
    panel.set_xlabel("thousand sentences a second")
    panel.set_title("One core and two", loc="left")
    save(made, path)
