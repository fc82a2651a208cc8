"""One part of one stage of a batch: emitters and batch bolts, in either phase. No Spark in here.

Processing: emitters emit, bolts execute; bolts in front of all committers finish, the others stay
half-done and are pickled. Commit: those are taken up again, and finish in order.

A `FailedException` is no error of the job: the part tells all later parts, which then do nothing,
and the driver, which replays the batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from waterspout import faults
from waterspout.acking.xor import generator
from waterspout.errors import FailedException
from waterspout.safe_repr import described, shown
from waterspout.topology.collector import Outlet, restoring
from waterspout.topology.component import BasicBolt
from waterspout.topology.graph import Topology
from waterspout.topology.pickling import require_picklable
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.bolts import BatchContext
from waterspout.transactional.collector import BatchCollector
from waterspout.transactional.spouts import (
    OpaquePartitionedTransactionalSpout,
    TransactionalSpout,
)
from waterspout.tuples import Fields, Origin, Tuple
from waterspout.waves.frames import Frame, pack, unpack
from waterspout.waves.intake import Intake
from waterspout.waves.part import DRIVER, nearby, no_collection
from waterspout.waves.routing import make_outlets
from waterspout.waves.rows import Row
from waterspout.waves.sealing import Anchors, seal
from waterspout.waves.shape import Place, WaveShape

__all__ = [
    "FAILED",
    "BatchHeader",
    "BatchInput",
    "commit_stages",
    "emit_partition",
    "first_rows",
    "run_stage",
]

log = logging.getLogger(__name__)

FAILED = -2
"""The stage of a row that tells the driver that the batch has failed, and why."""

_NO_IDS = generator((0,))  # no tuple of a batch is anchored: none is drawn


@dataclass(frozen=True)
class BatchHeader:
    """What all parts of a phase must know."""

    run: str
    attempt: TransactionAttempt
    commit: bool
    spout_id: str
    late: frozenset[str]
    conf: Mapping[str, Any]
    components: Mapping[str, bytes]
    metadata: Any = None
    resolved: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class BatchInput:
    """What a part has to do: tuples, half-done bolts, or nothing because the batch has failed."""

    frames: list[Frame] = field(default_factory=list)
    staged: dict[int, bytes] = field(default_factory=dict)
    failed: bool = False

    def add(self, other: BatchInput) -> None:
        """Take in what came from elsewhere."""
        self.frames.extend(other.frames)
        self.staged.update(other.staged)
        self.failed = self.failed or other.failed


def first_rows(shape: WaveShape) -> list[Row]:
    """Return a batch's first rows: one for each part of the first stage, so that each runs apart.

    These parts in turn send one to every part of the later stages, which then runs, tuples or not.
    """
    return [Row(0, part, pack(BatchInput())) for part in range(shape.stages[0].parts)]


def commit_stages(shape: WaveShape, late: frozenset[str]) -> list[int]:
    """Return the stages that have something to do in the commit phase."""
    return [
        number for number, stage in enumerate(shape.stages) if not late.isdisjoint(stage.components)
    ]


def run_stage(
    shape: WaveShape, header: BatchHeader, stage: int, rows: Iterable[Row]
) -> Iterator[Row]:
    """Run the parts of a stage whose rows these are; rows of others pass through."""
    inputs: dict[int, BatchInput] = {}
    for row in rows:
        if row.stage == stage:
            inputs.setdefault(row.part, BatchInput()).add(unpack(row.data))
        else:
            yield row
    for part, given in inputs.items():
        if given.failed:
            continue
        work = _Part(shape, header, stage, part)
        try:
            with no_collection():
                work.run(given)
        except FailedException as error:
            yield from _failed(shape, stage, described(error).removeprefix("FailedException: "))
            continue
        yield from work.rows()


def _failed(shape: WaveShape, stage: int, why: str) -> Iterator[Row]:
    nothing = pack(BatchInput(failed=True))
    for later in range(stage + 1, len(shape.stages)):
        for part in range(shape.stages[later].parts):
            yield Row(later, part, nothing)
    yield Row(FAILED, 0, why.encode("utf-8", "backslashreplace"))


class _Part:
    """The tasks of one part, one after the other."""

    def __init__(self, shape: WaveShape, header: BatchHeader, stage: int, part: int) -> None:
        self._shape, self._header = shape, header
        self._topology: Topology = shape.topology
        self._stage, self._part = stage, part
        attempt = header.attempt
        # The same for every try at this attempt: a retried task sends its tuples where it did.
        self._turn = attempt.transaction_id + attempt.attempt_id
        self._inbox: dict[int, list[Frame]] = {}
        self._onward: dict[tuple[int, int], BatchInput] = {}
        self._staged: dict[int, bytes] = {}
        self._executed = 0

    def run(self, given: BatchInput) -> None:
        """Run what has something to do in this phase."""
        for frame in given.frames:
            self._inbox.setdefault(frame.target, []).append(frame)
        for task in self._shape.tasks_at(self._stage, self._part):
            component = self._topology.component_of[task]
            if component == self._header.spout_id:
                if not self._header.commit:
                    self._emit(task)
            elif not self._header.commit or component in self._header.late:
                self._run_bolt(task, component, given.staged.get(task))

    def rows(self) -> Iterator[Row]:
        """Return what goes to later parts, to the commit phase, and to the driver."""
        for (stage, part), something in self._onward.items():
            yield Row(stage, part, pack(something))
        if self._stage == 0 and not self._header.commit:
            yield from self._visits()
        late = self._header.late
        here = self._shape.stages[self._stage].components
        if not self._header.commit and not late.isdisjoint(here):
            # Also without a half-done bolt: in the commit phase every part must be visited.
            yield Row(self._stage, self._part, pack(BatchInput(staged=self._staged)))
        yield Row(DRIVER, self._executed, b"")

    def _visits(self) -> Iterator[Row]:
        """Return this part's share of the rows by which later parts run though nothing comes."""
        nothing = pack(BatchInput())
        first, *later = self._shape.stages
        for number, stage in enumerate(later, 1):
            for part in range(self._part, stage.parts, first.parts):
                yield Row(number, part, nothing)

    def _emit(self, task: int) -> None:
        component = self._header.spout_id
        spout = unpack(self._header.components[component])
        context = self._topology.context(task)
        conf = self._conf(component)
        outlets, collector = self._way_out(task, component)
        faults.point("processing", txid=self._header.attempt.txid, partition=self._part)
        emitter = spout.get_emitter(conf, context)
        try:
            _emit_share(spout, emitter, self._header, context.this_task_index,
                        len(context.tasks[component]), collector)  # fmt: skip
        finally:
            emitter.close()
        self._send(task, outlets)

    def _run_bolt(self, task: int, component: str, staged: bytes | None) -> None:
        header = self._header
        # In one order, however they came: a task that is run again emits the same, to the same.
        frames = sorted(self._inbox.pop(task, []), key=lambda f: (f.source, f.stream))
        finishes = header.commit or component not in header.late
        if not frames and not finishes and staged is None:
            return
        outlets, collector = self._way_out(task, component)
        context = self._context(task)
        if staged is None:
            bolt = unpack(header.components[component])
            _prepare(bolt, self._conf(component), context, collector, header.attempt)
        else:
            with restoring(collector, context):
                bolt = unpack(staged)
        self._execute(bolt, frames, collector)
        if finishes:
            faults.point("write.before", txid=header.attempt.txid, component=component)
            if not isinstance(bolt, BasicBolt):
                bolt.finish_batch()
            faults.point("write.after", txid=header.attempt.txid, component=component)
        else:
            self._staged[task] = _half_done(bolt, component)
        self._send(task, outlets)

    def _execute(self, bolt: Any, frames: Sequence[Frame], collector: BatchCollector) -> None:
        intake = Intake(frames)
        basic = isinstance(bolt, BasicBolt)
        execute = bolt.execute
        for frame in frames:
            source = self._topology.component_of[frame.source]
            fields: Fields = self._topology.fields[source][frame.stream]
            origin = Origin(source, frame.stream, frame.source, fields, intake, intake.done)
            for index, values in enumerate(frame.values):
                if basic:
                    execute(Tuple(values, origin, index), collector)
                else:
                    execute(Tuple(values, origin, index))
            self._executed += len(frame)

    def _way_out(self, task: int, component: str) -> tuple[dict[str, Outlet], BatchCollector]:
        place = self._shape.places[task]
        near = nearby(self._shape, place)
        outlets = make_outlets(self._topology, task, self._turn, near)
        collector = BatchCollector(component, self._header.attempt)
        collector._outlets = outlets
        collector._report = lambda error: log.warning("%s: %s", component, described(error))
        return outlets, collector

    def _send(self, task: int, outlets: Mapping[str, Outlet]) -> None:
        source: Place = self._shape.places[task]
        for frame in seal(task, outlets.values(), Anchors(None), _NO_IDS).frames:
            target = self._shape.places[frame.target]
            assert self._shape.is_ahead(source, target), "a batch has no way back"
            if target.stage == self._stage:
                self._inbox.setdefault(frame.target, []).append(frame)
            else:
                where = (target.stage, target.part)
                self._onward.setdefault(where, BatchInput()).frames.append(frame)

    def _conf(self, component: str) -> dict[str, Any]:
        return {**self._header.conf, **self._topology.components[component].configuration}

    def _context(self, task: int) -> BatchContext:
        context = BatchContext.of(self._topology.context(task))
        context.resolved = dict(self._header.resolved)
        return context


def _prepare(
    bolt: Any, conf: Mapping[str, Any], context: BatchContext, collector: Any, attempt: Any
) -> None:
    if isinstance(bolt, BasicBolt):
        bolt.prepare(conf, context)
    else:
        bolt.prepare(conf, context, collector, attempt)


def _half_done(bolt: Any, component: str) -> bytes:
    try:
        return pack(bolt)
    except Exception:  # this way is slower, and able to pickle functions and classes by value
        return require_picklable(bolt, f"bolt {component!r} between the phases")


def _emit_share(
    spout: Any, emitter: Any, header: BatchHeader, index: int, tasks: int, collector: BatchCollector
) -> None:
    """Emit one task's share of a batch: all of its metadata, or its partitions."""
    attempt, metadata = header.attempt, header.metadata
    if isinstance(spout, TransactionalSpout):
        emitter.emit_batch(attempt, metadata, collector)
        return
    for partition in range(index, len(metadata), tasks):
        last, pinned = metadata[partition]
        if pinned is not None:
            emit_partition(spout, emitter, attempt, partition, last, pinned, collector)


def emit_partition(
    spout: Any,
    emitter: Any,
    attempt: TransactionAttempt,
    partition: int,
    last: Any,
    pinned: Any,
    collector: BatchCollector,
) -> None:
    """Emit one partition's share of a batch; FailedException if it is not what was pinned."""
    opaque = isinstance(spout, OpaquePartitionedTransactionalSpout)
    if not opaque or hasattr(emitter, "next_metadata"):
        emitter.emit_partition_batch(attempt, collector, partition, pinned)
        return
    given = emitter.emit_partition_batch(attempt, collector, partition, last)
    # Compared as it was stored: a tuple has become a list.
    if json.loads(json.dumps(given)) != pinned:
        raise FailedException(
            f"partition {partition} gave {shown(given)} after {shown(last)} where {shown(pinned)} "
            "was pinned"
        )
