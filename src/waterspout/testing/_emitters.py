"""`check_emitter`: whether a transactional spout keeps what its contract promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

from waterspout._config import Config
from waterspout._safe_repr import shown
from waterspout.errors import TopologyError
from waterspout.spouts._base import BatchPlanner, SpoutContext
from waterspout.spouts._emitters import EmittedSpout
from waterspout.topology._pickling import require_picklable
from waterspout.topology._ports import Port
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._bolts import RowByRowCollector
from waterspout.transactional._builder import TransactionalTopology, TransactionalTopologyBuilder
from waterspout.transactional._runtime import emit_partition
from waterspout.transactional._spouts import (
    AnyTransactionalSpout,
    TransactionalSpout,
    emitter_of,
)
from waterspout.waves.frames import unpack
from waterspout.waves.outlets import make_outlets

__all__ = ["check_emitter"]

_SPOUT = "spout"

Span = Callable[[Any], tuple[Any, Any]]


def check_emitter(
    spout: AnyTransactionalSpout,
    *,
    batches: int = 5,
    tasks: int = 2,
    config: Config | None = None,
    span: Span | None = None,
) -> list[list[tuple[Any, ...]]]:
    """Plan some batches and emit each several times; return their rows, without the attempt.

    A batch must be a pure function of its metadata. So each is emitted twice, under two attempts,
    and once more by a copy of the spout that was pickled, as the executors get it: the same tuples,
    in the same order. Metadata must be JSON and must move on. Raises an AssertionError that says
    which batch and partition (or task) differs, and how. (An opaque emitter in Storm's form is
    asked once for a batch, and may give something else when it is asked again.)

    Args:
        spout: Any of the three kinds, with a source that has some data.
        batches: How many to plan at most; fewer if the source has no more.
        tasks: The spout's parallelism. A `TransactionalSpout` must emit the same tuples in all
            with one task as with these.
        config: The options that coordinator and emitters get.
        span: From a partition's metadata (or, of a `TransactionalSpout`, a batch's) to where it
            begins and ends; each must then begin where the one before it ended. The default is
            the spout's own method `span`, if it has one.

    >>> from waterspout.transactional import MemoryTransactionalSpout
    >>> check_emitter(MemoryTransactionalSpout([["a", "b", "c"], ["d"]], "word", 2))
    [[('a',), ('b',), ('d',)], [('c',)]]
    """
    topology = _alone(spout, tasks)
    check = _Check(spout, topology, config or Config(), span or getattr(spout, "span", None))
    found: list[list[tuple[Any, ...]]] = []
    previous: Any = None
    with closing(check.planner()) as planner:
        for txid in range(1, batches + 1):
            if not _no_error(lambda: planner.is_ready(previous), txid):  # noqa: B023
                break
            metadata = _no_error(lambda: planner.plan(txid, previous), txid)  # noqa: B023
            found.append(check.batch(txid, metadata, previous))
            planner.succeeded(txid, metadata)
            previous = metadata
    return found


def _alone(spout: Any, tasks: int) -> TransactionalTopology:
    return TransactionalTopologyBuilder("checked", _SPOUT, spout, tasks).build_topology()


def _no_error(ask: Callable[[], Any], txid: int) -> Any:
    try:
        return ask()
    except TopologyError as error:
        raise AssertionError(f"batch {txid}: {error}") from error


class _Check:
    """A spout, a copy of it, and what is compared."""

    def __init__(
        self, spout: Any, topology: TransactionalTopology, config: Config, span: Span | None
    ) -> None:
        self._spout = spout
        self._copy = unpack(require_picklable(spout, "the spout"))
        self._topology = topology
        self._one = _alone(spout, 1)
        self._config = config
        self._conf = config.to_dict()
        self._span = span
        self._is_whole = isinstance(spout, TransactionalSpout)
        self._planned = EmittedSpout.of(topology)

    def planner(self) -> BatchPlanner:
        """Return who plans the batches."""
        return self._planned.open(
            SpoutContext(conf=self._config, spout_id=_SPOUT, folder=None, known={}, current=1)
        )

    def batch(self, txid: int, metadata: Any, previous: Any) -> list[tuple[Any, ...]]:
        """Emit a batch again and again; return its rows."""
        first, second = TransactionAttempt(txid, 0), TransactionAttempt(txid, 1)
        shares = self._emit(self._spout, first, metadata)
        for how, spout, attempt in [
            ("emitted again", self._spout, second),
            ("emitted by a pickled copy of the spout", self._copy, first),
        ]:
            again = self._emit(spout, attempt, metadata)
            for where, rows in shares.items():
                _compare(f"batch {txid}, {where}, {how}", rows, again[where])
        if self._is_whole:
            self._compare_with_one_task(first, metadata, shares)
        self._check_chain(txid, metadata, previous)
        return [values for rows in shares.values() for _, values in rows]

    def _emit(
        self, spout: Any, attempt: TransactionAttempt, metadata: Any
    ) -> dict[str, list[tuple[str, tuple[Any, ...]]]]:
        """Return what each task, or each partition, emits."""
        if self._is_whole:
            return self._emit_whole(spout, attempt, metadata, self._topology)
        task = self._topology.tasks[_SPOUT][0]
        shares = {}
        with closing(emitter_of(spout, self._conf, self._topology.context(task))) as emitter:
            taken = self._planned.taken(metadata)
            for partition, entry in enumerate(metadata):
                collector = _Recording(self._topology, task, attempt)
                where = f"partition {partition}"
                if entry[1] is not None:
                    given = taken.get(partition)
                    emit_partition(spout, emitter, attempt, partition, entry[1], given, collector)
                shares[where] = collector.rows
        return shares

    def _emit_whole(
        self,
        spout: Any,
        attempt: TransactionAttempt,
        metadata: Any,
        topology: TransactionalTopology,
    ) -> dict[str, list[tuple[str, tuple[Any, ...]]]]:
        shares = {}
        for index, task in enumerate(topology.tasks[_SPOUT]):
            collector = _Recording(topology, task, attempt)
            with closing(emitter_of(spout, self._conf, topology.context(task))) as emitter:
                emitter.emit_batch(attempt, metadata, collector)
            shares[f"task {index}"] = collector.rows
        return shares

    def _compare_with_one_task(
        self, attempt: TransactionAttempt, metadata: Any, shares: dict[str, Any]
    ) -> None:
        (alone,) = self._emit_whole(self._spout, attempt, metadata, self._one).values()
        many = [row for rows in shares.values() for row in rows]
        if Counter(map(repr, alone)) != Counter(map(repr, many)):
            raise AssertionError(
                f"batch {attempt.txid}: {len(shares)} tasks emit {len(many)} tuples, a single one "
                f"{len(alone)}, and they are not the same; each task must emit its share, by "
                "context.this_task_index"
            )

    def _check_chain(self, txid: int, metadata: Any, previous: Any) -> None:
        if self._is_whole:
            if previous is not None:
                self._check_follows(f"batch {txid}", previous, metadata)
            return
        for partition, (last, pinned, *_) in enumerate(metadata):
            if last is not None and pinned is not None:
                self._check_follows(f"batch {txid}, partition {partition}", last, pinned)

    def _check_follows(self, where: str, last: Any, metadata: Any) -> None:
        if last == metadata:
            raise AssertionError(
                f"{where}: its metadata {shown(metadata)} is that of the batch before; it must go "
                "on where that one ended"
            )
        if self._span is not None:
            begin, end = self._span(metadata)[0], self._span(last)[1]
            if begin != end:
                raise AssertionError(
                    f"{where}: it begins at {shown(begin)}, but the batch before ended at "
                    f"{shown(end)}"
                )


class _Recording(RowByRowCollector):
    """Checks what is emitted, as a run would, and keeps it: stream, and values but the attempt."""

    __slots__ = ("rows",)

    def __init__(
        self, topology: TransactionalTopology, task: int, attempt: TransactionAttempt
    ) -> None:
        super().__init__(Port(_SPOUT, make_outlets(topology, task, 0)), attempt)
        self.rows: list[tuple[str, tuple[Any, ...]]] = []

    def emit(self, values: Any, stream: str = "default") -> tuple[int, ...]:
        fitting = self.port.outlet(stream).fit(values)
        targets = super().emit(fitting, stream)
        self.rows.append((stream, fitting[1:]))
        return targets

    def emit_direct(self, task: int, values: Any, stream: str = "default") -> None:
        # Nobody takes the stream here, so there is no task to check.
        fitting = self.port.direct_outlet(stream).fit(values)
        self.rows.append((f"{stream} to task {task}", fitting[1:]))


def _compare(what: str, rows: list[Any], again: list[Any]) -> None:
    for index, (one, other) in enumerate(zip(rows, again, strict=False)):
        if one != other and repr(one) != repr(other):
            raise AssertionError(
                f"{what}: tuple {index} was {shown(one[1])} on stream {one[0]!r} and is "
                f"{shown(other[1])} on stream {other[0]!r}"
            )
    if len(rows) != len(again):
        raise AssertionError(f"{what}: there were {len(rows)} tuples and there are {len(again)}")
