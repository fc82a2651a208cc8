"""What a run tells: its events, its progress, and snapshots. See docs/progress.md."""

from __future__ import annotations

from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchCommitting,
    BatchEmitted,
    BatchFailed,
    BatchProcessed,
    CommandObeyed,
    ErrorReported,
    Event,
    Listener,
    MessageDeadLettered,
    ProgressBetweenWaves,
    RunEnded,
    ServiceAway,
    ServiceBack,
    SpoutPaused,
    StateWritten,
    TreesDecided,
    WaveFinished,
    WaveRetried,
    WaveStarted,
)
from waterspout.coordination.progress import (
    BatchProgress,
    RunSnapshot,
    WaveProgress,
)

__all__ = [
    "BatchCancelled",
    "BatchCommitted",
    "BatchCommitting",
    "BatchEmitted",
    "BatchFailed",
    "BatchProcessed",
    "BatchProgress",
    "CommandObeyed",
    "ErrorReported",
    "Event",
    "Listener",
    "MessageDeadLettered",
    "ProgressBetweenWaves",
    "RunEnded",
    "RunSnapshot",
    "ServiceAway",
    "ServiceBack",
    "SpoutPaused",
    "StateWritten",
    "TreesDecided",
    "WaveFinished",
    "WaveProgress",
    "WaveRetried",
    "WaveStarted",
]
