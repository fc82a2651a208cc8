"""Attempts as a timeline, a table and a matrix: exact values, no browser."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from waterspout.ui._attempts import (
    COLOURS,
    Span,
    attempt_rows,
    level_of,
    matrix,
    named,
    spans,
    timeline,
)


@pytest.fixture(autouse=True)
def local_time(monkeypatch):
    """Two hours east of Greenwich."""
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def attempt(txid: int = 7, number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "txid": txid, "attempt": number, "replay": number > 0, "why": None, "outcome": "in flight",
        "error": None, "emitted": None, "processed": None, "committing": None, "marked": None,
        "ended": None, "processing_s": None, "commit_s": None, "input_rows": None,
        "written_rows": None, "executed_tuples": None, "states": {}, **more,
    }  # fmt: skip


def states(**steps: tuple[float | None, float | None, float | None]) -> dict[str, Any]:
    names = ("claimed", "written", "settled")
    return {
        state: {**dict(zip(names, times, strict=True)), "rows": None}
        for state, times in steps.items()
    }


DONE = attempt(
    6, emitted=100.0, processed=101.5, committing=103.0, marked=103.9, ended=104.0,
    outcome="committed", processing_s=1.4, commit_s=0.25, written_rows=1200,
    states=states(a=(103.1, 103.5, 103.95), b=(103.2, 103.8, 104.0)),
)  # fmt: skip
FAILED = attempt(
    7, emitted=102.0, processed=103.0, committing=104.0, ended=105.0, outcome="failed",
    error="OSError: gone", states=states(a=(104.1, 104.5, None), b=(104.2, None, None)),
)  # fmt: skip
AGAIN = attempt(
    7, 1, emitted=106.0, processed=107.0, committing=107.5, why="OSError: gone",
    states=states(a=(107.6, 107.9, None), b=(107.7, None, None)),
)  # fmt: skip
WAITS = attempt(8, 1, emitted=106.5, processed=107.25, why="batch 7 before it failed")


def test_the_phases_of_an_attempt_follow_each_other_until_it_ended() -> None:
    assert spans(DONE, now=999.0) == [
        Span("processing", 100.0, 101.5),
        Span("waiting", 101.5, 103.0),
        Span("commit", 103.0, 104.0),
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (attempt(emitted=1.0), [Span("processing", 1.0, 9.0)]),
        (attempt(emitted=1.0, ended=4.0, outcome="failed"), [Span("processing", 1.0, 4.0)]),
        (WAITS, [Span("processing", 106.5, 107.25), Span("waiting", 107.25, 107.25)]),
        (attempt(), []),
    ],
)
def test_the_phase_an_attempt_is_in_lasts_until_now(given, found) -> None:
    assert spans(given, now=9.0) == found


def test_a_replay_has_other_colours_and_a_lost_attempt_one_of_its_own() -> None:
    chart = timeline([DONE, FAILED, AGAIN, WAITS], now=108.0)

    bars = {each["name"]: each["data"] for each in chart["series"]}
    values = {
        name: [cell["value"] if isinstance(cell, dict) else cell for cell in data]
        for name, data in bars.items()
    }
    assert chart["yAxis"]["data"] == ["8:1", "7:1", "7", "6"]
    assert values == {
        "": [6.5, 6.0, 2.0, 0.0],
        "processing": [0, 0, 0, 1.5],
        "waiting": [0.75, 0.5, 0, 1.5],
        "commit": [0, 0, 0, 1.0],
        "replay: processing": [0.75, 1.0, 0, 0],
        "replay: commit": [0, 0.5, 0, 0],
        "lost": [0, 0, 3.0, 0],
    }
    assert bars["lost"][2]["name"] == (
        "batch 7, attempt 0, failed: processing 1.00 s, waiting 1.00 s, commit 1.00 s. "
        "OSError: gone"
    )
    assert bars["waiting"][0]["name"].endswith("batch 7 before it failed")
    assert chart["xAxis"]["name"] == "seconds since 02:01:40.000"
    assert {e["itemStyle"]["color"] for e in chart["series"][1:]} == set(COLOURS.values())
    assert json.loads(json.dumps(chart)) == chart


def test_a_timeline_of_nothing_is_empty() -> None:
    chart = timeline([attempt()], now=5.0)

    assert (chart["yAxis"]["data"], chart["xAxis"]["name"]) == ([], "")


def test_the_table_says_how_each_attempt_ended_and_why_it_was_made_again() -> None:
    again, failed, done = attempt_rows([DONE, FAILED, AGAIN], now=108.0)

    assert done == {
        "id": "6", "batch": 6, "attempt": 0, "outcome": "committed", "replay": False,
        "processing": "1.40 s", "waiting": "1.50 s", "commit": "250 ms", "rows": "1,200",
        "ended": "02:01:44.000", "why": "",
    }  # fmt: skip
    assert (failed["outcome"], failed["why"], failed["processing"]) == (
        "failed", "OSError: gone", "1.00 s",
    )  # fmt: skip
    assert (again["replay"], again["why"], again["ended"]) == (True, "OSError: gone", "")


@pytest.mark.parametrize(
    ("given", "levels"),
    [
        (DONE, ("committed", "committed")),
        (FAILED, ("lost", "lost")),
        (AGAIN, ("written", "claimed")),
        ({**AGAIN, "marked": 108.0}, ("committed", "committed")),
        ({**AGAIN, "states": {}}, ("begun", "begun")),
        (WAITS, ("", "")),
        ({**WAITS, "outcome": "cancelled"}, ("", "")),
    ],
)
def test_a_state_is_as_far_as_the_last_step_that_happened(given, levels) -> None:
    assert tuple(level_of(given, given["states"].get(name)) for name in "ab") == levels


def test_the_matrix_has_a_row_for_each_attempt_that_has_begun_newest_first() -> None:
    found = matrix([DONE, FAILED, AGAIN, WAITS], ["b"])

    assert found["states"] == ["b", "a"]
    assert [(row["id"], row["replay"]) for row in found["rows"]] == [
        ("7:1", True), ("7", False), ("6", False),
    ]  # fmt: skip
    levels = [[row["cells"][name]["level"] for name in "ab"] for row in found["rows"]]
    assert levels == [["written", "claimed"], ["lost", "lost"], ["committed", "committed"]]
    assert found["rows"][0]["cells"]["a"]["title"] == (
        "batch 7, attempt 1: written, claimed 02:01:47.600, written 02:01:47.900"
    )


def test_what_an_earlier_run_has_committed_is_in_the_matrix_without_times() -> None:
    stored = attempt(3, 1, outcome="committed")

    (row,) = matrix([stored], ["a"])["rows"]

    assert (named(stored), row["cells"]["a"]["level"]) == ("3:1", "committed")
    assert row["cells"]["a"]["title"] == "batch 3, attempt 1: committed"
