"""The two phases of a batch, and the life of a bolt: one attempt at one batch. No Spark in here.

Processing: emitters emit, bolts execute; bolts in front of all committers finish, the others stay
half-done and are pickled. Commit: those are taken up again, and finish in order.

A `FailedException` is no error of the job: the shard tells all later shards, which then do nothing,
and the driver, which replays the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from waterspout import faults
from waterspout._config import Config
from waterspout._safe_repr import described
from waterspout._tuples import Tuple
from waterspout.acking.xor import generator
from waterspout.errors import FailedException
from waterspout.topology._collector import restoring
from waterspout.topology._component import BasicBolt
from waterspout.topology._pickling import require_picklable
from waterspout.topology._ports import Port
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._away import away_error, is_away
from waterspout.transactional._bolts import (
    BatchBolt,
    BatchCollector,
    BatchContext,
    TakenTuples,
)
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._columns import columns_of, rows_of_attempt
from waterspout.transactional._ledger import is_skipped
from waterspout.transactional._spouts import (
    OpaquePartitionedTransactionalSpout,
    TransactionalSpout,
    emitter_of,
)
from waterspout.transactional._states import BoltStateSpec, TaskStates, begin_commit
from waterspout.waves.bolts import Worker
from waterspout.waves.counting import TaskCounts, input_of
from waterspout.waves.frames import Frame, pack, unpack
from waterspout.waves.intake import Intake
from waterspout.waves.memory import TaskState
from waterspout.waves.outlets import Anchors, seal
from waterspout.waves.reuse import ALONE, references
from waterspout.waves.shape import WaveShape, collapsed, spread
from waterspout.waves.shards import (
    BUSY,
    COMPUTED,
    COUNTED,
    DRIVER,
    FAILED,
    LifeCycle,
    Row,
    Shard,
    ShardHeader,
    ShardInput,
    run_stage,
)

__all__ = [
    "BatchHeader",
    "PhasePlan",
    "Phases",
    "busy_s",
    "commit_stages",
    "counted",
    "emit_partition",
    "executed",
    "extra_here_s",
    "first_rows",
    "raise_failed",
    "run_here",
    "written",
]

_NO_IDS = generator((0,))  # no tuple of a batch is anchored: none is drawn

# A batch whose bolts work less than this is done sooner by one task than by several with a shuffle.
_COLLAPSE_S = 0.12


@dataclass(frozen=True)
class BatchHeader(ShardHeader):
    """What all shards of a phase must know."""

    attempt: TransactionAttempt
    commit: bool
    spout_id: str
    late: frozenset[str]
    metadata: Any = None
    resolved: Mapping[int, int] = field(default_factory=dict)
    states: Mapping[str, Sequence[BoltStateSpec]] = field(default_factory=dict)
    """By bolt."""

    writer: Any = None
    """Who commits, for the heads of the states; in the commit phase."""

    skipped: bool = False
    """Whether the spout gives nothing to the batch, because a person has decided so."""

    varying: frozenset[str] = frozenset()
    """Bolts that may do something else when they do it again, where that could harm a state."""

    def life_cycle(self, shard: Shard, worker: Worker) -> LifeCycle:
        return _PerAttempt(shard, self, worker.tries_before)


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One phase of one attempt: which stages are run, in which shape."""

    shape: WaveShape
    header: BatchHeader
    stages: Sequence[int]

    @property
    def width(self) -> int:
        """How many tasks work at the same time."""
        return max(stage.shards for stage in self.shape.stages)


class Phases:
    """Makes the phases of a topology; a batch is spread over workers unless batches are small."""

    def __init__(
        self,
        topology: TransactionalTopology,
        conf: Config,
        workers: int,
        widths: Mapping[str, int] | None = None,
    ) -> None:
        self._spout_id = topology.spout_id
        self._late = topology.late
        outline = topology.outline()
        self._collapsed, self._spread = collapsed(outline), spread(outline, workers, widths)
        self._workers = workers
        self._collapse_tuples = conf.wave_collapse_tuples
        self._largest: int | None = None
        self._longest_s: float | None = None
        self._conf = conf.to_dict()
        self._components = {
            spec.id: require_picklable(spec.component, f"component {spec.id!r}")
            for spec in topology.components.values()
        }
        self._states: dict[str, list[BoltStateSpec]] = {}
        for state in topology.states.values():
            self._states.setdefault(state.component, []).append(state)
        self._varying = topology.varying if topology.states else frozenset()

    def processing(self, attempt: TransactionAttempt, metadata: Mapping[str, Any]) -> PhasePlan:
        shape = self._collapsed if self._is_small else self._spread
        skipped = is_skipped(metadata, self._spout_id)
        header = BatchHeader(
            conf=self._conf,
            components=self._components,
            attempt=attempt,
            commit=False,
            spout_id=self._spout_id,
            late=self._late,
            metadata=[] if skipped else metadata[self._spout_id],
            skipped=skipped,
            states=self._states,
            varying=self._varying,
        )
        return PhasePlan(shape, header, range(len(shape.stages)))

    @property
    def _is_small(self) -> bool:
        if self._largest is None or self._collapse_tuples == 0:
            return False
        is_short = self._longest_s is not None and self._longest_s <= _COLLAPSE_S
        return is_short or self._largest <= self._collapse_tuples

    def processed(self, tuples: int, busy_s: float | None = None, tasks: int = 1) -> None:
        """Learn from a processing phase how large batches are now, and how long they take.

        `busy_s` is how long all shards have worked, one after the other; None: that is not known.
        `tasks` is how many have worked at the same time, those of other batches among them: where
        they are more than there are workers, each takes as much longer.
        """
        self._largest = max(tuples, (self._largest or 0) * 3 // 4)
        if busy_s is not None:
            busy_s /= max(1, tasks / self._workers)
        self._longest_s = None if busy_s is None else max(busy_s, (self._longest_s or 0) * 3 / 4)

    def commit(self, processing: PhasePlan, resolved: Mapping[int, int], writer: Any) -> PhasePlan:
        """Return the commit phase that follows on a processing phase, in the same shape."""
        header = replace(
            processing.header, commit=True, metadata=None, resolved=resolved, writer=writer
        )
        return PhasePlan(processing.shape, header, commit_stages(processing.shape, self._late))


def first_rows(shape: WaveShape, spout_id: str, taken: Mapping[int, bytes]) -> list[Row]:
    """Return a batch's first rows: one for each shard of the first stage, so that each runs apart.

    These shards in turn send one to every shard of the later stages, which then runs, tuples or
    not. What the driver has taken of the spout's partitions goes to the shards that emit it.
    """
    inputs = [ShardInput() for _ in range(shape.stages[0].shards)]
    tasks = shape.topology.tasks[spout_id]
    for partition, tuples in taken.items():
        shard = shape.slots[tasks[partition % len(tasks)]].shard
        inputs[shard].taken[partition] = tuples
    return [given.row(0, shard) for shard, given in enumerate(inputs)]


def commit_stages(shape: WaveShape, late: frozenset[str]) -> list[int]:
    """Return the stages that have something to do in the commit phase."""
    return [
        number for number, stage in enumerate(shape.stages) if not late.isdisjoint(stage.components)
    ]


def run_here(phase: PhasePlan, rows: Iterable[Row], worker: Worker) -> list[Row]:
    """Lead rows through the stages of a phase in this process."""
    for stage in phase.stages:
        rows = list(run_stage(phase.shape, phase.header, stage, rows, worker))
    return list(rows)


def executed(rows: Iterable[Row]) -> int:
    """Return how many tuples the shards of a phase have executed."""
    return sum(row.count for row in rows if row.stage == DRIVER)


def busy_s(rows: Iterable[Row]) -> float:
    """Return how long the shards of a phase have worked, added up."""
    return sum(row.count for row in rows if row.stage == BUSY) / 1e6


def extra_here_s(rows: Sequence[Row]) -> float:
    """Return what it takes the driver to be where the shards of a commit phase were.

    One after the other instead of side by side, and the driver's other threads wait while they
    compute.
    """
    busy = [row.count for row in rows if row.stage == BUSY]
    computed = sum(row.count for row in rows if row.stage == COMPUTED)
    return (sum(busy) - max(busy, default=0) + computed) / 1e6


def written(rows: Iterable[Row]) -> Iterator[tuple[str, Any]]:
    """Return what the states of a phase's bolts tell of what was written to them, by name."""
    for row in rows:
        if row.stage == DRIVER and row.data:
            yield from unpack(row.data)


def counted(rows: Iterable[Row]) -> tuple[TaskCounts, ...]:
    """Return what the tasks have done, of the processing phase as well if its rows are here."""
    packed = [row.data for row in rows if row.stage == COUNTED]
    return tuple(counts for each in packed for counts in unpack(each))


def raise_failed(rows: Iterable[Row]) -> None:
    """Raise what a shard gave as the reason to replay the batch, if one did."""
    for row in rows:
        if row.stage == FAILED:
            raise FailedException(row.data.decode("utf-8"))


class _PerAttempt(LifeCycle):
    """A bolt is new for each task and attempt; between the phases it may be pickled."""

    def __init__(self, shard: Shard, header: BatchHeader, tries_before: int) -> None:
        self._began, self._computed_before = time.monotonic(), time.thread_time()
        self._shard, self._header = shard, header
        self._tries_before = tries_before
        attempt = header.attempt
        # The same for every try at this attempt: a retried task sends its tuples where it did.
        self._turn = attempt.transaction_id + attempt.attempt_id
        self._half_done: dict[int, TaskState] = {}
        self._executed = 0
        self._counts: list[TaskCounts] = []
        self._written: list[tuple[str, Any]] = []

    def run_task(self, task: int, frames: list[Frame], given: ShardInput) -> None:
        header = self._header
        component = self._shard.topology.component_of[task]
        if component == header.spout_id:
            if not header.commit:
                self._emit(task, given.taken)
        elif not header.commit or component in header.late:
            if header.commit and self._tries_before and component in header.varying:
                # The first try may have written, and this one would write something else beside it.
                raise FailedException(
                    f"bolt {component!r} is declared not deterministic, and its worker was lost in "
                    "the commit phase: a new attempt takes back what it may have written"
                )
            self._run_bolt(task, component, frames, given.states.get(task))

    def rows(self) -> Iterator[Row]:
        shard, header = self._shard, self._header
        if shard.stage == 0 and not header.commit:
            yield from self._visits()
        here = shard.shape.stages[shard.stage].components
        if not header.commit and not header.late.isdisjoint(here):
            # Also without a half-done bolt: in the commit phase every shard must be visited.
            yield ShardInput(states=self._half_done).row(shard.stage, shard.number)
        yield Row(DRIVER, 0, self._executed, pack(self._written) if self._written else b"")
        told = [counts for counts in self._counts if not counts.is_empty]
        if told:
            yield Row(COUNTED, 0, 0, pack(told))
        yield Row(BUSY, 0, int((time.monotonic() - self._began) * 1e6), b"")
        if header.commit:
            computed = time.thread_time() - self._computed_before
            yield Row(COMPUTED, 0, int(computed * 1e6), b"")

    def _visits(self) -> Iterator[Row]:
        """Return this shard's share of the rows by which later shards run though nothing comes."""
        nothing = ShardInput()
        first, *later = self._shard.shape.stages
        for number, stage in enumerate(later, 1):
            for shard in range(self._shard.number, stage.shards, first.shards):
                yield nothing.row(number, shard)

    def _emit(self, task: int, taken: Mapping[int, bytes]) -> None:
        component = self._header.spout_id
        spout = self._shard.make(component)
        context = self._shard.topology.context(task)
        collector = self._collector(task, component)
        faults.point("processing", txid=self._header.attempt.txid, partition=self._shard.number)
        attempt, metadata = self._header.attempt, self._header.metadata
        with closing(emitter_of(spout, self._shard.conf_of(component), context)) as emitter:
            if isinstance(spout, TransactionalSpout):
                if not self._header.skipped:
                    emitter.emit_batch(attempt, metadata, collector)
                mine = range(0)
            else:
                mine = range(context.this_task_index, len(metadata), len(context.tasks[component]))
            for partition in mine:
                pinned = metadata[partition][1]
                if pinned is not None:
                    given = taken.get(partition)
                    emit_partition(spout, emitter, attempt, partition, pinned, given, collector)
        self._send(collector.port, TaskCounts(component, task))

    def _run_bolt(
        self, task: int, component: str, frames: Sequence[Frame], half_done: TaskState | None
    ) -> None:
        header = self._header
        finishes = header.commit or component not in header.late
        if not frames and not finishes and half_done is None:
            return
        collector = self._collector(task, component)
        states = self._task_states(task, component)
        context = BatchContext(
            **vars(self._shard.topology.context(task)),
            resolved=header.resolved,
            states=states.by_name,
        )
        with closing(states):
            bolt = self._bolt(component, collector, context, states, half_done)
            counts = TaskCounts(component, task)
            self._execute(bolt, frames, collector, counts)
            if finishes:
                began = time.monotonic()
                self._finish(bolt, component, states)
                counts.finished, counts.finish_s = 1, time.monotonic() - began
            else:
                self._half_done[task] = self._pickled(bolt, component, states)
        self._send(collector.port, counts)

    def _bolt(
        self,
        component: str,
        collector: BatchCollector,
        context: BatchContext,
        states: TaskStates,
        half_done: TaskState | None,
    ) -> Any:
        """Return the bolt of a task: a new one, or the one that the processing phase has left."""
        if half_done is None:
            bolt = self._shard.make(component)
            conf = self._shard.conf_of(component)
            if isinstance(bolt, BasicBolt):
                bolt.prepare(conf, context)
            else:
                bolt.prepare(conf, context, collector, self._header.attempt)
            return bolt
        with restoring(collector, context):
            bolt, notes = unpack(half_done.data)
        states.take(notes)
        return bolt

    def _finish(self, bolt: Any, component: str, states: TaskStates) -> None:
        txid = self._header.attempt.txid
        faults.point("write.before", txid=txid, component=component)
        if not isinstance(bolt, BasicBolt):
            bolt.finish_batch()
        self._written += states.write(txid)
        faults.point("write.after", txid=txid, component=component)

    def _pickled(self, bolt: Any, component: str, states: TaskStates) -> TaskState:
        """Return a half-done bolt, and what it has noted for its states, as it travels."""
        left = (bolt, states.notes())
        try:
            pickled = pack(left)
        except Exception:  # this way is slower, and able to pickle functions by value
            pickled = require_picklable(left, f"bolt {component!r} between the phases")
        return TaskState(str(self._header.attempt), pickled)

    def _task_states(self, task: int, component: str) -> TaskStates:
        """Return the states of a task; in the commit phase they can be opened."""
        header = self._header
        index = self._shard.topology.tasks[component].index(task)

        def opened(spec: BoltStateSpec) -> Any:
            state = spec.factory.make_state(Config.from_dict(header.conf), index, spec.partitions)
            if hasattr(state, "enroll"):
                state.enroll(header.writer, spec.name)
            begin_commit(state, header.attempt, header.resolved)
            return state

        specs = header.states.get(component, ())
        return TaskStates(specs, index, opened if header.commit else None)

    def _execute(
        self, bolt: Any, frames: Sequence[Frame], collector: BatchCollector, counts: TaskCounts
    ) -> None:
        intake = Intake(frames)
        port = collector.port
        execute = _with(bolt.execute, collector) if isinstance(bolt, BasicBolt) else bolt.execute
        by_column = isinstance(bolt, BatchBolt) and bolt.takes_batches
        for frame in frames:
            origin = self._shard.origin(frame, intake)
            began = time.monotonic()
            if by_column:
                bolt.execute_batch(columns_of(frame, origin))
            else:
                given = port.given = Tuple((), origin, 0)
                for index, values in enumerate(self._rows_of(frame)):
                    if references(given) == ALONE:
                        given.values, given._index = values, index
                    else:
                        given = port.given = Tuple(values, origin, index)
                    execute(given)
            self._executed += len(frame)
            each = input_of(counts.inputs, origin.component, origin.stream)
            each.executed += len(frame)
            each.execute_s += time.monotonic() - began
            # Counted when the batch has committed: its tuples are acked then, all of them.
            each.acked, each.process_s = each.executed, each.execute_s

    def _rows_of(self, frame: Frame) -> Iterator[tuple[Any, ...]]:
        if isinstance(frame.values, pa.RecordBatch):
            return rows_of_attempt(frame.values, self._header.attempt)
        return frame.each()

    def _collector(self, task: int, component: str) -> BatchCollector:
        port = Port(component, self._shard.outlets(task, self._turn))
        return BatchCollector(port, self._header.attempt)

    def _send(self, port: Port, counts: TaskCounts) -> None:
        sealed = seal(counts.task, port.outlets.values(), Anchors(None), _NO_IDS)
        counts.sent(sealed.emitted, sealed.transferred)
        self._counts.append(counts)
        behind = self._shard.send(counts.task, sealed.frames)
        assert not behind, "a batch has no way back"


def _with(execute: Callable[..., None], collector: BatchCollector) -> Callable[[Tuple], None]:
    """Return a basic bolt's way to be called, as it is for the others."""
    return lambda given: execute(given, collector)


def emit_partition(
    spout: Any,
    emitter: Any,
    attempt: TransactionAttempt,
    partition: int,
    pinned: Any,
    taken: bytes | None,
    collector: BatchCollector,
) -> None:
    """Emit one partition's share of a batch: what the driver has taken of it, if it has."""
    if taken is not None:
        TakenTuples.emit_packed(taken, attempt, collector)
        return
    try:
        emitter.emit_partition_batch(attempt, collector, partition, pinned)
    except FailedException:
        raise
    except Exception as error:
        # A file that is not seen here is lost, or never was on this machine.
        reached = isinstance(error, FileNotFoundError) or not is_away(error)
        if reached or not isinstance(spout, OpaquePartitionedTransactionalSpout):
            raise
        name = collector.port.component
        raise away_error(name, partition, described(error)) from error
