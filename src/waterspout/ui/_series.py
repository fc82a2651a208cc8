"""What the API tells of sizes, durations and what waits, made into charts. Plain data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["durations_chart", "lag_charts", "pending_chart", "sizes_chart", "targets_charts"]

Point = Mapping[str, Any]

_AXIS = "#8a8a8a"
_LINE = "#8a8a8a40"
_PALETTE = ("#1e88e5", "#2e9d4f", "#fb8c00", "#8e24aa", "#d32f2f", "#00897b", "#6d4c41")
_SECONDS = {
    "processing_s": "processing",
    "commit_s": "commit",
    "wave_s": "wave",
    "busy_s": "work of its tasks",
}


def sizes_chart(points: Sequence[Point]) -> dict[str, Any]:
    """Return a chart of how large batches or waves were, and what the controller allows next."""
    lines = {
        "mean size": _values(points, "size"),
        "largest": _values(points, "size_max"),
        "allowed next": _values(points, "next_size"),
    }
    return _chart("rows or tuples", lines, steps=("allowed next",))


def pending_chart(points: Sequence[Point], step_s: float) -> dict[str, Any]:
    """Return a chart of what is in flight; where spouts had to wait, the ground is coloured."""
    lines = {
        "pending": _values(points, "pending"),
        "allowed": _values(points, "max_in_flight"),
        "left over": _values(points, "backlog"),
    }
    chart = _chart("in flight", lines, steps=tuple(lines))
    waits = [
        [{"xAxis": point["t"] * 1000}, {"xAxis": (point["t"] + step_s) * 1000}]
        for point in points
        if point.get("throttled")
    ]
    if waits and chart["series"]:
        chart["series"][0]["markArea"] = {
            "silent": True,
            "itemStyle": {"color": "#fb8c0033"},
            "data": waits,
        }
    return chart


def targets_charts(points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Return a chart for each spout that is asked for sizes: what it gave, and what it should."""
    spouts: dict[str, dict[str, list[list[Any]]]] = {}
    for point in points:
        for label, key in (("gave", "sizes"), ("asked for", "targets")):
            for spout, n in (point.get(key) or {}).items():
                lines = spouts.setdefault(spout, {"gave": [], "asked for": []})
                lines[label].append([point["t"] * 1000, n])
    return {
        spout: _chart("in its own unit", lines, steps=("asked for",))
        for spout, lines in sorted(spouts.items())
    }


def durations_chart(points: Sequence[Point]) -> dict[str, Any]:
    """Return a chart of how long the phases of batches, or waves, took."""
    lines = {label: _values(points, key) for key, label in _SECONDS.items()}
    return _chart("seconds", lines)


def lag_charts(points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Return a chart for each thing that is counted (files, offsets...), a line for each spout."""
    units: dict[str, dict[str, list[list[Any]]]] = {}
    for point in points:
        for spout, counts in (point.get("lag") or {}).items():
            for unit, n in counts.items():
                line = units.setdefault(unit, {}).setdefault(spout, [])
                line.append([point["t"] * 1000, n])
    return {unit: _chart(unit, lines) for unit, lines in sorted(units.items())}


def _values(points: Sequence[Point], key: str) -> list[list[Any]]:
    return [[p["t"] * 1000, p[key]] for p in points if p.get(key) is not None]


def _chart(
    label: str, lines: Mapping[str, list[list[Any]]], steps: Sequence[str] = ()
) -> dict[str, Any]:
    """Return lines over time; what nobody has told is left out."""
    told = {name: values for name, values in lines.items() if values}
    series = [
        {
            "name": name,
            "type": "line",
            "data": values,
            "showSymbol": len(values) < 2,  # a point alone is no line
            "color": _PALETTE[n % len(_PALETTE)],
            **({"step": "end", "lineStyle": {"type": "dashed"}} if name in steps else {}),
        }
        for n, (name, values) in enumerate(told.items())
    ]
    return {
        "animation": False,
        "grid": {"left": 8, "right": 24, "top": 48, "bottom": 8, "containLabel": True},
        "legend": {
            "data": list(told),
            "textStyle": {"color": _AXIS},
            "type": "scroll",
            "top": 0,
            "right": 8,
        },
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "time",
            "axisLabel": {
                "color": _AXIS,
                "hideOverlap": True,
                "alignMinLabel": "left",
                "alignMaxLabel": "right",
            },
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "name": label,
            "min": 0,
            "minInterval": 0 if label == "seconds" else 1,
            "nameTextStyle": {"color": _AXIS, "align": "left"},
            "axisLabel": {"color": _AXIS},
            "splitLine": {"lineStyle": {"color": _LINE}},
        },
        "series": series,
    }
