"""Lines over time, in panels one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.pictures import figure, save

__all__ = ["Panel", "draw"]

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One axis of values over the common axis of time."""

    title: str
    lines: Mapping[str, Points]
    steps: frozenset[str] = field(default_factory=frozenset)
    """Lines that stay where they are until the next point."""


def draw(
    title: str, panels: Sequence[Panel], until: float, spans: Mapping[str, tuple], path: Path
) -> None:
    """Write the picture; `spans` are named stretches of time that are coloured."""
    made, axes = figure(len(panels), height=0.8 + 1.6 * len(panels))
    made.suptitle(title, x=0.01, ha="left")
    for panel, axis in zip(panels, axes, strict=True):
        for begin, end, colour in spans.values():
            axis.axvspan(begin, end, color=colour, alpha=0.12, linewidth=0)
        for name, points in panel.lines.items():
            if points:
                style = "steps-post" if name in panel.steps else "default"
                axis.plot(*zip(*points, strict=True), drawstyle=style, label=name, linewidth=1.3)
        axis.set_title(panel.title, loc="left", fontsize=9)
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, until)
        if len(panel.lines) > 1:
            axis.legend(frameon=False, fontsize=8, loc="upper right")
    for name, (begin, _, _) in spans.items():
        axes[0].annotate(
            name, (begin, 1), xycoords=("data", "axes fraction"), fontsize=8, va="top",
            xytext=(3, -3), textcoords="offset points", color="#555",
        )  # fmt: skip
    axes[-1].set_xlabel("seconds")
    save(made, path)
