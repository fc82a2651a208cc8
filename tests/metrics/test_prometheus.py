"""`/metrics`: what prometheus-client's own parser reads of it, and names by the conventions."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.metrics.running import counting, running
from tests.waves.driving import Driven, Fails, Pass, forget_all
from waterspout import Config, TopologyBuilder, faults
from waterspout.coordination.events import ServiceAway, TreesDecided, WaveFinished
from waterspout.coordination.progress import Outage, RunSnapshot, WaveProgress, WaveTotals
from waterspout.errors import MissingDependencyError
from waterspout.faults import Fault, FaultPlan
from waterspout.metrics import stats_of
from waterspout.metrics._catalog import CATALOG
from waterspout.metrics._prometheus import Exposition
from waterspout.state import MemoryMapState
from waterspout.testing import FeederSpout, MemoryLog
from waterspout.trident import Count, TridentTopology


@pytest.fixture(autouse=True)
def _fresh():
    forget_all()
    yield
    faults.install(None)


def parsed(exposition):
    """Return the samples by name and labels, without that of the topology."""
    found = {}
    for family in text_string_to_metric_families(exposition.text().decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "topology"}
            key = (sample.name, *labels.values())
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def test_a_run_is_shown_from_its_first_batch_on():
    faults.install(FaultPlan([Fault("write.before", "fail", where={"txid": 2})]))
    exposition = Exposition()
    with running(counting("a", "b", "a"), attend=exposition.watch) as run:
        run.process_all_available(timeout=20)
        found = parsed(exposition)

    batches = {k[0].removeprefix("waterspout_"): v for k, v in found.items() if len(k) == 1}
    assert batches["batches_committed_total"] == 3
    assert batches["batch_attempts_total"] == 4
    assert batches["batch_replays_total"] == 1
    assert batches["input_rows_total"] == 3
    assert batches["batch_last_txid"] == 3
    assert batches["dead_letters"] == 0
    assert found["waterspout_batch_failures_total", "FailedException"] == 1
    (written,) = (v for k, v in found.items() if k[0] == "waterspout_state_written_rows_total")
    assert written == 3
    for phase in ("processing", "commit"):
        assert batches[f"batch_{phase}_seconds_count"] == 3
        assert found[f"waterspout_batch_{phase}_seconds_bucket", "+Inf"] == 3
    assert batches["batch_waiting_seconds_count"] == 4
    assert found["waterspout_run_status", "idle"] == 1
    assert sum(v for k, v in found.items() if k[0] == "waterspout_run_status") == 1
    assert not any("wave" in name for name in batches)


def test_counters_are_there_before_anything_is_counted():
    with running(counting()) as run:
        found = parsed(Exposition([run]))

    assert found["waterspout_batches_committed_total",] == 0
    assert found["waterspout_batch_commit_seconds_count",] == 0


class Seen:
    """A run that only tells what a test says."""

    def __init__(self, name="core", **more):
        self.name, self.dead_letter_count, self.listeners = name, 2, []
        self.now = dict(
            name=name, status="running", timestamp=0.0, in_flight=(), totals=WaveTotals(),
            last_progress=None, pausing_spouts=(), errors=(), **more,
        )  # fmt: skip

    def subscribe(self, listener):
        self.listeners.append(listener)

    def publish(self, event):
        for listener in self.listeners:
            listener(event)

    def snapshot(self):
        return RunSnapshot(**self.now)


def test_a_core_topology_has_waves_lag_and_the_service_that_is_away():
    lag = {'a "quoted"\nspout': {"files": 3, "bytes": 120}, "own": {"parsecs": 4}}
    run = Seen(lag=lag)
    exposition = Exposition([run])
    progress = WaveProgress("core", 0.0, 7, pending=5, backlog=6, throttled=True, state_bytes=9)
    run.now |= {
        "last_progress": progress,
        "status": "waiting for redis, 3 s",
        "waiting_for": (Outage("redis", "refused", 0.0, 1.0),),
    }
    run.publish(WaveFinished("core", progress))
    run.publish(TreesDecided("core", "own", acked=4))
    run.publish(ServiceAway("core", "redis", "refused", 3.0, 1.0))

    found = parsed(exposition)

    assert found["waterspout_waves_total",] == 1
    assert found["waterspout_messages_acked_total", "own"] == 4
    assert found["waterspout_messages_pending",] == 5
    assert found["waterspout_backlog_tuples",] == 6
    assert found["waterspout_spouts_throttled",] == 1
    assert found["waterspout_bolt_state_bytes",] == 9
    assert found["waterspout_spout_lag_files", 'a "quoted"\nspout'] == 3
    assert found["waterspout_spout_lag_bytes", 'a "quoted"\nspout'] == 120
    assert found["waterspout_dead_letters",] == 2
    assert found["waterspout_service_away", "redis"] == 1
    assert found["waterspout_service_away_seconds_total", "redis"] == 3
    assert found["waterspout_run_status", "waiting"] == 1
    run.now |= {"waiting_for": (), "status": "running"}
    assert parsed(exposition)["waterspout_service_away", "redis"] == 0


def test_components_have_the_counters_of_storms_page():
    spout, builder = FeederSpout("n", replay=True), TopologyBuilder()
    builder.set_spout("numbers", spout)
    builder.set_bolt("pass", Pass("n"), 2).shuffle_grouping("numbers")
    builder.set_bolt("last", Fails("last", {1: 1})).all_grouping("pass")
    driven = Driven(builder.create_topology("core"))
    run = Seen()
    exposition = Exposition([run])
    driven.loop.events.subscribe(run.publish)
    for n in range(4):
        spout.feed([n], msg_id=n)
    driven.until_idle()

    found = parsed(exposition)

    def of(count):
        name = f"waterspout_component_{count}_tuples_total"
        return {key[1]: n for key, n in found.items() if key[0] == name and key[1] != "__acker"}

    assert of("emitted") == {"numbers": 5, "pass": 5, "last": 0}  # one of them comes again
    assert of("executed") == {"pass": 5, "last": 5}
    assert of("acked") == {"pass": 5, "last": 4}
    assert of("failed") == {"pass": 0, "last": 1}
    assert found["waterspout_component_executed_tuples_total", "__acker"] == 15
    assert found["waterspout_messages_acked_total", "numbers"] == 4
    tables = stats_of(run).components(600)
    (last,) = (row for row in tables["bolts"] if row["id"] == "last")
    shown = found["waterspout_component_execute_latency_seconds", "last"]
    assert shown == pytest.approx(last["execute_ms"] / 1000)


def test_a_run_that_has_the_name_of_an_earlier_one_takes_its_place():
    exposition = Exposition([Seen(), Seen("other")])
    newer = Seen()
    exposition.watch(newer)
    newer.publish(TreesDecided("core", "in", acked=1))

    text = exposition.text().decode()

    assert text.count('waterspout_waves_total{topology="core"}') == 1
    assert 'waterspout_messages_acked_total{spout="in",topology="core"} 1.0' in text
    assert 'waterspout_waves_total{topology="other"}' in text


def test_letters_that_cannot_be_counted_hide_nothing_else():
    class Broken(Seen):
        @property
        def dead_letter_count(self):
            raise OSError("the disk is gone")

        @dead_letter_count.setter
        def dead_letter_count(self, value):
            pass

    found = parsed(Exposition([Broken()]))

    assert ("waterspout_dead_letters",) not in found
    assert found["waterspout_waves_total",] == 0


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_prometheus(metric):
    name, words = metric.name, metric.name.split("_")

    for series in metric.series:
        assert re.fullmatch(r"waterspout_[a-z]+(_[a-z]+)*", series)
    assert words[-1] not in ("total", "count", "sum", "bucket", "info", "created"), "taken"
    assert not {"millis", "ms", "minutes", "percent", "kb"} & {*words}, "base units only"
    assert not {"counter", "gauge", "histogram", "topology"} & {*words}, "that is told elsewhere"
    if metric.kind == "histogram":
        assert name.endswith("_seconds"), "the unit comes last"
    assert not {"le", "quantile", "topology", "job", "instance"} & {*metric.labels}, "taken"
    assert metric.doc.endswith("."), "the help is a sentence"
    assert [each.name for each in CATALOG].count(name) == 1


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'waterspout\[serve\]'"):
        Exposition()


def test_the_page_on_metrics_lists_every_metric():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = [
        f"| `{metric.family if metric.kind == 'histogram' else metric.series[0]}` | {metric.kind} "
        f"| {', '.join(f'`{label}`' for label in metric.labels)} | {metric.doc} |"
        for metric in CATALOG
    ]

    assert [line for line in page.splitlines() if line.startswith("| `waterspout_")] == rows


def test_sizes_of_batches_are_gauges():
    log = MemoryLog("n bigint", [[(n,) for n in range(60)]], take=10, sized=True)
    topology = TridentTopology("sized")
    topology.new_stream("rows", log).persistent_aggregate(MemoryMapState(), Count(), out="n")
    exposition = Exposition()
    with running(topology, attend=exposition.watch, config=Config(batch_sizing=True)) as run:
        run.process_all_available(timeout=20)
        found = parsed(exposition)

    assert found["waterspout_batch_size", "rows"] >= 1
    assert found["waterspout_batch_target", "rows"] >= 20
    assert found["waterspout_batches_in_flight_max",] >= 1
    assert found["waterspout_batches_throttled",] == 0
