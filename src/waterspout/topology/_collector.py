"""Collectors: `emit`, `ack` and `fail` as components see them.

The hot path of a topology: everything here runs once for each tuple. So an emit only notes the
values and, as a number, what they are anchored to; ids are drawn and combined for a whole wave at
once when it is sealed (`waterspout.waves.outlets`). How values are taken and where they go is the
outlet's `put`, made for its grouping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from waterspout._safe_repr import described, shown
from waterspout._tuples import Tuple
from waterspout.errors import EmitError
from waterspout.topology._column_batches import ColumnBatch, RowPositions, as_indices
from waterspout.topology._context import TopologyContext
from waterspout.topology._ports import ACKED, FAILED, OPEN, UNANCHORED, Port

__all__ = [
    "BasicCollector",
    "ColumnCollector",
    "Emitter",
    "OutputCollector",
    "SpoutCollector",
    "restored_context",
    "restoring",
]

# What the collectors and contexts in a pickled bolt become while it is restored.
_restoring: list[tuple[Emitter, TopologyContext | None]] = []


@contextmanager
def restoring(collector: Emitter, context: TopologyContext | None = None) -> Iterator[None]:
    """Let every pickled collector (and batch context) that is read meanwhile become this one."""
    _restoring.append((collector, context))
    try:
        yield
    finally:
        _restoring.pop()


def restored_context() -> TopologyContext | None:
    """Return the context of the task whose bolt is being restored."""
    return _restoring[-1][1]


def _restored_collector() -> Emitter:
    return _restoring[-1][0]


class Emitter:
    """What all collectors have in common: a port, which is bound by whoever runs the task."""

    __slots__ = ("port",)

    def __init__(self, port: Port) -> None:
        self.port = port

    def __reduce__(self) -> tuple[object, ...]:
        # A bolt keeps its collector as an attribute, and travels; the collector does not.
        return (_restored_collector, ())

    def report_error(self, error: BaseException) -> None:
        """Show an error in the log and in `Run.errors` without failing anything."""
        self.port.report_error(error)


class OutputCollector(Emitter):
    """A bolt's way out. Lives as long as the bolt; each wave gives it a new port."""

    __slots__ = ()

    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Collection[Tuple] | None = None,
        stream: str = "default",
    ) -> tuple[int, ...]:
        """Emit a tuple, anchored to one tuple, to several, or to none; return its task ids."""
        port = self.port
        try:
            put = port.puts[stream]
        except KeyError:
            put = port.outlet(stream).put
        if anchors is port.given:
            return put(values, anchors._index)
        return put(values, UNANCHORED if anchors is None else port.anchor(anchors))

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Collection[Tuple] | None = None,
        stream: str = "default",
    ) -> None:
        """Emit a tuple of a direct stream to one task."""
        self.port.emit_direct(task, values, stream, self.port.anchor(anchors))

    def ack(self, tuple: Tuple) -> None:
        """Say that a tuple is done: once, and only for a tuple that this task got."""
        port = self.port
        if tuple is port.given:
            done, index = port.done, tuple._index
            if done[index] == OPEN:
                done[index] = ACKED
                return
        port.mark("ack", ACKED, tuple)

    def fail(self, tuple: Tuple) -> None:
        """Say that a tuple cannot be processed: its message fails at the spout."""
        self.port.fail(tuple)

    def reset_timeout(self, tuple: Tuple) -> None:
        """Let the time of this tuple's messages begin anew when the wave is over."""
        tuple._origin.intake.reset(tuple)


class BasicCollector(Emitter):
    """A basic bolt's way out: every emit is anchored to the tuple at hand."""

    __slots__ = ()

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple, anchored to the input; return its task ids."""
        port = self.port
        try:
            put = port.puts[stream]
        except KeyError:
            put = port.outlet(stream).put
        return put(values, port.current)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        """Emit a tuple of a direct stream to one task, anchored to the input."""
        self.port.emit_direct(task, values, stream, self.port.current)

    def reset_timeout(self, tuple: Tuple) -> None:
        """Let the time of this tuple's messages begin anew when the wave is over."""
        tuple._origin.intake.reset(tuple)


class ColumnCollector(Emitter):
    """The way out of `execute_batch`: rows by column, each anchored to a row of the batch at hand.

    When `execute_batch` returns, all rows that were not failed are acked.
    """

    __slots__ = ("_reasons", "base", "size")

    def __init__(self, port: Port, reasons: dict[int, str]) -> None:
        super().__init__(port)
        self._reasons = reasons
        self.base = self.size = 0
        """Where the batch at hand begins among the tuples of this wave, and how long it is."""

    def emit_batch(
        self,
        columns: ColumnBatch,
        parents: RowPositions | None = None,
        stream: str = "default",
    ) -> None:
        """Emit rows, by column: a RecordBatch, a dict of arrays by field, or a list of arrays.

        `parents` has, for each row, the position of the row of the batch that it is anchored to;
        -1: to none. It may be left out where each row of the batch gives one row, in order.
        """
        outlet = self.port.outlet(stream)
        batch = outlet.batch(columns)
        if parents is None:
            if batch.num_rows != self.size:
                raise EmitError(
                    f"emit_batch got {batch.num_rows} rows from a batch of {self.size}; say which "
                    "row each comes from: emit_batch(columns, parents=[0, 0, 1])"
                )
            anchors = np.arange(self.base, self.base + self.size)
        else:
            found = as_indices(parents, "parents", self.size, lowest=UNANCHORED)
            if len(found) != batch.num_rows:
                raise EmitError(
                    f"emit_batch got {batch.num_rows} rows and {len(found)} parents; there is one "
                    "for each row"
                )
            anchors = np.where(found == UNANCHORED, UNANCHORED, found + self.base)
        outlet.send_batch(batch, anchors)

    def fail_rows(
        self, indices: RowPositions, error: str | BaseException = "failed by the bolt"
    ) -> None:
        """Say that some rows of the batch at hand cannot be processed: their messages fail."""
        why = described(error) if isinstance(error, BaseException) else str(error)
        for index in as_indices(indices, "the rows to fail", self.size).tolist():
            self.port.done[self.base + index] = FAILED
            self._reasons[self.base + index] = why


class SpoutCollector(Emitter):
    """A spout's way out. A message id asks for tracking: `ack` or `fail` will follow."""

    __slots__ = ("_ack_at_once", "_clock", "emitted", "messages")

    def __init__(
        self,
        port: Port,
        ack_at_once: Callable[[Hashable], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(port)
        self._ack_at_once = ack_at_once
        self._clock = clock
        self.messages: list[tuple[Any, tuple[Any, ...], str, int | None, float]] = []
        """Of each tracked message since the last seal: id, values, stream, task if direct, when."""
        self.emitted = 0
        """Tuples emitted, tracked or not, since the last seal."""

    def emit(
        self, values: Sequence[Any], msg_id: Hashable = None, stream: str = "default"
    ) -> tuple[int, ...]:
        """Emit a tuple; return the tasks that get it."""
        port = self.port
        try:
            outlet = port.plain[stream]
        except KeyError:
            outlet = port.outlet(stream)
        if msg_id is None or self._ack_at_once is not None:
            targets = outlet.put(values, UNANCHORED)
            self._sent(msg_id)
            return targets
        row = outlet.fit(values) if values.__class__ is not list else tuple(values)
        messages = self.messages
        try:
            hash(msg_id)
        except TypeError:
            raise _no_id(msg_id) from None
        targets = outlet.put(row, len(messages))
        messages.append((msg_id, row, stream, None, self._clock()))
        self.emitted += 1
        return targets

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        msg_id: Hashable = None,
        stream: str = "default",
    ) -> None:
        """Emit a tuple of a direct stream to one task."""
        outlet, fitting = self.port.directed(task, values, stream)
        if msg_id is None or self._ack_at_once is not None:
            outlet.send(task, fitting, UNANCHORED)
            self._sent(msg_id)
            return
        try:
            hash(msg_id)
        except TypeError:
            raise _no_id(msg_id) from None
        outlet.send(task, fitting, len(self.messages))
        self.messages.append((msg_id, fitting, stream, task, self._clock()))
        self.emitted += 1

    def _sent(self, msg_id: Hashable) -> None:
        """Count a tuple that is not tracked; what is not tracked is acked at once."""
        self.emitted += 1
        if msg_id is not None and self._ack_at_once is not None:
            self._ack_at_once(msg_id)


def _no_id(msg_id: Any) -> EmitError:
    return EmitError(
        f"a message id must be hashable, which {shown(msg_id)} is not; a tuple would be"
    )
