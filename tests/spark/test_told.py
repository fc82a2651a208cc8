"""What a run on Spark is watched by: metrics over HTTP, a trace of each batch."""

from __future__ import annotations

from itertools import pairwise

import httpx
import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from waterspout import Config, submit
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, TridentTopology

pytestmark = pytest.mark.spark


def test_a_run_shows_metrics_and_traces_from_its_first_batch_on(spark, tmp_path, monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(api, "get_tracer_provider", lambda: provider)
    topology = TridentTopology("told")
    words = topology.new_stream("in", FixedBatchSpout("word string", 2, [("a",), ("b",), ("a",)]))
    for table in ("one", "two"):
        state = SQLiteState.opaque(tmp_path / f"{table}.db", table=table)
        words.group_by("word").persistent_aggregate(state, Count(), "count")
    config = Config(home=str(tmp_path / "home"), serve="127.0.0.1:0", traces=True)

    run = submit(topology, spark, config)
    try:
        run.process_all_available(timeout=100)
        answer = httpx.get(f"{run.server_url}/metrics", timeout=20)
    finally:
        run.stop()
        provider.shutdown()

    assert answer.status_code == 200
    found = {
        (sample.name, *(v for k, v in sample.labels.items() if k != "topology")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["waterspout_batches_committed_total",] == 2
    assert found["waterspout_batch_processing_seconds_count",] == 2
    assert found["waterspout_batch_processing_seconds_sum",] > 0
    assert found["waterspout_state_written_rows_total", "state1"] == 3
    spans = exporter.get_finished_spans()
    of_first = [s for s in spans if s.attributes.get("waterspout.txid") == 1]
    assert {span.name for span in of_first} == {
        *("batch 1", "attempt 1:0", "plan", "processing", "claim"),
        *("write state1", "write state2", "mark", "settle"),
    }
    assert len({span.context.trace_id for span in of_first}) == 1
    times = {span.name: (span.start_time, span.end_time) for span in of_first}
    order = [times[name] for name in ("plan", "processing", "claim", "mark", "settle")]
    assert all(before[1] <= after[0] for before, after in pairwise(order))
    (begins, ends) = times["batch 1"]
    assert all(begins <= start <= end <= ends for start, end in times.values())
