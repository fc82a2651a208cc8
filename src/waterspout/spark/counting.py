"""How many rows the sources of a batch have given: counted by Spark as it computes them.

The physical plan of a frame that was computed has the counts of its operators, merged when its job
ended. To read them takes no job, and changes no plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from waterspout.spouts._reads import EmitRead, FilesRead, FrameRead, RangeRead, Read, RowsRead

__all__ = ["input_rows"]

log = logging.getLogger(__name__)

_FILES = "FileSourceScanExec"
_EMITTED = "MapInArrowExec"  # over a range of numbers, one for each emitter


def input_rows(reads: Sequence[Read], computed: Iterable[DataFrame]) -> int | None:
    """Return how many rows were read; None where Spark does not tell.

    `computed` are the frames whose jobs have run. Over Spark Connect nothing is told of files, and
    nowhere of a DataFrame of the user's, which may read more or less than it gives.
    """
    in_driver = 0
    wanted = dict.fromkeys((_FILES, _EMITTED), 0)
    for read in reads:
        match read:
            case RowsRead():
                in_driver += len(read.rows)
            case RangeRead(_, start, end):
                in_driver += end - start
            case FilesRead():
                wanted[_FILES] += bool(read.paths)
            case EmitRead():
                wanted[_EMITTED] += bool(read.partitions)
            case FrameRead():
                return None
    ranges = any(isinstance(read, RangeRead) for read in reads)
    if not any(wanted.values()):
        return in_driver
    if wanted[_EMITTED] and ranges:
        return None  # a range of numbers need not be one of emitters
    try:
        counts = [found for frame in computed for found in _counts(frame)]
    except Exception:  # the plans of Spark Connect are not here
        log.debug("Spark does not tell how many rows were read", exc_info=True)
        return None
    found = {kind: [rows for each, rows in counts if each == kind] for kind in wanted}
    if any(len(found[kind]) != number for kind, number in wanted.items() if number):
        return None
    return in_driver + sum(sum(found[kind]) for kind, number in wanted.items() if number)


def _counts(frame: DataFrame) -> Iterator[tuple[str, int]]:
    return _of_plan(frame._jdf.queryExecution().executedPlan())


def _of_plan(plan: Any) -> Iterator[tuple[str, int]]:
    """Give the rows of each operator that reads a source, with its kind."""
    kind = plan.getClass().getSimpleName()
    if kind == "AdaptiveSparkPlanExec":
        yield from _of_plan(plan.executedPlan())
    elif kind.endswith("QueryStageExec"):
        yield from _of_plan(plan.plan())
    elif kind == _FILES:
        yield kind, int(plan.metrics().apply("numOutputRows").value())
    elif kind == _EMITTED and _is_range(plan.child()):
        yield kind, int(plan.metrics().apply("pythonNumRowsReceived").value())
    else:
        children = plan.children()
        for position in range(children.size()):
            yield from _of_plan(children.apply(position))


def _is_range(plan: Any) -> bool:
    kind = plan.getClass().getSimpleName()
    while kind in ("WholeStageCodegenExec", "InputAdapter", "ProjectExec", "ColumnarToRowExec"):
        plan = plan.child()
        kind = plan.getClass().getSimpleName()
    return bool(kind == "RangeExec")
