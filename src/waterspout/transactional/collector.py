"""`BatchCollector`: emits of batch bolts and emitters. Tuples carry their attempt, not anchors."""

from __future__ import annotations

from typing import Any

from waterspout.errors import EmitError
from waterspout.topology.collector import UNANCHORED, Emitter, Outlet
from waterspout.transactional.attempt import TransactionAttempt

__all__ = ["BatchCollector"]


class BatchCollector(Emitter):
    """The way out for one task and attempt; the first value of a tuple is that attempt."""

    __slots__ = ("_attempt", "count")

    def __init__(self, component: str, attempt: TransactionAttempt | None) -> None:
        super().__init__(component)
        self._attempt = attempt
        self.count = 0
        """Tuples emitted so far."""

    @classmethod
    def counting(cls) -> BatchCollector:
        """Return a collector that only counts."""
        return _Counting("", None)

    def emit(self, values: Any, stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple `[attempt, ...]`; return the tasks that get it."""
        outlet = self._outlets.get(stream)
        if outlet is None or outlet.direct_tasks is not None:
            outlet = self._outlet(stream, direct=False)
        if values.__class__ is list:
            values = tuple(values)
        if values.__class__ is not tuple or len(values) != outlet.size:
            values = outlet.fit(values)
        if values[0] is not self._attempt and values[0] != self._attempt:
            raise self._foreign(outlet, values)
        self.count += 1
        targets = outlet.route(values)
        boxes = outlet.boxes
        for task in targets:
            boxes[task].values.append(values)
        return targets

    def emit_direct(self, task: int, values: Any, stream: str = "default") -> None:
        """Emit a tuple of a direct stream to one task."""
        outlet = self._outlet(stream, direct=True)
        fitting = outlet.fit(values)
        if fitting[0] != self._attempt:
            raise self._foreign(outlet, fitting)
        self.count += 1
        self._send_directly(task, fitting, stream, UNANCHORED)

    def _foreign(self, outlet: Outlet, values: tuple[Any, ...]) -> EmitError:
        return EmitError(
            f"{self._component!r} emitted {values[0]!r} as the first value on stream "
            f"{outlet.stream!r}; it must be the transaction attempt {self._attempt} (the id that "
            "prepare() got, or the first field of the input)"
        )


class _Counting(BatchCollector):
    __slots__ = ()

    def emit(self, values: Any, stream: str = "default") -> tuple[int, ...]:
        self.count += 1
        return ()

    def emit_direct(self, task: int, values: Any, stream: str = "default") -> None:
        self.count += 1
