"""The tables have the columns of Storm's UI, in its order."""

from __future__ import annotations

from waterspout.ui import _tables as tables


def labels(columns):
    return [column.label for column in columns]


def test_the_columns_are_those_of_storm():
    assert labels(tables.TOTALS) == [
        *("Window", "Emitted", "Transferred", "Complete latency (ms)", "Acked", "Failed")
    ]
    assert labels(tables.BOLTS) == [
        *("Id", "Tasks", "Emitted", "Transferred", "Capacity (last 10 min)"),
        *("Execute latency (ms)", "Executed", "Process latency (ms)", "Acked", "Failed"),
        *("Last error", "Error time"),
    ]
    assert labels(tables.INPUTS) == [
        *("Component", "Stream", "Execute latency (ms)", "Executed", "Process latency (ms)"),
        *("Acked", "Failed"),
    ]


def test_what_is_nested_does_not_get_into_a_cell():
    (row,) = tables.rows_with(
        [{"id": "a", "inputs": [1], "last_error": None, "error_time": 5.0}],
        link=lambda row: f"/{row['id']}",
    )

    assert row == {"id": "a", "last_error": None, "error_time": 5.0, "error_at": "", "link": "/a"}
