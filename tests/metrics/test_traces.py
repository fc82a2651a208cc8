"""A trace of each batch: read back from the SDK's exporter in memory."""

from __future__ import annotations

import sys
import threading

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.metrics.running import counting, running
from waterspout import Config, faults
from waterspout.coordination.events import (
    BatchCommitted,
    BatchEmitted,
    BatchProcessed,
    CommitStep,
    RunEnded,
    StateWritten,
    WaveFinished,
)
from waterspout.coordination.progress import BatchProgress, WaveProgress
from waterspout.errors import MissingDependencyError
from waterspout.faults import Fault, FaultPlan
from waterspout.metrics import trace
from waterspout.metrics._traces import BatchTraces, tracing
from waterspout.transactional import TransactionAttempt


@pytest.fixture
def sent():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    exporter.provider = provider
    yield exporter
    provider.shutdown()
    faults.install(None)


def tree(spans):
    """Return the names of spans below each other, in the order of their beginnings."""
    children = {}
    for span in sorted(spans, key=lambda span: (span.start_time, span.end_time)):
        children.setdefault(span.parent.span_id if span.parent else None, []).append(span)

    def below(parent):
        return {s.name: below(s.context.span_id) for s in children.get(parent, [])}

    return below(None)


def attempt(txid, number=0):
    return TransactionAttempt(txid, number)


def a_commit(traces, txid=7, number=0, states=("one", "two")):
    """Tell of an attempt whose steps take a second each, from second 100 on."""
    mine, now = attempt(txid, number), 100.0
    traces(BatchEmitted("words", mine, 1.0, timestamp=now))
    traces(BatchProcessed("words", mine, timestamp=now + 1))
    steps = [("begun", None), *(("claimed", s) for s in states)]
    steps += [*(("written", s) for s in states), ("marked", None)]
    steps += [("settled", s) for s in states]
    for n, (step, state) in enumerate(steps):
        traces(CommitStep("words", mine, step, state, timestamp=now + 5 + n))
    traces(StateWritten("words", mine, "one", 12))
    progress = BatchProgress("words", txid, number, now)
    traces(BatchCommitted("words", mine, progress, timestamp=now + 5 + len(steps)))


def test_every_step_is_a_span_at_its_own_time(sent):
    a_commit(BatchTraces(sent.provider.get_tracer("test")))

    spans = {span.name: span for span in sent.get_finished_spans()}
    seconds = {name: (span.start_time / 1e9, span.end_time / 1e9) for name, span in spans.items()}
    assert seconds == {
        "batch 7": (99.0, 113.0),
        "attempt 7:0": (99.0, 113.0),
        "plan": (99.0, 100.0),
        "processing": (100.0, 101.0),
        "claim": (105.0, 107.0),
        "write one": (107.0, 108.0),
        "write two": (108.0, 109.0),
        "mark": (109.0, 110.0),
        "settle": (110.0, 112.0),
    }
    assert len({span.context.trace_id for span in spans.values()}) == 1
    about = {"waterspout.topology": "words", "waterspout.txid": 7, "waterspout.attempt": 0}
    assert dict(spans["mark"].attributes) == about
    assert dict(spans["claim"].attributes) == {**about, "waterspout.states": ("one", "two")}
    written = {**about, "waterspout.state": "one", "waterspout.rows": 12}
    assert dict(spans["write one"].attributes) == written
    assert spans["attempt 7:0"].attributes["waterspout.outcome"] == "committed"
    assert spans["attempt 7:0"].status.status_code is StatusCode.UNSET


def test_a_replay_is_in_the_trace_of_its_batch_and_the_next_batch_in_another(sent):
    faults.install(FaultPlan([Fault("write.before", "fail", where={"txid": 1})]))

    def attend(run):
        trace(run, sent.provider)

    with running(counting("a", "b"), attend=attend) as run:
        run.process_all_available(timeout=20)
    spans = sent.get_finished_spans()

    found = tree(spans)
    assert list(found) == ["batch 1", "batch 2"]
    assert list(found["batch 1"]) == ["attempt 1:0", "attempt 1:1"]
    committed = [name.split()[0] for name in found["batch 1"]["attempt 1:1"]]
    assert committed == ["plan", "processing", "claim", "write", "mark", "settle"]
    assert list(found["batch 1"]["attempt 1:0"]) == ["plan", "processing", "claim"]
    assert len({span.context.trace_id for span in spans}) == 2
    (failed,) = (span for span in spans if span.name == "attempt 1:0")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["waterspout.outcome"] == "failed"
    assert failed.attributes["error.type"] == "FailedException"


def test_what_a_run_leaves_unfinished_is_ended_with_it(sent):
    traces = BatchTraces(sent.provider.get_tracer("test"))
    traces(BatchEmitted("words", attempt(3), 0.0, timestamp=10.0))

    traces(RunEnded("words", None, timestamp=12.0))
    traces(RunEnded("words", None, timestamp=13.0))

    assert tree(sent.get_finished_spans()) == {"batch 3": {"attempt 3:0": {"plan": {}}}}
    (left,) = (s for s in sent.get_finished_spans() if s.name == "attempt 3:0")
    assert left.attributes["waterspout.outcome"] == "abandoned"
    assert left.end_time == 12_000_000_000


def test_who_subscribes_in_the_middle_of_a_batch_hears_of_the_next(sent):
    traces = BatchTraces(sent.provider.get_tracer("test"))

    traces(BatchProcessed("words", attempt(3)))
    traces(CommitStep("words", attempt(3), "claimed", "one"))
    traces(BatchCommitted("words", attempt(3), BatchProgress("words", 3, 0, 0.0)))
    a_commit(traces, txid=4)

    assert list(tree(sent.get_finished_spans())) == ["batch 4"]


def test_a_wave_is_a_span_of_its_own(sent):
    traces = BatchTraces(sent.provider.get_tracer("test"))

    progress = WaveProgress("core", 20.0, 5, tuples=30, wave_s=2.0)
    traces(WaveFinished("core", progress, timestamp=20.0))

    (span,) = sent.get_finished_spans()
    assert (span.name, span.start_time, span.end_time) == ("wave 5", 18 * 10**9, 20 * 10**9)
    assert span.attributes["waterspout.tuples"] == 30


def test_the_span_of_the_thread_is_not_the_parent_of_a_batch(sent):
    tracer = sent.provider.get_tracer("mine")
    with tracer.start_as_current_span("a request of mine"):
        a_commit(BatchTraces(tracer))

    (batch,) = (span for span in sent.get_finished_spans() if span.name == "batch 7")
    assert batch.parent is None


def test_the_provider_of_the_process_is_used_where_there_is_one(sent, monkeypatch):
    monkeypatch.setattr(api, "get_tracer_provider", lambda: sent.provider)

    with running(counting("a"), attend=tracing()) as run:
        run.process_all_available(timeout=20)

    assert list(tree(sent.get_finished_spans())) == ["batch 1"]


def test_without_a_provider_spans_go_to_a_collector_and_its_absence_harms_nobody(monkeypatch):
    # Nobody listens there.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")

    with running(counting("a"), attend=tracing()) as run:
        run.process_all_available(timeout=20)

    assert run.exception() is None
    for thread in threading.enumerate():
        if thread.name == "waterspout-traces":
            thread.join(20)
            assert not thread.is_alive()


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'waterspout\[otel\]'"):
        tracing()


def test_traces_are_off_unless_asked_for():
    assert Config().traces is False
