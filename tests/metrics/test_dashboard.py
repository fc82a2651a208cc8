"""The Grafana dashboard: every query names a metric that exists, with labels that it has."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

from waterspout.metrics._catalog import CATALOG

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text(encoding="utf-8"))
CHARTS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SERIES = {series: metric for metric in CATALOG for series in metric.series}


def queries() -> list[str]:
    asked = [target["expr"] for panel in CHARTS for target in panel["targets"]]
    return [*asked, *(v["query"] for v in DASHBOARD["templating"]["list"])]


def test_every_query_names_a_metric_that_exists():
    named = {name for query in queries() for name in re.findall(r"\bwaterspout_\w+", query)}

    assert named - SERIES.keys() == set()
    assert len(named) > 30


def test_every_label_in_a_query_or_a_legend_is_one_of_its_metric():
    wrong = []
    for panel in CHARTS:
        for target in panel["targets"]:
            (name,) = set(re.findall(r"\bwaterspout_\w+", target["expr"]))
            known = {"topology", "le", *SERIES[name].labels}
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            used |= {
                label.strip()
                for group in re.findall(r"by \(([^)]*)\)", target["expr"])
                for label in group.split(",")
            }
            used |= set(re.findall(r"(\w+)\s*=~?\"", target["expr"]))
            if used - known:
                wrong.append(f"{panel['title']}: {used - known} of {name}")

    assert not wrong, "\n".join(wrong)


def test_counters_are_asked_for_their_rate_and_gauges_for_their_value():
    wrong = [
        expr
        for panel in CHARTS
        for expr in (target["expr"] for target in panel["targets"])
        for name in re.findall(r"\bwaterspout_\w+", expr)
        if ("rate(" in expr) != (SERIES[name].kind in ("counter", "histogram"))
    ]

    assert not wrong, "\n".join(wrong)


def test_every_metric_has_its_place_or_a_reason_not_to():
    shown = {name for query in queries() for name in re.findall(r"\bwaterspout_\w+", query)}
    left_out = {metric.name for metric in CATALOG if not {*metric.series} & shown}

    assert left_out == {
        "batch_last_txid",  # a number that only grows: the rate of commits says more
        "batches_throttled",
        "bolt_state_bytes",
        "component_acked_tuples",
        "component_emitted_tuples",
        "component_failed_tuples",
        "component_process_latency_seconds",
        "component_transferred_tuples",
        "run_start_time_seconds",
        "service_outages",
        "spouts_throttled",
        "wave_busy_seconds",
        "waves",
    }


def test_no_two_charts_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_file_is_what_the_script_makes():
    path = ROOT / "scripts" / "dashboard.py"
    spec = importlib.util.spec_from_file_location("dashboard", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.dashboard() == DASHBOARD, "run scripts/dashboard.py > docs/grafana-dashboard.json"
