"""Attempts at batches, as the API tells them, made into a timeline, a table and a matrix.

Plain data in, plain data out: nothing here knows of a browser. The keys of an attempt are those of
`batches` in the API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

__all__ = [
    "COLOURS",
    "LEVELS",
    "Span",
    "attempt_rows",
    "clock",
    "level_of",
    "matrix",
    "named",
    "spans",
    "timeline",
]

Attempt = Mapping[str, Any]
Level = Literal["", "begun", "claimed", "written", "committed", "lost"]

LEVELS: tuple[Level, ...] = ("begun", "claimed", "written", "committed", "lost")
"""How far an attempt is with a state, in this order; lost: it had begun, and was given up."""

COLOURS = {
    "processing": "#1e88e5",
    "waiting": "#9e9e9e",
    "commit": "#2e9d4f",
    "replay: processing": "#fb8c00",
    "replay: commit": "#8e24aa",
    "lost": "#d32f2f",
}
"""The parts of the timeline, in the order of its legend."""

_AXIS = "#8a8a8a"
_LINE = "#8a8a8a40"
_WHY_MAX = 160


@dataclass(frozen=True, slots=True)
class Span:
    """A part of an attempt on the timeline, in seconds since 1970."""

    phase: Literal["processing", "waiting", "commit"]
    begin: float
    end: float


def named(attempt: Attempt) -> str:
    """Return what an attempt is called: 7 for the first at batch 7, then 7:1, 7:2.

    >>> named({"txid": 7, "attempt": 0}), named({"txid": 7, "attempt": 2})
    ('7', '7:2')
    """
    again = f":{attempt['attempt']}" if attempt["attempt"] else ""
    return f"{attempt['txid']}{again}"


def spans(attempt: Attempt, now: float) -> list[Span]:
    """Return the phases of an attempt; the one that it is in lasts until now.

    Nothing where it is not known when it was emitted: an earlier run has done it.
    """
    if attempt.get("emitted") is None:
        return []
    last = attempt.get("ended") or now
    bounds: list[tuple[Literal["processing", "waiting", "commit"], str, str]] = [
        ("processing", "emitted", "processed"),
        ("waiting", "processed", "committing"),
        ("commit", "committing", "ended"),
    ]
    found = []
    for phase, begins, ends in bounds:
        begin, end = attempt.get(begins), attempt.get(ends)
        if begin is None:
            break
        found.append(Span(phase, begin, max(begin, last if end is None else end)))
    return found


def timeline(attempts: Sequence[Attempt], now: float) -> dict[str, Any]:
    """Return a chart of attempts: a bar for each, the newest on top, on a scale of seconds."""
    known = [(attempt, parts) for attempt in attempts if (parts := spans(attempt, now))]
    first = min((parts[0].begin for _, parts in known), default=now)
    bars: dict[str, list[Any]] = {name: [] for name in ("", *COLOURS)}
    for attempt, parts in reversed(known):
        row: dict[str, Any] = dict.fromkeys(bars, 0)
        row[""] = round(parts[0].begin - first, 3)
        # Parts of one colour beside each other are one bar: a row has each name once.
        for part in parts:
            name = _colour(attempt, part)
            length = round(part.end - part.begin, 3)
            before = row[name]["value"] if row[name] else 0
            row[name] = {"value": round(before + length, 3), "name": _told(attempt, parts)}
        for name, value in row.items():
            bars[name].append(value)
    return {
        "animation": False,
        "grid": {"left": 8, "right": 24, "top": 36, "bottom": 28, "containLabel": True},
        "legend": {
            "data": list(COLOURS),
            "textStyle": {"color": _AXIS},
            "type": "scroll",
            "top": 0,
            "left": 0,
        },
        "tooltip": {"trigger": "item", "formatter": "{b}", "confine": True},
        "xAxis": {
            "type": "value",
            "min": 0,
            "name": f"seconds since {clock(first)}" if known else "",
            "nameLocation": "middle",
            "nameGap": 26,
            "nameTextStyle": {"color": _AXIS},
            "axisLabel": {"color": _AXIS},
            "splitLine": {"lineStyle": {"color": _LINE}},
        },
        "yAxis": {
            "type": "category",
            "inverse": True,
            "data": [named(attempt) for attempt, _ in reversed(known)],
            "axisLabel": {"color": _AXIS},
            "axisTick": {"show": False},
        },
        "series": [_series(name, values) for name, values in bars.items()],
    }


def attempt_rows(attempts: Sequence[Attempt], now: float) -> list[dict[str, Any]]:
    """Return a line of the table for each attempt, newest first, in texts."""
    rows = []
    for attempt in reversed(attempts):
        took: dict[str, float] = {p.phase: p.end - p.begin for p in spans(attempt, now)}
        # What the run has measured itself is more exact than the times of its events.
        took |= {
            phase: attempt[key]
            for phase, key in (("processing", "processing_s"), ("commit", "commit_s"))
            if attempt.get(key) is not None
        }
        rows.append(
            {
                "id": named(attempt),
                "batch": attempt["txid"],
                "attempt": attempt["attempt"],
                "outcome": attempt["outcome"],
                "replay": bool(attempt.get("replay")),
                "processing": _seconds(took.get("processing")),
                "waiting": _seconds(took.get("waiting")),
                "commit": _seconds(took.get("commit")),
                "rows": _rows(attempt),
                "ended": "" if attempt.get("ended") is None else clock(attempt["ended"]),
                "why": attempt.get("error") or attempt.get("why") or "",
            }
        )
    return rows


def level_of(attempt: Attempt, steps: Mapping[str, Any] | None) -> Level:
    """Return how far an attempt is with a state, given what is known of the state in it.

    `steps` is None if the state is not named in it. Where others are, it has no part in a batch
    that nobody works on any more.
    """
    if (
        steps is None
        and attempt.get("states")
        and attempt["outcome"] in ("committed", "unfinished")
    ):
        return ""
    begun = attempt.get("committing") is not None or attempt.get("begun")
    reached: Level = "begun" if begun else ""
    for level in ("claimed", "written"):
        if steps is not None and steps.get(level) is not None:
            reached = level
    if attempt["outcome"] == "committed":
        return "committed"
    if attempt["outcome"] in ("failed", "cancelled"):
        return "lost" if reached else ""
    return "committed" if attempt.get("marked") is not None else reached


def matrix(attempts: Sequence[Attempt], states: Iterable[str]) -> dict[str, Any]:
    """Return the commit matrix: a row for each attempt that has begun to commit, newest first.

    A cell has the level of a state and a text with the times of its steps.
    """
    names = list(dict.fromkeys([*states, *(s for a in attempts for s in a.get("states") or ())]))
    rows = []
    for attempt in reversed(attempts):
        told = attempt.get("states") or {}
        cells = {name: _cell(attempt, told.get(name)) for name in names}
        if any(cell["level"] for cell in cells.values()):
            again = bool(attempt.get("replay"))
            rows.append({"id": named(attempt), "replay": again, "cells": cells})
    return {"states": names, "rows": rows}


def clock(seconds: float) -> str:
    """Return the time of day, to the millisecond."""
    moment = datetime.fromtimestamp(seconds).astimezone()
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"


def _cell(attempt: Attempt, steps: Mapping[str, Any] | None) -> dict[str, str]:
    level = level_of(attempt, steps)
    told = [f"batch {attempt['txid']}, attempt {attempt['attempt']}: {level}"] if level else []
    for step in ("claimed", "written", "settled"):
        at = None if steps is None else steps.get(step)
        told += [f"{step} {clock(at)}"] if at is not None else []
    rows = None if steps is None else steps.get("rows")
    told += [f"{rows:,} rows"] if isinstance(rows, int) else []
    return {"level": level, "title": ", ".join(told), "rows": f"{rows:,}" if rows else ""}


def _colour(attempt: Attempt, part: Span) -> str:
    if attempt["outcome"] in ("failed", "cancelled"):
        return "lost"
    if attempt.get("replay") and part.phase != "waiting":
        return f"replay: {part.phase}"
    return part.phase


def _told(attempt: Attempt, parts: Sequence[Span]) -> str:
    took = ", ".join(f"{part.phase} {_seconds(part.end - part.begin)}" for part in parts)
    why = attempt.get("error") or attempt.get("why") or ""
    short = why if len(why) <= _WHY_MAX else f"{why[:_WHY_MAX]}..."
    beside = f". {short}" if short else ""
    return (
        f"batch {attempt['txid']}, attempt {attempt['attempt']}, {attempt['outcome']}: "
        f"{took}{beside}"
    )


def _series(name: str, values: list[Any]) -> dict[str, Any]:
    shared = {"name": name, "type": "bar", "stack": "attempt", "data": values, "barMaxWidth": 16}
    if not name:  # what comes before an attempt: nothing to see, nothing to point at
        return {**shared, "silent": True, "itemStyle": {"color": "transparent"}}
    return {**shared, "itemStyle": {"color": COLOURS[name]}}


def _rows(attempt: Attempt) -> str:
    for key in ("written_rows", "executed_tuples", "input_rows"):
        if attempt.get(key):
            return f"{attempt[key]:,}"
    return ""


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.2f} s"
