"""Metrics of runs in Prometheus's text format, as a server shows them under `/metrics`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from waterspout.coordination.progress import BatchTotals, RunSnapshot, WaveProgress
from waterspout.coordination.run import Run
from waterspout.errors import MissingDependencyError
from waterspout.metrics._catalog import CATALOG, LAG_UNITS, OF_BATCHES, OF_RUNS, OF_WAVES
from waterspout.metrics._stats import RunStats, stats_of
from waterspout.metrics._tally import Histogram, Labels, RunTally

__all__ = ["Exposition"]

log = logging.getLogger(__name__)

_STATUSES = ("running", "idle", "inactive", "waiting", "stopped", "failed")
_PHASES = ("processing", "processed", "committing", "failed")

_LATELY = 600
_SENT, _DONE = ("emitted", "transferred"), ("executed", "acked", "failed")
_OF_BOLTS = (
    ("component_execute_latency_seconds", "execute_ms", 1000),
    ("component_process_latency_seconds", "process_ms", 1000),
    ("component_capacity_ratio", "capacity", 1),
)

Samples = Iterator[tuple[str, Labels, float]]


@dataclass(frozen=True, slots=True)
class _Watched:
    run: Run
    stats: RunStats
    tally: RunTally = field(default_factory=RunTally)
    since: float = field(default_factory=time.time)


class Exposition:
    """The metrics of one server: a registry of its own, over the runs that it was shown.

    A run is counted from the moment it is watched. One that has the name of an earlier one takes
    its place: two series of one name would make Prometheus refuse them all.
    """

    content_type: str
    """The media type of what `text` returns."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        try:
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
        except ImportError as error:
            raise MissingDependencyError("prometheus-client", "serve") from error
        self.content_type = CONTENT_TYPE_PLAIN_0_0_4
        self._watched: Mapping[str, _Watched] = {}
        for run in runs:
            self.watch(run)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def watch(self, run: Run) -> None:
        """Show the metrics of a run too."""
        watched = _Watched(run, stats_of(run))
        run.subscribe(watched.tally)
        # Replaced as a whole: a scrape goes through it in another thread.
        self._watched = {**self._watched, run.name: watched}

    def text(self) -> bytes:
        """Return all metrics as they are now."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        """Yield every family of the catalog that has a series; the registry calls it."""
        from prometheus_client import core

        made = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        families: dict[str, Any] = {
            metric.name: made[metric.kind](
                metric.family, metric.doc, labels=("topology", *metric.labels)
            )
            for metric in CATALOG
        }
        for name, watched in self._watched.items():
            snapshot, counters = watched.run.snapshot(), watched.tally.counters()
            families["run_start_time_seconds"].add_metric((name,), watched.since)
            letters = _letters(watched.run)
            if letters is not None:
                families["dead_letters"].add_metric((name,), letters)
            found = (
                *_counted(counters, snapshot),
                *_of_components(watched.stats),
                *_seen(snapshot),
            )
            for metric, labels, value in found:
                families[metric].add_metric((name, *labels), value)
            for service, *_ in counters.get("service_outages", ()):
                away = any(outage.service == service for outage in snapshot.waiting_for)
                families["service_away"].add_metric((name, service), away)
            for metric, histogram in _observed(watched.tally.histograms(), snapshot):
                families[metric].add_metric((name,), histogram.buckets, histogram.sum)
        yield from (family for family in families.values() if family.samples)


def _letters(run: Run) -> int | None:
    try:
        return run.dead_letter_count
    except Exception as error:  # a disk that cannot be read must not hide all other metrics
        log.warning("the dead letters of %s cannot be counted: %s", run.name, error)
        return None


def _own(snapshot: RunSnapshot) -> Iterator[Any]:
    """Yield the metrics that a run of its kind has."""
    yield from OF_RUNS
    yield from OF_BATCHES if isinstance(snapshot.totals, BatchTotals) else OF_WAVES


def _counted(counters: Mapping[str, Mapping[Labels, float]], snapshot: RunSnapshot) -> Samples:
    """Yield the counters; those without labels from the start, so that a rate sees the first."""
    for metric in _own(snapshot):
        if metric.kind == "counter":
            start: Mapping[Labels, float] = {} if metric.labels else {(): 0}
            for labels, value in {**start, **counters.get(metric.name, {})}.items():
                yield metric.name, labels, value


def _observed(
    histograms: Mapping[str, Histogram], snapshot: RunSnapshot
) -> Iterator[tuple[str, Histogram]]:
    for metric in _own(snapshot):
        if metric.kind == "histogram":
            yield metric.name, histograms.get(metric.name) or Histogram()


def _of_components(stats: RunStats) -> Samples:
    """Yield the counters of spouts and bolts, and their latencies as Storm's page has them."""
    ever, lately = stats.components("all"), stats.components(_LATELY)
    for counts, rows in ((_SENT, ever["spouts"]), (_SENT, ever["bolts"]), (_DONE, ever["bolts"])):
        for row in rows:
            for count in counts:
                yield f"component_{count}_tuples", (row["id"],), row[count]
    for row in lately["bolts"]:
        for name, key, unit in _OF_BOLTS:
            if row[key] is not None:
                yield name, (row["id"],), row[key] / unit
    for row in lately["spouts"]:
        if row["complete_ms"] is not None:
            yield "spout_complete_latency_seconds", (row["id"],), row["complete_ms"] / 1000


def _seen(snapshot: RunSnapshot) -> Samples:
    """Yield the gauges."""
    status = "waiting" if snapshot.waiting_for and not _is_over(snapshot) else snapshot.status
    for each in _STATUSES:
        yield "run_status", (each,), each == status
    for spout, lag in snapshot.lag.items():
        for unit in LAG_UNITS:
            if unit in lag:
                yield f"spout_lag_{unit}", (spout,), lag[unit]
    for spout, count in Counter(each.component for each in snapshot.unreachable).items():
        yield "spout_unreachable_partitions", (spout,), count
    if isinstance(snapshot.totals, BatchTotals):
        yield from _seen_batches(snapshot)
    elif isinstance(snapshot.last_progress, WaveProgress):
        made = snapshot.last_progress
        yield "messages_pending", (), made.pending
        yield "backlog_tuples", (), made.backlog
        yield "spouts_throttled", (), made.throttled
        yield "bolt_state_bytes", (), made.state_bytes


def _seen_batches(snapshot: RunSnapshot) -> Samples:
    phases = Counter(str(each["phase"]) for each in snapshot.in_flight)
    for phase in _PHASES:
        yield "batches_in_flight", (phase,), phases[phase]
    if snapshot.last_progress is not None:
        made = snapshot.last_progress
        yield "batches_in_flight_max", (), made["max_in_flight"]
        yield "batches_throttled", (), made["throttled"]
        for spout, size in made["sizes"].items():
            yield "batch_size", (spout,), size
        for spout, target in made["targets"].items():
            yield "batch_target", (spout,), target
        yield "batch_last_txid", (), made["txid"]
        yield "batch_last_commit_time_seconds", (), snapshot.last_progress.timestamp


def _is_over(snapshot: RunSnapshot) -> bool:
    return snapshot.status in ("stopped", "failed")
