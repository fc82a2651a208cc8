"""Makes the Grafana dashboard: `python scripts/dashboard.py > docs/grafana-dashboard.json`.

The JSON that Grafana imports is long and repeats itself; this says what is in it once.
"""

from __future__ import annotations

import json
import sys
from typing import Any

T = 'topology=~"$topology"'
RATE = "[$__rate_interval]"
COLUMNS = 24

Query = tuple[str, str]
"""An expression, and what its series are called."""


def by(metric: str, label: str) -> Query:
    """The rate of a counter, by one of its labels."""
    return f"sum by ({label}) (rate({metric}{{{T}}}{RATE}))", f"{{{{{label}}}}}"


def rate(metric: str, name: str) -> Query:
    """The rate of a counter, all series together."""
    return f"sum(rate({metric}{{{T}}}{RATE}))", name


def quantile(share: float, histogram: str) -> Query:
    """A quantile of a histogram."""
    inside = f"sum by (le) (rate({histogram}_bucket{{{T}}}{RATE}))"
    return f"histogram_quantile({share}, {inside})", f"p{share * 100:g}"


def gauge(metric: str, name: str) -> Query:
    """The values of a gauge."""
    return f"{metric}{{{T}}}", name


def quantiles(histogram: str) -> list[Query]:
    """The quantiles that people look at."""
    return [quantile(share, histogram) for share in (0.5, 0.95, 0.99)]


ROWS: list[tuple[str, list[tuple[str, str, list[Query]]]]] = [
    (
        "Run",
        [
            ("Status", "none", [(f"waterspout_run_status{{{T}}} == 1", "{{topology}} {{status}}")]),
            (
                "Since the last commit",
                "s",
                [
                    (
                        f"time() - waterspout_batch_last_commit_time_seconds{{{T}}}",
                        "{{topology}}",
                    )
                ],
            ),
            ("Services that are away", "none", [gauge("waterspout_service_away", "{{service}}")]),
            ("Dead letters", "none", [gauge("waterspout_dead_letters", "{{topology}}")]),
        ],
    ),
    (
        "Batches",
        [
            (
                "Batches per second",
                "ops",
                [
                    rate("waterspout_batches_committed_total", "committed"),
                    rate("waterspout_batch_attempts_total", "attempts"),
                    rate("waterspout_batch_replays_total", "replays"),
                    rate("waterspout_batch_cancellations_total", "cancelled"),
                ],
            ),
            ("Failures by kind", "ops", [by("waterspout_batch_failures_total", "kind")]),
            (
                "In flight",
                "none",
                [
                    gauge("waterspout_batches_in_flight", "{{phase}}"),
                    gauge("waterspout_batches_in_flight_max", "allowed"),
                ],
            ),
            ("Processing", "s", quantiles("waterspout_batch_processing_seconds")),
            ("Waiting for the turn", "s", quantiles("waterspout_batch_waiting_seconds")),
            ("Commit", "s", quantiles("waterspout_batch_commit_seconds")),
            ("Rows read per second", "rowsps", [rate("waterspout_input_rows_total", "rows")]),
            (
                "Rows written per second, by state",
                "rowsps",
                [by("waterspout_state_written_rows_total", "state")],
            ),
            (
                "Sizes of batches by spout, and what is asked for",
                "none",
                [
                    gauge("waterspout_batch_size", "{{spout}}"),
                    gauge("waterspout_batch_target", "{{spout}}, asked for"),
                ],
            ),
        ],
    ),
    (
        "Sources",
        [
            (
                f"Waits at spouts: {unit}",
                "bytes" if unit == "bytes" else "none",
                [
                    gauge(f"waterspout_spout_lag_{unit}", "{{spout}}"),
                    *(
                        gauge(f"waterspout_spout_lag_{kind}_files", f"{{{{spout}}}}, {kind}")
                        for kind in ("young", "unfinished")
                        if unit == "files"
                    ),
                ],
            )
            for unit in ("files", "bytes", "offsets", "rows", "messages")
        ]
        + [
            (
                "Pauses and partitions out of reach",
                "none",
                [
                    by("waterspout_spout_pauses_total", "spout"),
                    gauge("waterspout_spout_unreachable_partitions", "{{spout}} partitions"),
                ],
            )
        ],
    ),
    (
        "Core topologies",
        [
            (
                "Messages per second",
                "ops",
                [
                    rate("waterspout_messages_acked_total", "acked"),
                    rate("waterspout_messages_failed_total", "failed"),
                    rate("waterspout_messages_timed_out_total", "timed out"),
                    rate("waterspout_messages_dead_lettered_total", "dead letters"),
                ],
            ),
            (
                "Pending and backlog",
                "none",
                [
                    gauge("waterspout_messages_pending", "pending"),
                    gauge("waterspout_backlog_tuples", "backlog"),
                ],
            ),
            ("Waves", "s", quantiles("waterspout_wave_seconds")),
            ("Waves run again", "ops", [by("waterspout_wave_retries_total", "kind")]),
            (
                "Executed tuples per second",
                "ops",
                [by("waterspout_component_executed_tuples_total", "component")],
            ),
            (
                "Capacity",
                "percentunit",
                [gauge("waterspout_component_capacity_ratio", "{{component}}")],
            ),
            (
                "Execute latency",
                "s",
                [gauge("waterspout_component_execute_latency_seconds", "{{component}}")],
            ),
            (
                "Complete latency",
                "s",
                [gauge("waterspout_spout_complete_latency_seconds", "{{spout}}")],
            ),
        ],
    ),
    (
        "Trouble",
        [
            ("Errors by component", "ops", [by("waterspout_errors_total", "component")]),
            (
                "Share of time spent waiting for services",
                "percentunit",
                [by("waterspout_service_away_seconds_total", "service")],
            ),
            ("Commands", "ops", [by("waterspout_commands_total", "command")]),
        ],
    ),
]


def panel(
    number: int, title: str, unit: str, queries: list[Query], x: int, y: int
) -> dict[str, Any]:
    """Return one chart."""
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": expr, "legendFormat": name}
            for n, (expr, name) in enumerate(queries)
        ],
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, charts in ROWS:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row, "gridPos": place, "panels": []}
        )
        y += 1
        for n, (title, unit, queries) in enumerate(charts):
            x = n % 3 * 8
            panels.append(panel(len(panels) + 1, title, unit, queries, x, y + n // 3 * 8))
        y += -(-len(charts) // 3) * 8
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "topology",
            "type": "query",
            "label": "Topology",
            "datasource": source,
            "query": "label_values(waterspout_run_status, topology)",
            "multi": True,
            "includeAll": True,
            "refresh": 2,
        },
    ]
    return {
        "uid": "waterspout",
        "title": "waterspout",
        "schemaVersion": 39,
        "tags": ["waterspout"],
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": variables},
        "panels": panels,
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    sys.stdout.write("\n")
