"""The sizes of a run's batches: what the controller is told of them, and who is asked for how much.

The decisions are those of `transactional/_sizing.py`. This is its shell: it asks spouts for plans
with the target that holds now, keeps what is known of each attempt until it commits or is lost,
and tells every new decision to whoever listens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from waterspout._causes import told
from waterspout._config import Config
from waterspout._signatures import takes
from waterspout.coordination.driven import without_harm
from waterspout.coordination.engine import Committed, Processed
from waterspout.coordination.events import BatchSized, Event
from waterspout.coordination.progress import BatchSizing
from waterspout.errors import BatchTimeoutError
from waterspout.spouts._base import BatchPlanner
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._sizing import BatchFacts, SizeController, Sizing, SizingPolicy

__all__ = ["BatchSizes", "is_too_large", "sizing_policy"]

_FULL = 0.7  # share of its target from which on a spout that does not tell may have had more
_MUCH = 0.1  # share of a batch: less than that has come while it was planned, and is no backlog
_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError", "out of memory", "OOMKilled")


def sizing_policy(conf: Config, *, pending_max: int, otherwise: bool) -> SizingPolicy | None:
    """Return the bounds that a run's options give; None if batches are not sized.

    `otherwise`: whether they are where the options leave it open.
    """
    wanted = otherwise if conf.batch_sizing is None else conf.batch_sizing
    if not wanted:
        return None
    return SizingPolicy(
        aim_s=conf.batch_interval_millis / 1000,
        pending=conf.max_spout_pending,
        pending_max=max(pending_max, conf.max_batches),
        staged_high=conf.backpressure_high * conf.staged_max_rows,
        staged_low=conf.backpressure_low * conf.staged_max_rows,
    )


def is_too_large(error: BaseException) -> bool:
    """Whether an attempt may have failed because there was too much in it."""
    if isinstance(error, BatchTimeoutError | MemoryError):
        return True
    text = f"{told(error)} {error}"
    return any(mark in text for mark in _OUT_OF_MEMORY)


@dataclass(slots=True)
class _Underway:
    """What is known of an attempt in flight."""

    sizes: dict[str, int]
    behind: tuple[str, ...]
    emitted_at: float
    staged_rows: int = 0
    processed_at: float = 0.0
    began_commit_at: float = 0.0


@dataclass(slots=True)
class BatchSizes:
    """Who is asked for how much, and how many batches may be in flight.

    Without a policy: nobody is asked for anything, and `pending` stays as it is.
    """

    name: str
    policy: SizingPolicy | None
    publish: Callable[[Event], None]
    clock: Callable[[], float]
    pending: int = 1
    _planners: Mapping[str, BatchPlanner] = field(default_factory=dict)
    _takes_target: dict[str, bool] = field(default_factory=dict)
    _controller: SizeController | None = None
    _underway: dict[TransactionAttempt, _Underway] = field(default_factory=dict)
    _behind: dict[str, bool] = field(default_factory=dict)
    """By spout, whether more waited when it planned its part of the batch that is emitted next."""

    def open(self, planners: Mapping[str, BatchPlanner]) -> None:
        """Take in the planners; one of a user may know no target."""
        self._planners = planners
        self._takes_target = {name: takes(p.plan, 3) for name, p in planners.items()}
        if self.policy is not None:
            units = {name: planner.unit for name, planner in planners.items()}
            self._controller = SizeController(replace(self.policy, units=units))
            self.pending = self._controller.now.pending

    @property
    def is_throttled(self) -> bool:
        """Whether no new batch may begin because too much is staged."""
        return self._controller is not None and self._controller.now.throttled

    def pin_pending(self, n: int) -> None:
        """Keep that many in flight: somebody has said so."""
        self.pending = n
        if self._controller is not None:
            self._controller.pin_pending(n)
            self._tell(self._controller.now)

    def plan(self, spout_id: str, txid: int, previous: Any) -> Any:
        """Return the metadata of a spout's part in a batch, about as large as it should be."""
        planner, target = self._planners[spout_id], self._target(spout_id)
        asked = target is not None and self._takes_target[spout_id]
        metadata = planner.plan(txid, previous, *((target,) if asked else ()))
        if self._controller is not None:
            # Now: what comes while the batch is stored has not been left behind by it.
            size = self._size_of(spout_id, metadata)
            self._behind[spout_id] = self._is_behind(spout_id, metadata, size)
        return metadata

    def emitted(self, attempt: TransactionAttempt, at: float, metadata: Mapping[str, Any]) -> None:
        """Note what an attempt holds; and where more waits, if it was planned just now."""
        if self._controller is None:
            return
        found = {spout: self._size_of(spout, metadata[spout]) for spout in self._planners}
        sizes = {spout: size for spout, size in found.items() if size is not None}
        behind = tuple(spout for spout, is_behind in self._behind.items() if is_behind)
        self._behind = {}
        self._underway[attempt] = _Underway(sizes, behind, at)

    def processed(self, report: Processed) -> None:
        """Note what an attempt has left for its commit."""
        underway = self._underway.get(report.attempt)
        if underway is not None:
            underway.staged_rows, underway.processed_at = report.staged_rows, self.clock()
            self._look_at_staged()

    def committing(self, attempt: TransactionAttempt) -> None:
        """Note that an attempt's turn to commit has come."""
        if attempt in self._underway:
            self._underway[attempt].began_commit_at = self.clock()

    def lost(self, attempt: TransactionAttempt, error: BaseException | None = None) -> None:
        """Note that an attempt failed with an error, or was cancelled."""
        underway = self._underway.pop(attempt, None)
        if underway is None or self._controller is None:
            return
        if error is not None and is_too_large(error):
            why = "it took too long" if isinstance(error, BatchTimeoutError) else "out of memory"
            self._tell(self._controller.too_large(underway.sizes, why))
        self._look_at_staged()

    def committed(
        self, attempt: TransactionAttempt, processed: Processed, committed: Committed
    ) -> BatchSizing:
        """Learn from a batch that has committed; return what holds now, with what it held."""
        underway = self._underway.pop(attempt, None)
        if self._controller is None:
            return BatchSizing(max_in_flight=self.pending)
        sizes: Mapping[str, int] = {}
        if underway is not None:
            sizes = underway.sizes
            facts = BatchFacts(
                sizes,
                emitted_at=underway.emitted_at,
                committed_at=self.clock(),
                processing_s=processed.processing_s,
                waiting_s=max(0.0, underway.began_commit_at - underway.processed_at),
                commit_s=committed.commit_s,
                staged_rows=underway.staged_rows,
                behind=underway.behind,
            )
            self._tell(self._controller.committed(facts))
            self._look_at_staged()
        return replace(self._shown(self._controller.now), sizes=sizes)

    def _target(self, spout_id: str) -> int | None:
        return None if self._controller is None else self._controller.now.targets.get(spout_id)

    def _size_of(self, spout_id: str, metadata: Any) -> int | None:
        if not self._takes_target[spout_id]:
            return None
        return without_harm(partial(self._planners[spout_id].size_of, metadata), spout_id)

    def _is_behind(self, spout_id: str, metadata: Any, size: int | None) -> bool:
        """Whether more waited at a spout than it has given; a guess where it does not tell."""
        planner = self._planners[spout_id]
        left = without_harm(partial(planner.left_more, metadata), spout_id)
        if left is not None:
            return left
        lag = without_harm(partial(planner.lag, metadata), spout_id)
        if lag:
            return lag.get(planner.unit, max(lag.values())) > _MUCH * (size or 0)
        target = self._target(spout_id)
        return target is None or size is None or size >= _FULL * target

    def _look_at_staged(self) -> None:
        assert self._controller is not None
        self._tell(self._controller.staged(sum(u.staged_rows for u in self._underway.values())))

    def _tell(self, decision: Sizing | None) -> None:
        if decision is not None:
            self.pending = decision.pending
            self.publish(BatchSized(self.name, self._shown(decision)))

    def _shown(self, sizing: Sizing) -> BatchSizing:
        units = {spout: self._planners[spout].unit for spout in sizing.targets}
        return BatchSizing(
            targets=dict(sizing.targets),
            units=units,
            max_in_flight=sizing.pending,
            throttled=sizing.throttled,
            reason=sizing.reason,
        )
