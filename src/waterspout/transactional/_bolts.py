"""`BatchBolt` and `Committer`, which users write for transactional topologies; their collector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from waterspout._tuples import Tuple
from waterspout.errors import EmitError, StateUseError
from waterspout.topology._collector import Emitter, restored_context
from waterspout.topology._component import Component
from waterspout.topology._context import TopologyContext
from waterspout.topology._ports import UNANCHORED, Outlet, Port
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._states import AttemptState
from waterspout.waves.frames import pack, unpack

__all__ = ["BatchBolt", "BatchCollector", "BatchContext", "Committer", "TakenTuples"]


class BatchCollector(Emitter):
    """The way out of batch bolts and emitters, for one task and attempt.

    Tuples carry their attempt, as their first value, instead of anchors.
    """

    __slots__ = ("_attempt", "count")

    def __init__(self, port: Port, attempt: TransactionAttempt | None) -> None:
        super().__init__(port)
        self._attempt = attempt
        self.count = 0
        """Tuples emitted so far."""

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple `[attempt, ...]`; return the tasks that get it."""
        port = self.port
        try:
            outlet = port.plain[stream]
        except KeyError:
            outlet = port.outlet(stream)
        if values.__class__ is not list or len(values) != outlet.size:
            values = outlet.fit(values)
        if values[0] is not self._attempt and values[0] != self._attempt:
            raise self._foreign(outlet, tuple(values))
        targets = outlet.put(values, UNANCHORED)
        self.count += 1
        return targets

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        """Emit a tuple of a direct stream to one task."""
        outlet, fitting = self.port.directed(task, values, stream)
        if fitting[0] != self._attempt:
            raise self._foreign(outlet, fitting)
        self.count += 1
        outlet.send(task, fitting, UNANCHORED)

    def _foreign(self, outlet: Outlet, values: tuple[Any, ...]) -> EmitError:
        return EmitError(
            f"{self.port.component!r} emitted {values[0]!r} as the first value on stream "
            f"{outlet.stream!r}; it must be the transaction attempt {self._attempt} (the id that "
            "prepare() got, or the first field of the input)"
        )


class TakenTuples(BatchCollector):
    """Takes what an emitter emits when it is asked, and emits it later, under the real attempt."""

    __slots__ = ("_asked", "_keeps", "_rows")

    def __init__(self, asked: TransactionAttempt, *, keeps: bool = True) -> None:
        super().__init__(Port("", {}), asked)
        self._asked = asked
        self._keeps = keeps
        self._rows: list[tuple[str, int | None, tuple[Any, ...]]] = []

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        self._take(stream, None, values)
        return ()

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        self._take(stream, task, values)

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

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple, in either phase; its first field is the attempt."""

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
