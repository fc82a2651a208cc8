"""What the loop asks of whoever runs the phases of a batch, and what it hears back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from waterspout.coordination.commands.messages import Change
from waterspout.errors import ConfigError
from waterspout.state._head import Claim
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Metadata
from waterspout.waves.counting import TaskCounts

__all__ = ["BatchEngine", "Committed", "Ended", "Failed", "Processed", "Report", "Wrote"]


@dataclass(frozen=True, slots=True)
class Processed:
    """The processing phase of an attempt succeeded; the numbers are those of `BatchProgress`."""

    attempt: TransactionAttempt
    processing_s: float = 0.0
    input_rows: int | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    staged_rows: int = 0
    executed_tuples: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """All writes of an attempt's commit phase succeeded; numbers as in `BatchProgress`."""

    attempt: TransactionAttempt
    commit_s: float = 0.0
    written: Mapping[str, int] = field(default_factory=dict)
    """How many rows went into each state, by its name."""
    committed_tuples: int = 0
    counts: tuple[TaskCounts, ...] = ()
    """What the tasks of bolts have done, in both phases."""
    late_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """A phase of an attempt failed."""

    attempt: TransactionAttempt
    error: BaseException


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing of a cancelled attempt runs any more."""

    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Wrote:
    """All writes of an attempt to one state are done, as far as the driver can tell."""

    attempt: TransactionAttempt
    state: str


Report = Processed | Committed | Failed | Ended | Wrote
"""What an engine tells the loop: `Wrote` in a commit phase, one of the others for each phase."""


class BatchEngine(ABC):
    """Runs phases in the background and reports each outcome once, from any thread."""

    report: Callable[[Report], None]
    """Set by the loop before the first start."""

    @abstractmethod
    def start_processing(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        """Start the processing phase; report Processed or Failed. Must not block."""

    @abstractmethod
    def start_commit(self, claim: Claim, move_heads: Callable[[], None]) -> None:
        """Start the commit phase of a processed attempt; report Committed or Failed.

        Before that, `Wrote` for each state that was written, when it was.

        `move_heads` lets the attempt write to the states; to be called before the first write.
        """

    @abstractmethod
    def cancel(self, attempt: TransactionAttempt) -> None:
        """Stop the attempt's work and drop what it staged; report Ended when nothing runs."""

    @abstractmethod
    def release(self, attempt: TransactionAttempt) -> None:
        """Drop what a committed attempt staged."""

    def check_change(self, change: Change) -> None:
        """Raise ConfigError, with the reason, for a change that cannot be made."""
        if change.workers is not None or change.parallelism:
            raise ConfigError("only max_spout_pending can be changed while it runs")

    def change(self, change: Change) -> None:  # noqa: B027  (an engine may have nothing to do)
        """Make a change that was checked; called while nothing is in flight."""
