"""What a run tells of itself: the progress of batches and waves, and a snapshot of now.

Every class is a frozen dataclass that can also be read as a dict, and has its keys as JSON, as
Spark's StreamingQueryProgress does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

__all__ = [
    "BatchInFlight",
    "BatchProgress",
    "BatchTotals",
    "ErrorSummary",
    "Outage",
    "RunSnapshot",
    "SpoutPause",
    "TimelineEntry",
    "UnreachablePartition",
    "WaveInFlight",
    "WaveProgress",
    "WaveTotals",
]


class _DictLike(Mapping[str, Any]):
    """The fields of a dataclass by name, as from a dict.

    >>> totals = BatchTotals(committed=2, last_txid=9)
    >>> totals["last_txid"], totals.get("waves"), "replayed" in totals
    (9, None, True)
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        if key not in self._names():
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    @property
    def json(self) -> str:
        """All of it as a JSON object."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    def _names(self) -> list[str]:
        return [each.name for each in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class UnreachablePartition(_DictLike):
    """A partition of an opaque spout that batches go on without."""

    component: str
    """The id of the spout."""
    partition: int | str
    """The number of the partition; its topic too, where a spout reads topics."""
    error: str
    """What its emitter raised."""
    since: float
    """Since when, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class BatchProgress(_DictLike):
    """A batch of a Trident or transactional topology that was committed."""

    name: str
    """The name of the topology."""
    txid: int
    """The number of the batch: 1, 2, 3..."""
    attempt: int
    """Which try at the batch was committed: 0 for the first, more after replays or restarts."""
    timestamp: float
    """When the batch was marked as committed, in seconds since 1970."""
    in_flight: int = 0
    """How many other batches were in flight at that time."""
    replayed: int = 0
    """How many attempts of this run, up to now, were replays."""
    failures: int = 0
    """How many attempts of this run, up to now, have failed."""
    processing_s: float = 0.0
    """How long the processing phase took, in seconds."""
    commit_s: float = 0.0
    """How long the commit phase took, in seconds."""
    input_rows: int | None = None
    """Trident: rows that the spouts gave; None where Spark does not tell."""
    inputs: Mapping[str, int] = field(default_factory=dict)
    """Trident: the same by spout, of those of which it is known."""
    rows_per_s: float | None = None
    """Trident: these rows by the time of both phases."""
    staged_rows: int = 0
    """Trident: rows that the processing phase has left for the commit phase."""
    written_rows: int = 0
    """Trident: rows that were written to states."""
    late_rows: Mapping[str, int] = field(default_factory=dict)
    """Trident: rows that came too late for a window of event time, or had no time, by window."""
    executed_tuples: int = 0
    """Transactional: tuples that bolts have executed in the processing phase."""
    committed_tuples: int = 0
    """Transactional: tuples that bolts have executed in the commit phase."""
    lag: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What waited at each spout then, by what is counted: files, bytes, offsets, rows, messages."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Partitions of opaque spouts that were left out then ("words/3"), and what was raised."""


@dataclass(frozen=True, slots=True)
class WaveProgress(_DictLike):
    """A wave of a core topology that is over, or what was decided while no wave ran."""

    name: str
    """The name of the topology."""
    timestamp: float
    """When the wave was over and its spouts were told, in seconds since 1970."""
    wave: int
    """The number of the newest wave: 1, 2, 3..."""
    tuples: int = 0
    """Tuples and messages that the wave began with; 0 where no wave ran."""
    executed: Mapping[str, int] = field(default_factory=dict)
    """Tuples that each bolt has executed in the wave, by component."""
    emitted: Mapping[str, int] = field(default_factory=dict)
    """Tuples that each bolt has emitted in the wave, by component; spouts read in it as well."""
    transferred: Mapping[str, int] = field(default_factory=dict)
    """The same, one for each task that gets the tuple."""
    backlog: int = 0
    """Tuples that wait for the next wave because the time of this one was over."""
    stages: int = 0
    """Passes over the Python workers that the wave took; 0 where no wave ran."""
    wave_s: float = 0.0
    """How long the wave took, in seconds."""
    busy_s: float = 0.0
    """How long its tasks have worked, added up, in seconds."""
    acked: int = 0
    """Messages that were acked since the last progress."""
    failed: int = 0
    """Messages that failed since the last progress; those that timed out are among them."""
    timed_out: int = 0
    """Messages that have timed out, in all of this run."""
    dead_letters: int = 0
    """Messages that were put aside, in all of this run."""
    pending: int = 0
    """Messages that are neither acked nor failed."""
    throttled: bool = False
    """Whether the spouts wait because the bolts are behind."""
    next_wave_tuples: int = 0
    """How many tuples the next wave may begin with."""
    state_bytes: int = 0
    """The size of what the bolts keep between two waves."""
    state_moved_bytes: int = 0
    """How much of it went to the workers for this wave, and came back from them."""
    lag: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What waited at each spout then, by what is counted: files, bytes, offsets, rows, messages."""


@dataclass(frozen=True, slots=True)
class TimelineEntry(_DictLike):
    """A step in the life of an attempt."""

    event: str
    """One of "processing starts", "processing ends", "commit starts", "commit ends", "failed"."""
    txid: int
    """The number of the batch."""
    attempt: int
    """Which try at the batch."""
    time: float
    """When, in seconds of a clock that only goes forward (`time.monotonic`)."""
    error: str | None = None
    """Why the attempt failed."""


@dataclass(frozen=True, slots=True)
class ErrorSummary(_DictLike):
    """An error of a component or a batch; repetitions in a row are counted."""

    component: str
    """The id of the spout or bolt, or "batch 7:0"."""
    error: str
    """What went wrong and where in the user's own code, on one line; as in `RunFailedError`."""
    traceback: str
    """All frames, of the first of them; may be empty."""
    count: int
    """How often in a row."""
    first: float
    """When it came first, in seconds since 1970."""
    last: float
    """When it came last."""


@dataclass(frozen=True, slots=True)
class BatchInFlight(_DictLike):
    """A batch that was emitted and is not committed."""

    txid: int
    """The number of the batch."""
    attempt: int
    """Which try at the batch."""
    phase: Literal["processing", "processed", "committing", "failed"]
    """How far this attempt is."""
    since: float
    """When the phase began, in seconds since 1970."""
    waits_for: str
    """What has to happen next, for people: "its turn to commit after 6"."""


@dataclass(frozen=True, slots=True)
class WaveInFlight(_DictLike):
    """The wave that runs, or that failed and will run again."""

    wave: int
    """The number of the wave."""
    attempt: int
    """Which try at the wave: 0 for the first."""
    tuples: int
    """Tuples and messages that it began with."""
    since: float
    """When this try, or the pause before the next one, began, in seconds since 1970."""
    waits_for: str
    """What has to happen next, for people."""


@dataclass(frozen=True, slots=True)
class BatchTotals(_DictLike):
    """What a run of batches has done since it began."""

    committed: int = 0
    """Batches committed."""
    last_txid: int | None = None
    """The batch committed last; None before the first."""
    replayed: int = 0
    """Attempts that were replays."""
    failures: int = 0
    """Attempts that have failed."""
    input_rows: int = 0
    """Trident: rows that the spouts gave to committed batches, as far as is told."""
    written_rows: int = 0
    """Trident: rows written to states by committed batches."""
    executed_tuples: int = 0
    """Transactional: tuples executed by committed batches, in the processing phase."""


@dataclass(frozen=True, slots=True)
class WaveTotals(_DictLike):
    """What a run of waves has done since it began."""

    waves: int = 0
    """Waves that went through."""
    executed: int = 0
    """Tuples that bolts have executed."""
    acked: int = 0
    """Messages acked."""
    failed: int = 0
    """Messages failed; those that timed out are among them."""
    timed_out: int = 0
    """Messages that have timed out."""
    dead_letters: int = 0
    """Messages put aside."""


@dataclass(frozen=True, slots=True)
class SpoutPause(_DictLike):
    """A spout that is not asked for a while, because it raised."""

    component: str
    """The id of the spout."""
    error: str
    """What it raised."""
    until: float
    """When it is asked again, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Outage(_DictLike):
    """A store, a source or ZooKeeper that a run waits for."""

    service: str
    """What it is called: postgres, redis, zookeeper..."""
    error: str
    """What the last try met with."""
    since: float
    """When it was found to be away, in seconds since 1970."""
    until: float
    """When it is tried again."""

    def shown(self, now: float) -> str:
        """Return it for people.

        >>> Outage("postgres", "connection refused", 100.0, 140.0).shown(134.2)
        'waiting for postgres, 34 s'
        """
        return f"waiting for {self.service}, {max(0.0, now - self.since):.0f} s"


@dataclass(frozen=True, slots=True)
class RunSnapshot(_DictLike):
    """How a run stands now."""

    name: str
    """The name of the topology."""
    status: str
    """One of running, idle, inactive, stopped, failed; or "waiting for postgres, 34 s"."""
    timestamp: float
    """When the snapshot was taken, in seconds since 1970."""
    in_flight: tuple[BatchInFlight, ...] | tuple[WaveInFlight, ...]
    """The batches in flight in order, or the wave that runs."""
    totals: BatchTotals | WaveTotals
    """What the run has done since it began."""
    last_progress: BatchProgress | WaveProgress | None
    """The newest progress; None before the first."""
    pausing_spouts: tuple[SpoutPause, ...]
    """The spouts that are not asked at the moment because they raised."""
    errors: tuple[ErrorSummary, ...]
    """The latest errors, oldest first."""
    waiting_for: tuple[Outage, ...] = ()
    """The services that cannot be reached at the moment, the one away longest first."""
    lag: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What waits at each spout, by what is counted: files, bytes, offsets, rows, messages."""
    unreachable: tuple[UnreachablePartition, ...] = ()
    """The partitions of opaque spouts that cannot be reached, and are left out of batches."""
