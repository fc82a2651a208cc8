"""What a phase leaves for the next one: rows in the driver, or blocks on the executors.

Small results are collected; the commit then needs no further job and no Python worker. Large
ones stay on the executors, locally checkpointed: they have no lineage, so that a lost block
fails the attempt instead of silently reading the source again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from waterspout._config import Config
from waterspout.errors import TopologyError
from waterspout.spark.session import SparkRuntime, freed_if_it_fails
from waterspout.trident.runtime.routing import PARTITION

__all__ = ["Collected", "Kept", "Placement", "Staging", "chunks_of", "keep"]


@dataclass(frozen=True, slots=True)
class Collected:
    """Rows in the driver's memory."""

    table: pa.Table

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.table.num_rows)


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows on the executors, by partition of the state if they are a state's input."""

    frame: DataFrame
    rows: int
    marked: int | None = None
    """How many of them have a mark that was asked for; None: nobody has counted."""
    told: tuple[str | None, ...] = ()
    """The greatest and the least text of a column that was asked for."""
    added: int = 0
    """The sum of a column that was asked for."""


class Placement:
    """Learns how large a stage's results are, and says where the next one should go."""

    def __init__(self, conf: Config, *, driver_only: bool) -> None:
        if driver_only and conf.commit_in == "tasks":
            raise TopologyError(
                "commit_in='tasks' is not possible with a state that only the driver reaches "
                "(SQLite, memory); leave commit_in at 'auto', or use a server"
            )
        self._mode = conf.commit_in
        self._cap = conf.collect_max_rows
        self._largest: int | None = None

    def learn(self, rows: int) -> None:
        """Remember the size of a result, forgetting old ones slowly."""
        if self._largest is None or rows > self._largest:
            self._largest = rows
        else:
            self._largest = (3 * self._largest + rows) // 4

    def collects(self, *, source_is_small: bool) -> bool:
        """Whether the next result is expected to fit into the driver."""
        if self._mode != "auto":
            return self._mode == "driver"
        if self._largest is None:
            return source_is_small
        return 2 * self._largest <= self._cap


@dataclass(slots=True)
class Staging:
    """Everything that one attempt has staged."""

    frames: list[DataFrame]
    computed: list[DataFrame] = field(default_factory=list)
    """Frames whose jobs have run: their plans say how many rows went through."""

    def release(self, runtime: SparkRuntime) -> None:
        """Give the executors' blocks back."""
        self.computed.clear()
        while self.frames:
            runtime.free(self.frames.pop())


def keep(
    frame: DataFrame,
    staging: Staging,
    *,
    partitions: int | None = None,
    mark: Column | None = None,
    told: str | None = None,
    added: str | None = None,
    real: str | None = None,
) -> Kept:
    """Compute a frame now, exactly once, and leave its rows on the executors.

    `mark`: rows for which this holds are counted as well. `told`: a column of texts to look at.
    `added`: a column to add up. `real`: the column of those rows that are to be counted.
    """
    if partitions is not None:
        frame = frame.repartitionById(partitions, F.col(PARTITION))
    observed = Observation()
    marked = F.count(F.lit(1) if mark is None else F.when(mark, 1)).alias("marked")
    counted = F.lit(1) if real is None else F.when(F.col(real), 1)
    looks = [F.count(counted).alias("rows"), marked]
    if added is not None:
        looks.append(F.sum(added).alias("added"))
    if told is not None:
        looks += [F.max(told).alias("most"), F.min(told).alias("least")]
    with freed_if_it_fails(frame.sparkSession):
        computed = frame.observe(observed, *looks)
        kept = computed.localCheckpoint(eager=True)
    staging.frames.append(kept)
    staging.computed.append(computed)
    seen = observed.get
    if "rows" not in seen:  # Spark Connect does not observe a checkpoint; a look at it is quick
        seen = kept.agg(*looks).collect()[0].asDict()
    texts = (seen.get("most"), seen.get("least"))
    rows, total = int(seen["rows"]), int(seen.get("added") or 0)
    return Kept(kept, rows, int(seen["marked"]), texts, total)


def chunks_of(kept: Kept, cap: int, keys: Sequence[str]) -> Iterator[pa.Table]:
    """Bring a large result into the driver piece by piece, all rows of a key in one piece.

    Without keys it can only come whole: a batch updates each key of a state once.
    """
    pieces = max(1, -(-kept.rows // cap)) if keys else 1
    for piece in range(pieces):
        chosen = F.pmod(F.xxhash64(*keys), F.lit(pieces)) == piece if keys else F.lit(True)
        yield kept.frame.where(chosen).toArrow()
