"""How many rows the sources of a batch have given: counted by Spark as it computes them.

The physical plan of a frame that was computed has the counts of its operators, merged when its job
ended. To read them takes no job, and changes no plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from waterspout.spouts._reads import (
    EmitRead,
    FilesRead,
    FrameRead,
    KafkaRead,
    RangeRead,
    Read,
    RowsRead,
)

__all__ = ["InputRows", "input_rows"]

log = logging.getLogger(__name__)

_FILES = "FileSourceScanExec"
_EMITTED = "MapInArrowExec"  # over a range of numbers, one for each emitter


@dataclass(frozen=True, slots=True)
class InputRows:
    """How many rows the spouts of a batch gave."""

    total: int | None
    """None where Spark does not tell."""
    by_spout: Mapping[str, int] = field(default_factory=dict)
    """Of the spouts of which it is known: not where two are read in the same way."""


def input_rows(reads: Mapping[str, Read], computed: Iterable[DataFrame]) -> InputRows:
    """Return how many rows were read, in all and by spout.

    `computed` are the frames whose jobs have run. Over Spark Connect nothing is told of files, and
    nowhere of a DataFrame of the user's, which may read more or less than it gives.
    """
    known: dict[str, int] = {}
    wanted: dict[str, list[str]] = {_FILES: [], _EMITTED: []}
    ranges = foreign = False
    for name, read in reads.items():
        match read:
            case RowsRead():
                known[name] = len(read.rows)
            case RangeRead(_, start, end):
                known[name], ranges = end - start, True
            case FilesRead(paths=()) | EmitRead(partitions=()) | KafkaRead(ranges=()):
                known[name] = 0
            case FilesRead():
                wanted[_FILES].append(name)
            case EmitRead() | KafkaRead():
                wanted[_EMITTED].append(name)
            case FrameRead():
                foreign = True
    kinds = {kind: names for kind, names in wanted.items() if names}
    if foreign or (_EMITTED in kinds and ranges):
        # What a user's frame reads cannot be told apart; nor ranges from those of emitters.
        return InputRows(None, known)
    if not kinds:
        return InputRows(sum(known.values()), known)
    try:
        files = _EMITTED not in kinds
        counts = [found for frame in computed for found in _counts(frame, only_files=files)]
    except Exception:  # the plans of Spark Connect are not here
        log.debug("Spark does not tell how many rows were read", exc_info=True)
        return InputRows(None, known)
    total = sum(known.values())
    for kind, names in kinds.items():
        found = [rows for each, rows in counts if each == kind]
        if len(found) != len(names):
            return InputRows(None, known)
        total += sum(found)
        if len(names) == 1:
            known[names[0]] = found[0]
    return InputRows(total, known)


def _counts(frame: DataFrame, *, only_files: bool) -> Iterator[tuple[str, int]]:
    """Give the rows of each operator that reads a source, with its kind.

    Every question is a call into the JVM; files are at the leaves, which takes few of them.
    """
    plan = frame._jdf.queryExecution().executedPlan()
    return _of_leaves(plan) if only_files else _of_plan(plan)


def _of_leaves(plan: Any) -> Iterator[tuple[str, int]]:
    leaves = plan.collectLeaves()
    for position in range(leaves.size()):
        leaf = leaves.apply(position)
        kind = leaf.getClass().getSimpleName()
        if kind == _FILES:
            yield kind, int(leaf.longMetric("numOutputRows").value())
        elif (inside := _inside(leaf, kind)) is not None:
            yield from _of_leaves(inside)


def _of_plan(plan: Any) -> Iterator[tuple[str, int]]:
    kind = plan.getClass().getSimpleName()
    if (inside := _inside(plan, kind)) is not None:
        yield from _of_plan(inside)
    elif kind == _FILES:
        yield kind, int(plan.longMetric("numOutputRows").value())
    elif kind == _EMITTED and _is_range(plan.child()):
        yield kind, int(plan.longMetric("pythonNumRowsReceived").value())
    else:
        children = plan.children()
        for position in range(children.size()):
            yield from _of_plan(children.apply(position))


def _inside(plan: Any, kind: str) -> Any | None:
    """Return the plan within one that looks like a leaf from outside."""
    if kind == "AdaptiveSparkPlanExec":
        return plan.executedPlan()
    return plan.plan() if kind.endswith("QueryStageExec") else None


def _is_range(plan: Any) -> bool:
    kind = plan.getClass().getSimpleName()
    while kind in ("WholeStageCodegenExec", "InputAdapter", "ProjectExec", "ColumnarToRowExec"):
        plan = plan.child()
        kind = plan.getClass().getSimpleName()
    return bool(kind == "RangeExec")
