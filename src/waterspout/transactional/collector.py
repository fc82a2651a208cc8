"""`BatchCollector`: emits of batch bolts and emitters. Tuples carry their attempt, not anchors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waterspout.errors import EmitError
from waterspout.topology.collector import Emitter
from waterspout.topology.ports import UNANCHORED, Outlet, Port
from waterspout.transactional.attempt import TransactionAttempt

__all__ = ["BatchCollector"]


class BatchCollector(Emitter):
    """The way out for one task and attempt; the first value of a tuple is that attempt."""

    __slots__ = ("_attempt", "count")

    def __init__(self, port: Port, attempt: TransactionAttempt | None) -> None:
        super().__init__(port)
        self._attempt = attempt
        self.count = 0
        """Tuples emitted so far."""

    @classmethod
    def counting(cls) -> BatchCollector:
        """Return a collector that only counts."""
        return _CountingCollector(Port("", {}), None)

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple `[attempt, ...]`; return the tasks that get it."""
        port = self.port
        outlet = port.plain.get(stream)
        if outlet is None:
            outlet = port.outlet(stream)
        row: Any = tuple(values) if values.__class__ is list else values
        if row.__class__ is not tuple or len(row) != outlet.size:
            row = outlet.fit(row)
        if row[0] is not self._attempt and row[0] != self._attempt:
            raise self._foreign(outlet, row)
        self.count += 1
        targets = outlet.route(row)
        boxes = outlet.boxes
        for task in targets:
            boxes[task].values.append(row)
        return targets

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        """Emit a tuple of a direct stream to one task."""
        outlet, fitting = self.port.directed(task, values, stream)
        if fitting[0] != self._attempt:
            raise self._foreign(outlet, fitting)
        self.count += 1
        outlet.send((task,), fitting, UNANCHORED)

    def _foreign(self, outlet: Outlet, values: tuple[Any, ...]) -> EmitError:
        return EmitError(
            f"{self.port.component!r} emitted {values[0]!r} as the first value on stream "
            f"{outlet.stream!r}; it must be the transaction attempt {self._attempt} (the id that "
            "prepare() got, or the first field of the input)"
        )


class _CountingCollector(BatchCollector):
    __slots__ = ()

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        self.count += 1
        return ()

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        self.count += 1
