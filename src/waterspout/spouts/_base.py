"""What a source of batches is: a plan of what goes into each batch, and how to read it.

Driver side, a `BatchPlanner` chooses each batch's metadata: a small JSON value that pins
exactly what the batch holds. From then on the batch is a pure function of its metadata:
`read(metadata)` describes it, and whoever reads it, however often, reads the same.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._signatures import takes
from waterspout.errors import ConfigError, OutageError, TopologyError
from waterspout.spouts._malformed import OnMalformed
from waterspout.spouts._reads import Read, RowsRead
from waterspout.transactional._away import PartitionName
from waterspout.transactional._ledger import Metadata, is_skipped

__all__ = [
    "AdaptedSource",
    "BatchPlanner",
    "BatchSpout",
    "LookingPlanner",
    "Piece",
    "PlannedSpout",
    "RunsIn",
    "SpoutContext",
    "SpoutKind",
    "as_json",
    "is_pinned",
    "read_of",
]


S = TypeVar("S")


class SpoutKind(Enum):
    """What a replay of a batch holds."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class RunsIn(Enum):
    """Which process does the work of reading a spout, or of another node of a plan."""

    JVM = "JVM"
    PYTHON = "Python"
    DRIVER = "driver"
    EITHER = "driver, or Python tasks if there is much"


@dataclass(frozen=True, slots=True)
class SpoutContext:
    """Where a spout runs.

    `folder` is a directory of the topology's own that survives the driver (None if nothing does).
    Without one, what a spout must remember as long as the ledger lives is put into `kept`.
    `known` holds the metadata of batches that this spout must not plan again: the last
    committed one and those emitted since, by txid. `since` is the first batch that the spout has
    part in: not 1 if it was added to a topology that had run before. `clock` gives
    seconds, as the run counts them.
    """

    conf: Config
    spout_id: str
    folder: Path | None
    known: Mapping[int, Any]
    current: int
    since: int = 1
    kept: MutableMapping[str, object] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic


class BatchPlanner(ABC):
    """The live, driver side of a spout. One thread calls it."""

    unit: ClassVar[str] = "rows"
    """What `size_of` and a target count."""

    @abstractmethod
    def is_ready(self, previous: Any) -> bool:
        """Whether there is data for a batch that goes on where `previous` ended.

        Called often; must be quick. `previous` is None before the first batch.
        """

    @abstractmethod
    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        """Return the metadata of a batch that goes on where `previous` ended.

        Called once per txid for a transactional spout, once per attempt for any other; the
        answer is stored before the batch is read. With nothing to read, plan an empty batch.
        `previous` is None for the first batch.

        `target` is a wish, in the unit of `size_of`: take about so much, at least one piece (a
        file, a record), and less where there is less. None: as much as the spout sees fit. A
        planner may leave the parameter out; then nobody asks it for a size.
        """

    def size_of(self, metadata: Any) -> int | None:
        """Return how much the batch of this metadata holds, in `unit`.

        None: nobody knows, or a target would change nothing, since the size is fixed.
        """
        return None

    def left_more(self, metadata: Any) -> bool | None:
        """Whether more waited than this batch has taken, when it was planned; None: `lag` tells."""
        return None

    def holds_data(self, metadata: Any) -> bool | None:
        """Whether the batch of this metadata has tuples; None if only reading it would tell.

        Asked where windows go by time: they need batches though no spout is ready, and must know
        when tuples last came.
        """
        return None

    def confirm(self, metadata: Any) -> None:  # noqa: B027  (optional hook)
        """Raise if what a batch was read from is no longer what `metadata` pins.

        Called when an attempt at the batch was processed, before it begins to commit; an error
        fails the attempt, and nothing of it is written.
        """

    def succeeded(self, txid: int, metadata: Any) -> None:  # noqa: B027  (optional hook)
        """Learn that a batch has committed. Called again after a crash: must be idempotent."""

    def outage(self) -> OutageError | None:
        """Return what the spout itself waits for, where it does; asked after `is_ready`."""
        return None

    def attempt_failed(self, error: BaseException) -> None:  # noqa: B027  (optional hook)
        """Learn that an attempt at a batch failed, before it is planned again."""

    def unreachable(self) -> Mapping[PartitionName, str]:
        """Return why, by number or name, for each partition that is left out of batches for now."""
        return {}

    def lag(self, previous: Any) -> Mapping[str, int]:
        """Return how much waits behind a batch, by what is counted: files, bytes, offsets, rows.

        Nothing, if that cannot be told. Called about once a second and for each batch: quick.
        """
        return {}

    def is_drained(self) -> bool:
        """Whether no more is to be expected for now; asked when nothing is ready."""
        return True

    def look_anew(self) -> None:  # noqa: B027  (optional hook)
        """Learn that somebody waits for all there is by now: what was seen before does not tell.

        A planner that looks only now and then is not drained until it has looked once more.
        """

    def set_active(self, active: bool) -> None:  # noqa: B027  (optional hook)
        """Learn that batches will, or will not, begin for a while. Not called at the start."""

    def close(self) -> None:  # noqa: B027  (optional hook)
        """Give up connections and files. Not called if the process dies."""


class LookingPlanner(BatchPlanner):
    """Plans a batch to see whether there is one, and keeps that plan until it is asked for."""

    def __init__(self, context: SpoutContext) -> None:
        self._following = max([context.current - 1, *context.known]) + 1
        """The first txid that was never planned."""
        self._looked: tuple[tuple[int, str, int | None], Any] | None = None
        """What was found, and for which batch, behind which one, with which target."""

        self._asks_for_size = takes(self.look, 3)
        self._target: int | None = None

    @abstractmethod
    def look(self, txid: int, previous: Any, target: int | None = None) -> Any:
        """Return the metadata of a batch that goes on where `previous` ended.

        `target` as in `plan`; one that cannot be sized may leave it out.
        """

    def goes_on(self, metadata: Any) -> bool:
        """Whether a batch of this metadata is to be begun: it has tuples, or the source moves."""
        return bool(self.holds_data(metadata))

    def is_ready(self, previous: Any) -> bool:
        wanted = (self._following, json.dumps(previous), self._target)
        if self._looked is None or self._looked[0] != wanted:
            found = self._look(self._following, previous)
            self._looked = (wanted, found) if self.goes_on(found) else None
        return self._looked is not None

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        # What was found for another target is looked for anew; who takes none, is never asked to.
        self._target = target if self._asks_for_size else None
        looked, self._looked = self._looked, None
        self._following = max(self._following, txid + 1)
        if looked is not None and looked[0] == (txid, json.dumps(previous), self._target):
            return looked[1]
        return self._look(txid, previous)

    def _look(self, txid: int, previous: Any) -> Any:
        if self._target is None:
            return self.look(txid, previous)
        return self.look(txid, previous, self._target)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of what a batch is pinned to, such as a file; `wrong` says why it cannot be read."""

    name: str
    wrong: str | None
    left_out: bool = False
    """Whether it counts as read, and is not read, because a person decided so."""


class PlannedSpout(ABC):
    """A source of batches as the loop sees it: it plans them; who reads them is not its concern."""

    kind: SpoutKind = SpoutKind.TRANSACTIONAL

    repeats: bool = True
    """Whether the same metadata is read as the same rows again, by another driver too.

    Asked of an opaque spout, of which each attempt is planned anew as a rule.
    """

    def pieces(self, metadata: Any) -> list[Piece]:
        """Return what a batch is pinned to, as far as that can be looked at one by one."""
        return []

    def leave_out(self, metadata: Any, names: Sequence[str]) -> Any:
        """Return the metadata of the same batch, which counts these pieces as read, unread."""
        raise ConfigError("this spout cannot leave out a part of a batch; skip the whole batch")

    def accept(self, metadata: Any) -> Any:
        """Return the metadata of the same batch with every piece pinned as it is now."""
        raise ConfigError(
            "this spout cannot tell what of a batch has changed, so there is nothing to accept"
        )

    @abstractmethod
    def open(self, context: SpoutContext) -> BatchPlanner:
        """Start planning. Called once per run, in the driver."""


class BatchSpout(PlannedSpout):
    """Recipe of a source of batches that are read as DataFrames."""

    read_in: RunsIn | None = None
    """Which process reads its batches; None: each batch may tell something else."""

    needs_folder: bool = False
    """Whether its planner keeps something in the topology's folder on this machine."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The fields of the stream, with types."""

    @abstractmethod
    def read(self, metadata: Any) -> Read:
        """Describe the batch that `metadata` pins; a pure function."""

    def read_nothing(self) -> Read:
        """Describe a batch without a row."""
        return RowsRead(self.schema, [])

    def on_malformed(self, conf: Config) -> OnMalformed | None:
        """Return what becomes of records that do not fit the schema; None: there are none."""
        return None

    def so_far(self, metadata: Any, folder: Path | None, spout_id: str) -> Any | None:
        """Return the metadata of one batch that holds all up to this committed one.

        None if the spout cannot tell any more. Used by an audit, which counts everything again.
        """
        return None

    def so_far_without(
        self,
        metadata: Any,
        folder: Path | None,
        spout_id: str,
        skipped: Collection[int],
        left_out: Collection[str],
    ) -> Any | None:
        """Return the same, but for the batches and the pieces that a person had skipped."""
        return None

    def identity(self) -> Mapping[str, Any]:
        """Return what must not change while a topology lives."""
        return {"spout": type(self).__qualname__, "kind": self.kind.value}

    def check(self) -> None:
        """Raise if the source cannot be used as it is. Called before a run."""


def is_pinned(spout: PlannedSpout, *, pins_batches: bool) -> bool:
    """Whether all attempts at a batch hold the same rows, once one of them has begun to commit.

    `pins_batches` if a state wants that, and the loop plans such a batch no more.
    """
    if spout.kind is SpoutKind.OPAQUE:
        return pins_batches and spout.repeats
    return spout.kind is SpoutKind.TRANSACTIONAL


def read_of(spout: BatchSpout, spout_id: str, batch: Metadata) -> Read:
    """Describe what a spout gives to a batch: nothing, if a person has decided so."""
    return spout.read_nothing() if is_skipped(batch, spout_id) else spout.read(batch[spout_id])


def as_json(metadata: Any, otherwise: str) -> Any:
    """Return metadata as it will be read back; refuse what is not JSON."""
    try:
        return json.loads(json.dumps(metadata, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TopologyError(
            f"{otherwise}: {error}. Use numbers, text, lists, dicts and None."
        ) from None


class AdaptedSource(BatchSpout, Generic[S]):
    """Recipe of the stream of a spout that is not itself a `BatchSpout`."""

    def __init__(self, spout: S, spout_id: str, schema: Schema, kind: SpoutKind) -> None:
        self.original = spout
        self.kind = kind
        self._spout_id = spout_id
        self._schema = schema
        self._where = f"spout {spout_id!r}"

    @property
    def schema(self) -> Schema:
        return self._schema

    def identity(self) -> Mapping[str, Any]:
        name = type(self.original).__qualname__
        return {"spout": name, "kind": self.kind.value, "fields": str(self._schema)}
