"""A trace of each batch, by OpenTelemetry: what an attempt did, step by step, at its own times.

    batch 7                    from the first attempt of this run to the commit
      attempt 7:0              failed
        plan, processing
      attempt 7:1              committed
        plan, processing, claim, write (for each state), mark, settle

A listener is called in the thread that drives the run, so nothing is sent from here: spans are made
of the times that events have, and handed to the SDK, which sends them from a thread of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from waterspout._causes import told
from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchEmitted,
    BatchFailed,
    BatchProcessed,
    CommitStep,
    Event,
    RunEnded,
    StateWritten,
    WaveFinished,
)
from waterspout.coordination.run import Run
from waterspout.errors import MissingDependencyError
from waterspout.metrics._tally import kind_of
from waterspout.transactional._attempt import TransactionAttempt

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

__all__ = ["BatchTraces", "trace", "tracing"]


def trace(run: Run, provider: TracerProvider | None = None) -> Callable[[], None]:
    """Make a trace of each batch of a run from now on; return a function that ends that.

    `provider` is where spans go; None: the one that was set for this process.
    """
    api = _api()
    tracer = (provider or api.get_tracer_provider()).get_tracer("waterspout")
    return run.subscribe(BatchTraces(tracer))


def tracing() -> Callable[[Run], object]:
    """Return what traces a run to where OpenTelemetry's environment variables say.

    A provider that was set for this process is used; else one is made that sends over OTLP, and
    ends with the run. Raises if the extra is not installed.
    """
    api = _api()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingDependencyError("opentelemetry-sdk", "otel") from error

    def attend(run: Run) -> None:
        known = api.get_tracer_provider()
        if not isinstance(known, api.ProxyTracerProvider):
            trace(run, known)
            return
        name = os.environ.get("OTEL_SERVICE_NAME", "waterspout")
        provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace(run, provider)
        run.subscribe(lambda event: _shut_down(provider) if isinstance(event, RunEnded) else None)

    return attend


def _shut_down(provider: Any) -> None:
    """Send what is left, without keeping the run's end waiting for a collector that is away."""
    threading.Thread(target=provider.shutdown, name="waterspout-traces", daemon=True).start()


def _api() -> Any:
    try:
        from opentelemetry import trace as api
    except ImportError as error:
        raise MissingDependencyError("opentelemetry-sdk", "otel") from error
    return api


@dataclass(slots=True)
class _Running:
    """An attempt whose end is not known yet: its span, and when its steps were taken."""

    span: Span
    about: dict[str, Any]
    emitted: float
    plan_s: float
    processed: float | None = None
    steps: list[CommitStep] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)


class BatchTraces:
    """Listens to a run, and makes spans of what it hears."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._batches: dict[int, Span] = {}
        self._attempts: dict[TransactionAttempt, _Running] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case BatchEmitted():
                self._begin(event)
            case BatchProcessed(attempt=attempt, timestamp=now):
                if (found := self._attempts.get(attempt)) is not None:
                    found.processed = now
            case CommitStep(attempt=attempt):
                if (found := self._attempts.get(attempt)) is not None:
                    found.steps.append(event)
            case StateWritten(attempt=attempt, state=state, rows=rows):
                if (found := self._attempts.get(attempt)) is not None:
                    found.rows[state] = rows
            case BatchCommitted(attempt=attempt, timestamp=now):
                self._end(attempt, now, "committed")
                if (batch := self._batches.pop(attempt.txid, None)) is not None:
                    batch.end(_nanos(now))
            case BatchFailed(attempt=attempt, timestamp=now, error=error):
                self._end(attempt, now, "failed", told(error), kind_of(error))
            case BatchCancelled(attempt=attempt, timestamp=now, failed=failed):
                self._end(attempt, now, "cancelled", f"batch {failed.txid} before it failed")
            case WaveFinished(progress=made, timestamp=now):
                self._wave(event.run, made.wave, made.tuples, now - made.wave_s, now)
            case RunEnded(timestamp=now):
                for attempt in list(self._attempts):
                    self._end(attempt, now, "abandoned", "the run has ended")
                for batch in self._batches.values():
                    batch.end(_nanos(now))
                self._batches.clear()

    def _begin(self, event: BatchEmitted) -> None:
        attempt, began = event.attempt, event.timestamp - event.plan_s
        about = {"waterspout.topology": event.run, "waterspout.txid": attempt.txid}
        if attempt.txid not in self._batches:
            self._batches[attempt.txid] = self._span(f"batch {attempt.txid}", None, began, about)
        about = {**about, "waterspout.attempt": attempt.attempt_id}
        span = self._span(f"attempt {attempt}", self._batches[attempt.txid], began, about)
        self._attempts[attempt] = _Running(span, about, event.timestamp, event.plan_s)

    def _end(
        self,
        attempt: TransactionAttempt,
        now: float,
        outcome: str,
        why: str | None = None,
        kind: str | None = None,
    ) -> None:
        found = self._attempts.pop(attempt, None)
        if found is None:
            return
        span = found.span
        for step in _steps(found):
            about = {**found.about, **step.about}
            self._span(step.name, span, step.began, about).end(_nanos(step.ended))
        span.set_attribute("waterspout.outcome", outcome)
        if kind is not None:
            span.set_attribute("error.type", kind)
        if why is not None:
            from opentelemetry.trace import Status, StatusCode

            span.set_status(Status(StatusCode.ERROR, why))
        span.end(_nanos(now))

    def _wave(self, run: str, wave: int, tuples: int, began: float, ended: float) -> None:
        about = {"waterspout.topology": run, "waterspout.wave": wave, "waterspout.tuples": tuples}
        self._span(f"wave {wave}", None, began, about).end(_nanos(ended))

    def _span(self, name: str, parent: Span | None, began: float, about: dict[str, Any]) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        # Not the context of the thread: what the run's driver does is nobody else's child.
        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(
            name, context=context, start_time=_nanos(began), attributes=about
        )


@dataclass(slots=True)
class _Step:
    """What becomes a span below that of its attempt."""

    name: str
    began: float
    ended: float
    about: dict[str, Any] = field(default_factory=dict)


_OF_ALL_STATES = {"claimed": "claim", "settled": "settle"}


def _steps(found: _Running) -> list[_Step]:
    """Return the steps of an attempt that has ended.

    A step of a commit begins where the one before it ended; claims, and settlings, are one for all
    states. What was not reached is not there, nor what was under way when the attempt failed.
    """
    made = [_Step("plan", found.emitted - found.plan_s, found.emitted)]
    if found.processed is not None:
        made.append(_Step("processing", found.emitted, found.processed))
    before: float | None = None
    for step in found.steps:
        if before is not None:
            _add(made, step, before, found.rows)
        before = step.timestamp
    return made


def _add(made: list[_Step], step: CommitStep, began: float, rows: Mapping[str, int]) -> None:
    state, ended = step.state or "", step.timestamp
    if step.step == "written":
        counted = {"waterspout.rows": rows[state]} if state in rows else {}
        about = {"waterspout.state": state, **counted}
        made.append(_Step(f"write {state}", began, ended, about))
    elif step.step in _OF_ALL_STATES:
        name, last = _OF_ALL_STATES[step.step], made[-1]
        if last.name == name:
            last.ended = ended
            last.about["waterspout.states"] += (state,)
        else:
            made.append(_Step(name, began, ended, {"waterspout.states": (state,)}))
    elif step.step == "marked":
        made.append(_Step("mark", began, ended))


def _nanos(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
