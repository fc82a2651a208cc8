"""Points over time as charts: exact values, no browser."""

from __future__ import annotations

import json

from waterspout.ui._series import (
    durations_chart,
    lag_charts,
    pending_chart,
    sizes_chart,
    targets_charts,
)

BATCHES = [
    {"t": 100, "count": 2, "size": 15.0, "size_max": 20, "processing_s": 0.5, "commit_s": 0.25,
     "pending": 3, "lag": {"in": {"files": 4, "bytes": 800}}, "throttled": False},
    {"t": 101, "count": 1, "size": 8.0, "size_max": 8, "processing_s": 0.4, "commit_s": 0.1,
     "pending": 0, "lag": {"in": {"files": 0}, "other": {"files": 2}}, "throttled": False},
]  # fmt: skip
WAVES = [
    {"t": 60, "count": 1, "size": 64.0, "size_max": 64, "wave_s": 0.2, "busy_s": 0.3, "pending": 9,
     "lag": {}, "backlog": 5, "next_size": 128, "throttled": True},
]  # fmt: skip


def lines(chart):
    return {each["name"]: each["data"] for each in chart["series"]}


def test_batches_show_their_sizes_and_what_is_not_told_has_no_line() -> None:
    assert lines(sizes_chart(BATCHES)) == {
        "mean size": [[100_000, 15.0], [101_000, 8.0]],
        "largest": [[100_000, 20], [101_000, 8]],
    }
    assert lines(sizes_chart(WAVES))["allowed next"] == [[60_000, 128]]


def test_durations_are_those_of_phases_or_of_waves() -> None:
    assert lines(durations_chart(BATCHES)) == {
        "processing": [[100_000, 0.5], [101_000, 0.4]],
        "commit": [[100_000, 0.25], [101_000, 0.1]],
    }
    assert lines(durations_chart(WAVES)) == {
        "wave": [[60_000, 0.2]], "work of its tasks": [[60_000, 0.3]],
    }  # fmt: skip


def test_where_spouts_had_to_wait_the_ground_is_coloured() -> None:
    calm, throttled = pending_chart(BATCHES, 1), pending_chart(WAVES, 60)

    assert lines(calm) == {"pending": [[100_000, 3], [101_000, 0]]}
    assert "markArea" not in calm["series"][0]
    assert throttled["series"][0]["markArea"]["data"] == [[{"xAxis": 60_000}, {"xAxis": 120_000}]]
    assert lines(throttled)["left over"] == [[60_000, 5]]


def test_lag_has_a_chart_for_each_unit_and_a_line_for_each_spout() -> None:
    charts = lag_charts(BATCHES)

    assert {unit: lines(chart) for unit, chart in charts.items()} == {
        "bytes": {"in": [[100_000, 800]]},
        "files": {"in": [[100_000, 4], [101_000, 0]], "other": [[101_000, 2]]},
    }
    assert lag_charts(WAVES) == {}


def test_charts_of_nothing_have_no_series_and_are_json() -> None:
    for chart in (sizes_chart([]), pending_chart([], 1), durations_chart([])):
        assert chart["series"] == []
        assert json.loads(json.dumps(chart)) == chart


def test_each_spout_that_is_sized_shows_what_it_gave_and_what_it_is_asked_for() -> None:
    points = [
        {"t": 100, "sizes": {"in": 10}, "targets": {}, "max_in_flight": 1, "pending": 0},
        {"t": 101, "sizes": {"in": 10}, "targets": {"in": 20}, "max_in_flight": 2, "pending": 1},
    ]

    charts = targets_charts(points)

    assert {spout: lines(chart) for spout, chart in charts.items()} == {
        "in": {"gave": [[100_000, 10], [101_000, 10]], "asked for": [[101_000, 20]]}
    }
    assert lines(pending_chart(points, 1))["allowed"] == [[100_000, 1], [101_000, 2]]
    assert targets_charts(BATCHES) == {}
