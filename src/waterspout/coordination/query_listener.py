"""Listeners with the method names of Spark's StreamingQueryListener.

An existing one hears of a run as it hears of a query: its methods get objects with Spark's names of
attributes. What a run does not know is not made up: an attribute that is not here is not there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from waterspout._causes import told
from waterspout.coordination.events import (
    BatchCommitted,
    Event,
    Listener,
    ProgressBetweenWaves,
    RunEnded,
    RunIdle,
    WaveFinished,
)
from waterspout.coordination.progress import BatchProgress, WaveProgress
from waterspout.errors import ConfigError

__all__ = [
    "QueryIdle",
    "QueryListener",
    "QueryProgress",
    "QueryProgressed",
    "QueryStarted",
    "QueryTerminated",
    "listener_of",
]

_METHODS = ("onQueryStarted", "onQueryProgress", "onQueryIdle", "onQueryTerminated")


@dataclass(frozen=True, slots=True)
class QueryStarted:
    """A run was subscribed to."""

    id: str
    """The name of the topology: the same over restarts."""
    runId: str
    """Another one for each run."""
    name: str
    """The name of the topology."""
    timestamp: str
    """When, in ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """A batch was committed, or a wave went through; in the words of Spark's progress."""

    id: str
    """The name of the topology."""
    runId: str
    """Another one for each run."""
    name: str
    """The name of the topology."""
    timestamp: str
    """When, in ISO 8601, UTC."""
    batchId: int
    """The txid, or the number of the wave."""
    batchDuration: int
    """How long it took, in milliseconds."""
    durationMs: dict[str, int]
    """Milliseconds by phase: processing and commit, or wave."""
    numInputRows: int | None
    """Rows that the spouts gave, or tuples that the wave began with; None where it is not told."""
    processedRowsPerSecond: float | None
    """These by the time of both phases."""
    sources: tuple[dict[str, object], ...]
    """By spout: description, its name, and lag, what waits at it."""
    progress: BatchProgress | WaveProgress
    """All that is known, in our own words."""

    @property
    def json(self) -> str:
        """All of it as a JSON object."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class QueryProgressed:
    """What `onQueryProgress` gets."""

    progress: QueryProgress


@dataclass(frozen=True, slots=True)
class QueryIdle:
    """The sources have nothing more, and everything is done."""

    id: str
    """The name of the topology."""
    runId: str
    """Another one for each run."""
    timestamp: str
    """When, in ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class QueryTerminated:
    """A run has ended."""

    id: str
    """The name of the topology."""
    runId: str
    """Another one for each run."""
    exception: str | None
    """What stopped it, on one line; None if it was told to stop."""
    errorClassOnException: str | None
    """The class of that error."""


class QueryListener:
    """A base class for listeners with Spark's names; each method may be left as it is."""

    def onQueryStarted(self, event: QueryStarted) -> None:
        """Hear, while it subscribes, which run it is."""

    def onQueryProgress(self, event: QueryProgressed) -> None:
        """Hear of a batch that was committed, or of a wave that went through."""

    def onQueryIdle(self, event: QueryIdle) -> None:
        """Hear that the sources have nothing more."""

    def onQueryTerminated(self, event: QueryTerminated) -> None:
        """Hear that the run has ended."""


def listener_of(given: object, name: str, run_id: str) -> Listener:
    """Return what is called with events, for a function or for an object with Spark's methods."""
    if any(callable(getattr(given, method, None)) for method in _METHODS):
        return _Translated(given, name, run_id)
    if callable(given):
        return given
    raise ConfigError(
        f"a listener is a function that takes an event, or has one of {', '.join(_METHODS)}; "
        f"{type(given).__name__} is neither"
    )


class _Translated:
    """Calls the methods that a listener has."""

    def __init__(self, given: object, name: str, run_id: str) -> None:
        self._given = given
        self._name = name
        self._id = run_id
        self._call("onQueryStarted", QueryStarted(name, run_id, name, _iso(None)))

    def __call__(self, event: Event) -> None:
        now = _iso(event.timestamp)
        match event:
            case BatchCommitted(progress=made) | WaveFinished(progress=made):
                self._call("onQueryProgress", QueryProgressed(self._progress(made)))
            case ProgressBetweenWaves(progress=made) if made.acked or made.failed:
                self._call("onQueryProgress", QueryProgressed(self._progress(made)))
            case RunIdle():
                self._call("onQueryIdle", QueryIdle(self._name, self._id, now))
            case RunEnded(error=error):
                text = None if error is None else told(error)
                kind = None if error is None else type(error).__name__
                self._call("onQueryTerminated", QueryTerminated(self._name, self._id, text, kind))

    def _call(self, method: str, event: object) -> None:
        found = getattr(self._given, method, None)
        if callable(found):
            found(event)

    def _progress(self, made: BatchProgress | WaveProgress) -> QueryProgress:
        rows: int | None
        if isinstance(made, BatchProgress):
            number, rows, rate = made.txid, made.input_rows, made.rows_per_s
            took = {"processing": made.processing_s, "commit": made.commit_s}
        else:
            number, rows, took = made.wave, made.tuples, {"wave": made.wave_s}
            rate = made.tuples / made.wave_s if made.wave_s else None
        return QueryProgress(
            id=self._name,
            runId=self._id,
            name=self._name,
            timestamp=_iso(made.timestamp),
            batchId=number,
            batchDuration=round(1000 * sum(took.values())),
            durationMs={phase: round(1000 * seconds) for phase, seconds in took.items()},
            numInputRows=rows,
            processedRowsPerSecond=rate,
            sources=tuple({"description": s, "lag": dict(lag)} for s, lag in made.lag.items()),
            progress=made,
        )


def _iso(seconds: float | None) -> str:
    when = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
