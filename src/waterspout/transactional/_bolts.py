"""`BatchBolt` and `Committer`, which users write for transactional topologies; their collector."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from waterspout._tuples import Tuple
from waterspout.errors import EmitError, StateUseError, TopologyError
from waterspout.topology._collector import Emitter, restored_context
from waterspout.topology._column_batches import ColumnBatch
from waterspout.topology._component import Component
from waterspout.topology._context import TopologyContext
from waterspout.topology._ports import UNANCHORED, Outlet, Port
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._columns import batch_of, rows_of_attempt, taken_columns
from waterspout.transactional._states import AttemptState
from waterspout.waves.frames import pack, unpack

__all__ = [
    "BatchBolt",
    "BatchCollector",
    "BatchContext",
    "Committer",
    "RowByRowCollector",
    "TakenTuples",
]


class BatchCollector(Emitter):
    """The way out of batch bolts and emitters, for one task and attempt.

    Tuples carry their attempt, as their first value, instead of anchors.
    """

    __slots__ = ("_attempt", "_puts")

    def __init__(self, port: Port, attempt: TransactionAttempt) -> None:
        super().__init__(port)
        self._attempt = attempt
        self._puts: dict[str, Callable[[Sequence[Any]], tuple[int, ...]]] = {}
        """How a tuple gets into each stream; made when it is used for the first time."""

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple `[attempt, ...]`; return the tasks that get it."""
        try:
            put = self._puts[stream]
        except KeyError:
            outlet = self.port.outlet(stream)
            put = self._puts[stream] = outlet.unanchored(self._attempt, self._fitting)
        return put(values)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        """Emit a tuple of a direct stream to one task."""
        outlet, fitting = self.port.directed(task, values, stream)
        outlet.send(task, self._fitting(outlet, fitting), UNANCHORED)

    def emit_batch(self, columns: ColumnBatch, stream: str = "default") -> None:
        """Emit rows, by column: a RecordBatch, a dict of arrays by field, or a list of arrays.

        They are those of all fields but the first: each row goes with the attempt. A column of that
        name in a batch that `execute_batch` got is left out.
        """
        outlet = self.port.outlet(stream)
        batch = batch_of(columns, outlet.names, stream)
        outlet.send_batch(batch, np.full(batch.num_rows, UNANCHORED))

    def _fitting(self, outlet: Outlet, values: Any) -> tuple[Any, ...]:
        """Return values as a tuple of a stream, if it carries this attempt."""
        fitting = outlet.fit(values)
        if fitting[0] != self._attempt:
            raise EmitError(
                f"{self.port.component!r} emitted {fitting[0]!r} as the first value on stream "
                f"{outlet.stream!r}; it must be the transaction attempt {self._attempt} (the id "
                "that prepare() got, or the first field of the input)"
            )
        return fitting


class RowByRowCollector(BatchCollector):
    """Gets what is emitted by column as one tuple after the other."""

    __slots__ = ()

    def emit_batch(self, columns: ColumnBatch, stream: str = "default") -> None:
        batch = batch_of(columns, self.port.outlet(stream).names, stream)
        for row in rows_of_attempt(batch, self._attempt):
            self.emit(row, stream)


class TakenTuples(BatchCollector):
    """Takes what an emitter emits when it is asked, and emits it later, under the real attempt."""

    __slots__ = ("_asked", "_keeps", "_rows", "count")

    def __init__(self, asked: TransactionAttempt, *, keeps: bool = True) -> None:
        super().__init__(Port("", {}), asked)
        self._asked = asked
        self._keeps = keeps
        self.count = 0
        """Tuples emitted so far."""
        self._rows: list[tuple[str, int | None, Any]] = []

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        self._take(stream, None, values)
        return ()

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        self._take(stream, task, values)

    def emit_batch(self, columns: ColumnBatch, stream: str = "default") -> None:
        # Whether they fit is seen when they are emitted: here, nobody knows the stream's fields.
        taken = taken_columns(columns, stream)
        self.count += len(taken[0]) if isinstance(taken, list) else taken.num_rows
        if self._keeps:
            self._rows.append((stream, None, taken))

    def _take(self, stream: str, task: int | None, values: Sequence[Any]) -> None:
        self.count += 1
        if self._keeps:
            self._rows.append((stream, task, tuple(values)))

    def packed(self) -> bytes:
        """Return what was taken in the form in which it travels to the executors."""
        return pack((self._asked, self._rows))

    @staticmethod
    def emit_packed(packed: bytes, attempt: TransactionAttempt, collector: BatchCollector) -> None:
        """Emit what was taken; the collector checks it, as if the emitter emitted it now."""
        asked, rows = unpack(packed)
        for stream, task, values in rows:
            if isinstance(values, pa.RecordBatch | list):
                collector.emit_batch(values, stream)
                continue
            row = (attempt, *values[1:]) if values[:1] == (asked,) else values
            if task is None:
                collector.emit(row, stream)
            else:
                collector.emit_direct(task, row, stream)


@dataclass(frozen=True)
class BatchContext(TopologyContext):
    """What a task knows about its topology, and what a committer may have to know.

    `resolved` is there in the commit phase: for each txid that more than one attempt had begun to
    commit, the attempt that did. A record written by another attempt of such a txid is void; the
    maps of `waterspout.state` take it as an argument of `begin_commit`. The states that were
    declared for the bolt have it already.
    """

    resolved: Mapping[int, int] = field(default_factory=dict)
    states: Mapping[str, AttemptState] = field(default_factory=dict)

    def state(self, name: str) -> AttemptState:
        """Return a state that was declared for this bolt, as this attempt has it.

        May be asked for at any time, and kept. Changes are written when `finish_batch` of the
        commit phase has returned, all or nothing, and only if this attempt may still write.
        """
        if name not in self.states:
            known = ", ".join(map(repr, self.states)) or "none"
            raise StateUseError(
                f"bolt {self.this_component_id!r} has no state {name!r}; it has {known}. Declare "
                f"it where the bolt is set: .with_state({name!r}, SQLiteState.opaque(...))"
            )
        return self.states[name]

    def __reduce__(self) -> tuple[object, ...]:
        return (restored_context, ())


class BatchBolt(Component, ABC):
    """Processes one batch: there is one object for each task and attempt, dropped afterwards.

    `FailedException`, from any method, replays the batch and those after it. Between the phases
    the object may be pickled: connections are to be opened where they are used.
    """

    deterministic: ClassVar[bool] = True
    """False if it may emit or write something else for the same tuples: only opaque states are then
    exactly-once, behind it too."""

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: BatchContext,
        collector: BatchCollector,
        id: TransactionAttempt,
    ) -> None:
        """Get ready for the batch `id`; called on an executor."""
        self.collector = collector
        self.id = id

    @property
    def takes_batches(self) -> bool:
        """Whether it gets its tuples by column."""
        return type(self).execute_batch is not BatchBolt.execute_batch

    def execute(self, tuple: Tuple) -> None:
        """Process one tuple, in either phase; its first field is the attempt."""
        raise TopologyError(f"{type(self).__name__} has no execute(tuple)")

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Process many tuples of one stream at once, given by column; an alternative to `execute`.

        The columns are the stream's fields. The first one, the attempt's, is empty: it is `self.id`
        in each row. The metadata of the schema says from which `component` and `stream` they come.
        """
        raise TopologyError(f"{type(self).__name__} has no execute_batch(batch)")

    def finish_batch(self) -> None:
        """All tuples of the batch were executed here; called once, tuples or not.

        In a committer, and behind one, it runs in the commit phase: batches in txid order, one at
        a time. It is called again if its worker is lost. What it changes in its states
        (`context.state(name)`) counts once. If it writes somewhere else: store the txid with what
        you write, and skip what this txid has written already; an attempt that was given up may
        still run somewhere, so do not let it write over a later one.
        """


class Committer:
    """Marks a `BatchBolt` whose `finish_batch` belongs to the commit phase."""
