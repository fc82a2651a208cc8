"""Every metric that `/metrics` shows: its name, its kind, what it counts, its labels.

The names follow Prometheus's conventions: `waterspout_`, what is counted, the unit (seconds, bytes)
if it has one, and `_total` after a counter. Every series has the label `topology` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CATALOG",
    "LAG_UNITS",
    "OF_BATCHES",
    "OF_COMPONENTS",
    "OF_RUNS",
    "OF_WAVES",
    "SECONDS",
    "Metric",
]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the buckets of every histogram."""

LAG_UNITS = (
    *("files", "bytes", "offsets", "rows", "messages"),
    *("young_files", "unfinished_files"),
)
"""What spouts count of what waits for them; each is a metric, since they cannot be added up."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of series."""

    name: str
    """Without `waterspout_` and `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    doc: str
    labels: tuple[str, ...] = ()
    """Beside `topology`."""

    @property
    def family(self) -> str:
        """The name that prometheus-client is given."""
        return f"waterspout_{self.name}"

    @property
    def series(self) -> tuple[str, ...]:
        """The names that queries use.

        >>> Metric("waves", "counter", "Waves that went through.").series
        ('waterspout_waves_total',)
        """
        ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
        return tuple(f"{self.family}{end}" for end in ends[self.kind])


OF_RUNS = (
    Metric("run_status", "gauge", "1 for the status that the run has.", ("status",)),
    Metric("run_start_time_seconds", "gauge", "When the run began, in seconds since 1970."),
    Metric("commands", "counter", "Commands from other terminals.", ("command", "outcome")),
    Metric("dead_letters", "gauge", "Dead letters that are kept, of earlier runs as well."),
    Metric("errors", "counter", "Errors that a component raised or reported.", ("component",)),
    Metric("service_away", "gauge", "1 while the run waits for a service, else 0.", ("service",)),
    Metric("service_outages", "counter", "Times that a service was found away.", ("service",)),
    Metric(
        "service_away_seconds",
        "counter",
        "Time that the run has waited for a service.",
        ("service",),
    ),
    Metric("spout_pauses", "counter", "Pauses of a spout that raised.", ("spout",)),
    Metric(
        "spout_unreachable_partitions",
        "gauge",
        "Partitions of an opaque spout that batches go on without.",
        ("spout",),
    ),
    *(
        Metric(
            f"spout_lag_{unit}",
            "gauge",
            f"What waits at a spout, in {unit.replace('_', ' ')}.",
            ("spout",),
        )
        for unit in LAG_UNITS
    ),
)

OF_COMPONENTS = (
    Metric("component_emitted_tuples", "counter", "Tuples emitted.", ("component",)),
    Metric(
        "component_transferred_tuples", "counter", "Tuples sent to tasks of bolts.", ("component",)
    ),
    Metric("component_executed_tuples", "counter", "Tuples executed by a bolt.", ("component",)),
    Metric("component_acked_tuples", "counter", "Tuples acked by a bolt.", ("component",)),
    Metric("component_failed_tuples", "counter", "Tuples failed by a bolt.", ("component",)),
    Metric(
        "component_execute_latency_seconds",
        "gauge",
        "Mean time in execute, over the last ten minutes.",
        ("component",),
    ),
    Metric(
        "component_process_latency_seconds",
        "gauge",
        "Mean time from a tuple's arrival to its ack, over the last ten minutes.",
        ("component",),
    ),
    Metric(
        "component_capacity_ratio",
        "gauge",
        "Share of the last ten minutes that a bolt's busiest task was busy; 1 is a bottleneck.",
        ("component",),
    ),
    Metric(
        "spout_complete_latency_seconds",
        "gauge",
        "Mean time from a message's emission to its ack, over the last ten minutes.",
        ("spout",),
    ),
)

OF_BATCHES = (
    Metric("batches_committed", "counter", "Batches committed."),
    Metric("batch_attempts", "counter", "Attempts at batches that were emitted."),
    Metric("batch_replays", "counter", "Attempts that were replays."),
    Metric("batch_failures", "counter", "Attempts that failed, by the kind of error.", ("kind",)),
    Metric("batch_cancellations", "counter", "Attempts cancelled since an earlier batch failed."),
    Metric("batches_in_flight", "gauge", "Batches emitted and not committed.", ("phase",)),
    Metric("batches_in_flight_max", "gauge", "Batches that may be in flight at once."),
    Metric("batches_throttled", "gauge", "1 while no batch begins since too much waits to commit."),
    Metric("batch_size", "gauge", "What a spout gave to the last batch, in its unit.", ("spout",)),
    Metric("batch_target", "gauge", "What a spout is asked for, in its unit.", ("spout",)),
    Metric("batch_last_txid", "gauge", "The batch committed last."),
    Metric(
        "batch_last_commit_time_seconds",
        "gauge",
        "When a batch was last committed, in seconds since 1970.",
    ),
    Metric("batch_processing_seconds", "histogram", "Processing phases of batches that committed."),
    Metric("batch_waiting_seconds", "histogram", "From processing to the turn to commit."),
    Metric("batch_commit_seconds", "histogram", "Commit phases of batches that committed."),
    Metric("input_rows", "counter", "Trident: rows that spouts gave to committed batches."),
    Metric(
        "state_written_rows", "counter", "Rows that committed batches wrote to a state.", ("state",)
    ),
)

OF_WAVES = (
    Metric("waves", "counter", "Waves that went through."),
    Metric("wave_retries", "counter", "Waves run again, by the kind of error.", ("kind",)),
    Metric("wave_seconds", "histogram", "How long waves took."),
    Metric("wave_busy_seconds", "counter", "How long the tasks of waves have worked, added up."),
    Metric("messages_acked", "counter", "Messages acked.", ("spout",)),
    Metric("messages_failed", "counter", "Messages failed, timed out or not.", ("spout",)),
    Metric("messages_timed_out", "counter", "Messages that have timed out.", ("spout",)),
    Metric("messages_dead_lettered", "counter", "Messages put aside.", ("spout",)),
    Metric("messages_pending", "gauge", "Messages neither acked nor failed."),
    Metric("backlog_tuples", "gauge", "Tuples that wait for the next wave."),
    Metric("spouts_throttled", "gauge", "1 while spouts wait for bolts that are behind."),
    Metric("bolt_state_bytes", "gauge", "The size of what bolts keep between two waves."),
)

CATALOG: tuple[Metric, ...] = (*OF_RUNS, *OF_COMPONENTS, *OF_BATCHES, *OF_WAVES)
