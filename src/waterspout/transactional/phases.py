"""The phases of a transactional topology's batches: what an engine has to run, how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from waterspout.config import Config
from waterspout.errors import FailedException
from waterspout.topology.pickling import require_picklable
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.builder import TransactionalTopology
from waterspout.transactional.runtime import FAILED, BatchHeader
from waterspout.waves.shape import WaveShape, collapsed, spread
from waterspout.waves.shards import DRIVER, Row, ShardInput

__all__ = ["PhasePlan", "Phases", "commit_stages", "executed", "first_rows", "raise_failed"]


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One phase of one attempt: which stages are run, in which shape."""

    shape: WaveShape
    header: BatchHeader
    stages: Sequence[int]


class Phases:
    """Makes the phases of a topology; a batch is spread over workers unless batches are small."""

    def __init__(self, topology: TransactionalTopology, conf: Config, workers: int) -> None:
        self._spout_id = topology.spout_id
        self._late = topology.late
        outline = topology.outline()
        self._collapsed, self._spread = collapsed(outline), spread(outline, workers)
        self._collapse_tuples = conf.wave_collapse_tuples
        self._largest: int | None = None
        self._conf = conf.to_dict()
        self._components = {
            spec.id: require_picklable(spec.component, f"component {spec.id!r}")
            for spec in topology.components.values()
        }

    def processing(self, attempt: TransactionAttempt, metadata: Mapping[str, Any]) -> PhasePlan:
        """Return the processing phase of an attempt."""
        small = self._largest is not None and self._largest <= self._collapse_tuples
        shape = self._collapsed if small else self._spread
        header = BatchHeader(
            conf=self._conf,
            components=self._components,
            attempt=attempt,
            commit=False,
            spout_id=self._spout_id,
            late=self._late,
            metadata=metadata[self._spout_id],
        )
        return PhasePlan(shape, header, range(len(shape.stages)))

    def processed(self, tuples: int) -> None:
        """Learn from a processing phase how large batches are now."""
        self._largest = max(tuples, (self._largest or 0) * 3 // 4)

    def commit(self, processing: PhasePlan, resolved: Mapping[int, int]) -> PhasePlan:
        """Return the commit phase that follows on a processing phase, in the same shape."""
        header = replace(processing.header, commit=True, metadata=None, resolved=resolved)
        return PhasePlan(processing.shape, header, commit_stages(processing.shape, self._late))


def first_rows(shape: WaveShape) -> list[Row]:
    """Return a batch's first rows: one for each shard of the first stage, so that each runs apart.

    These shards in turn send one to every shard of the later stages, which then runs, tuples or
    not.
    """
    return [ShardInput().row(0, shard) for shard in range(shape.stages[0].shards)]


def commit_stages(shape: WaveShape, late: frozenset[str]) -> list[int]:
    """Return the stages that have something to do in the commit phase."""
    return [
        number for number, stage in enumerate(shape.stages) if not late.isdisjoint(stage.components)
    ]


def executed(rows: Iterable[Row]) -> int:
    """Return how many tuples the shards of a phase have executed."""
    return sum(row.count for row in rows if row.stage == DRIVER)


def raise_failed(rows: Iterable[Row]) -> None:
    """Raise what a shard gave as the reason to replay the batch, if one did."""
    for row in rows:
        if row.stage == FAILED:
            raise FailedException(row.data.decode("utf-8"))
