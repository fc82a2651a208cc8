"""`BoltTask`: one task of a bolt, over the waves of a run.

Between waves its attributes are pickled; of large containers among them only what has changed.
Where the next wave finds the very same object alive in its worker it goes on with that; anywhere
else it is made anew from the pickled attributes, and from containers of an earlier life if there
are any.
"""

from __future__ import annotations

import os
import secrets
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from waterspout._causes import told
from waterspout._safe_repr import described
from waterspout._tuples import Origin, Tuple
from waterspout.errors import BoltCrash, FailedException, NotPicklableError
from waterspout.topology._collector import (
    BasicCollector,
    ColumnCollector,
    OutputCollector,
    restoring,
)
from waterspout.topology._component import BasicBolt, Bolt
from waterspout.topology._context import TopologyContext
from waterspout.topology._pickling import culprit
from waterspout.topology._ports import FAILED, NONE_GIVEN, Outlet, Port
from waterspout.topology._short_ways import bind
from waterspout.waves.columns import BatchCalls, run_batches
from waterspout.waves.frames import Frame, pack, unpack
from waterspout.waves.intake import Intake, Outcome
from waterspout.waves.large import LARGE, Container, Edit, adopt, apply, reference, resolving
from waterspout.waves.memory import StateStep, TaskState, Whole, steps_since
from waterspout.waves.reuse import ALONE, references

__all__ = ["BoltTask", "ErrorNote", "Errors", "Failure", "LiveTasks", "Worker"]

# How many tuples are executed between two looks at the clock: fewer where they take long.
_CHUNK_MAX = 256
_CHUNK_S = 0.01

_TEXT_MAX = 4000

# As how many changes a wave's step counts at least: many small steps have their price too.
_STEP_MIN = 64

# Of how many runs a worker process keeps bolts alive.
_RUNS_MAX = 8


@dataclass(slots=True)
class ErrorNote:
    """An error of a component, as people see it."""

    component: str
    task: int
    error: str
    traceback: str
    count: int = 1


@dataclass(slots=True)
class Failure:
    """A message that failed, and why."""

    root: int
    component: str
    error: str
    deadly: bool = False
    """Its worker died."""


@dataclass(slots=True)
class Errors:
    """The errors of a wave: each kind once with its traceback, the rest counted."""

    component: str
    task: int
    notes: dict[str, ErrorNote] = field(default_factory=dict)

    def add(self, error: BaseException) -> str:
        text = described(error)
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = f"{last[0].filename}:{last[0].lineno}" if last else ""
        kind = f"{type(error).__name__} {where}"
        note = self.notes.get(kind)
        if note is None:
            trace = "".join(traceback.format_exception(error))[-_TEXT_MAX:]
            self.notes[kind] = ErrorNote(self.component, self.task, text, trace)
        else:
            note.count += 1
        return text


class BoltTask:
    """Runs one task's tuples through its bolt, and knows which of them are open."""

    def __init__(
        self,
        make: Callable[[], Any],
        context: TopologyContext,
        conf: Mapping[str, Any],
        *,
        crash_on_error: bool,
    ) -> None:
        self._context = context
        self._component = context.this_component_id
        self._task = context.this_task_id
        self._conf = conf
        self._crash_on_error = crash_on_error
        self._make = make
        self._intakes: list[Intake] = []
        self._large: dict[int, Container] = {}
        self._numbered = 0
        self._noted = 0
        self.version = ""
        self.bolt: Any = None
        self.collector: BasicCollector | OutputCollector
        self.errors = Errors(self._component, self._task)
        self.executed = 0

    def start(self) -> None:
        self.bolt = self._make()
        self._new_collector()
        self._prepare()

    def restore(self, state: TaskState, earlier: BoltTask | None = None) -> bool:
        """Make the bolt as it was when `state` was taken; False: that takes more than is here.

        `earlier` is a life of it that is over: its large containers are taken over.
        """
        large = _containers(state, earlier)
        if large is None:
            return False
        self._large, self.version = large, state.version
        self.bolt = self._make()
        self._new_collector()
        if self.bolt.transient:
            self._prepare()
        with restoring(self.collector), resolving(large):
            attributes, self._intakes, self._numbered, self._noted = unpack(state.data)
        for name in set(self.bolt.__dict__) - set(attributes) - set(self.bolt.transient):
            del self.bolt.__dict__[name]  # the bolt had deleted it
        self.bolt.__dict__.update(attributes)
        return True

    def state(self, version: str) -> TaskState:
        """Return what `restore` needs, if it has all that was returned before."""
        before, self.version = self.version, version
        is_first = not self._large
        changes = self._changes()
        self._noted += sum(max(_STEP_MIN, len(change)) for change in changes.values())
        # So that steps and whole together are never much more than what is held.
        again = self._noted > LARGE + sum(map(len, self._large.values()))
        self._noted = 0 if again or is_first else self._noted
        data = self._attributes()
        if not self._large:
            return TaskState(version, data)
        steps = (StateStep(before, version, pack(changes)),) if before else ()
        if not (again or is_first):
            return TaskState(version, data, steps)
        content = {number: container.whole() for number, container in self._large.items()}
        return TaskState(version, data, steps, Whole(version, pack(content)))

    def _changes(self) -> dict[int, Edit]:
        """Return what has changed in large containers; look for new ones, and give up others."""
        found: dict[int, Edit] = {}
        for number, container in list(self._large.items()):
            change = container.change()
            if change is None:
                container.number = 0
                del self._large[number]
            elif change.cleared or len(change):
                found[number] = change
            container.forget()
        new = adopt(self.bolt.__dict__, set(self.bolt.transient), self.executed, self._numbered + 1)
        self._numbered += len(new)
        self._large |= new
        return found | {number: container.whole() for number, container in new.items()}

    def _attributes(self) -> bytes:
        """Return attributes and open tuples, pickled; forget containers that are not there."""
        transient = set(self.bolt.transient)
        attributes = {k: v for k, v in self.bolt.__dict__.items() if k not in transient}
        met: set[int] = set()
        try:
            kept = (attributes, self._intakes, self._numbered, self._noted)
            data = pack(kept, reference(self._large, met))
            self._large = {number: self._large[number] for number in sorted(met)}
            return data
        except Exception as error:
            name = culprit(attributes)
            raise NotPicklableError(
                f"bolt {self._component!r} after a wave",
                name,
                f"{error}. If prepare() can make it again, name it: transient = ({name!r},)",
            ) from error

    def run(
        self,
        frames: Sequence[Frame],
        origin_of: Callable[[Frame, Intake], Origin],
        outlets: Mapping[str, Outlet],
        deadline: float,
    ) -> tuple[Intake, list[Frame]]:
        """Execute frames until the deadline; return their intake, and what is left of them."""
        intake = Intake(frames, self._task)
        self.errors = Errors(self._component, self._task)
        port = Port(
            self._component,
            outlets,
            task=self._task,
            done=intake.done,
            report=self.errors.add,
        )
        bind(self.collector, port)
        basic, by_column = isinstance(self.bolt, BasicBolt), self._takes_batches
        base = 0
        left: list[Frame] = []
        for number, frame in enumerate(frames):
            origin = origin_of(frame, intake)
            intake.add(origin)
            began = time.monotonic()
            if by_column:
                done = self._execute_batches(frame, origin, base, deadline)
            else:
                execute = self._execute_basic if basic else self._execute
                done = execute(frame.each(), origin, base, _chunks(len(frame), deadline))
            took = time.monotonic() - began
            if basic or by_column:
                intake.ack_rest(base, base + done)
            intake.executed(origin, base, base + done, took)
            base += done
            if done < len(frame) or (number + 1 < len(frames) and time.monotonic() >= deadline):
                rest = [frame.cut(done, len(frame))] if done < len(frame) else []
                left = [*rest, *frames[number + 1 :]]
                intake.cut(base)
                break
        port.given = NONE_GIVEN
        self.executed = base
        self._intakes.append(intake)
        return intake, left

    def close_books(self) -> tuple[Outcome, list[Failure], list[int]]:
        """Return the ids that were acked, the messages that failed, and the resets.

        Called when a wave is over; what is still open is kept for the next one.
        """
        outcome = Outcome()
        failures: list[Failure] = []
        resets: list[int] = []
        still_open = []
        for intake in self._intakes:
            reasons, intake.reasons = intake.reasons, {}
            before = len(outcome.failed)
            resets.extend(intake.resets)
            intake.resets = []
            if intake.close_books(outcome):
                still_open.append(intake)
            failures.extend(
                Failure(root, self._component, reasons.get(index, "failed by the bolt"))
                for root, index in outcome.failed[before:]
            )
        self._intakes = still_open
        return outcome, failures, resets

    def _execute(
        self, rows: Iterator[tuple[Any, ...]], origin: Origin, base: int, chunks: _Chunks
    ) -> int:
        execute, port = self.bolt._tuple_entry, self.collector.port
        given = port.given = Tuple((), origin, base)
        done = 0
        for done, stop in chunks:
            for index, values in enumerate(islice(rows, stop - done), base + done):
                if references(given) == ALONE:
                    given.values, given._index = values, index
                else:
                    given = port.given = Tuple(values, origin, index)
                try:
                    execute(given)
                except (Exception, SystemExit) as error:
                    self._fail(given, error)
            done = stop
        return done

    def _execute_basic(
        self, rows: Iterator[tuple[Any, ...]], origin: Origin, base: int, chunks: _Chunks
    ) -> int:
        execute, collector = self.bolt.execute, self.collector
        port = collector.port
        given = port.given = Tuple((), origin, base)
        done = 0
        for done, stop in chunks:
            for index, values in enumerate(islice(rows, stop - done), base + done):
                if references(given) == ALONE:
                    given.values, given._index = values, index
                else:
                    given = port.given = Tuple(values, origin, index)
                port.current = index
                try:
                    execute(given, collector)
                except (Exception, SystemExit) as error:
                    self._fail(given, error)
            done = stop
        return done

    @property
    def _takes_batches(self) -> bool:
        return isinstance(self.bolt, Bolt) and self.bolt.takes_batches

    def _execute_batches(self, frame: Frame, origin: Origin, base: int, deadline: float) -> int:
        collector = ColumnCollector(self.collector.port, origin.intake.reasons)

        def fail(row: int, error: BaseException) -> None:
            self._fail(Tuple((), origin, base + row), error)

        calls = BatchCalls(self.bolt.execute_batch, collector, fail, base)
        return run_batches(frame, origin, calls, deadline)

    def _fail(self, given: Tuple, error: BaseException) -> None:
        """Fail the one tuple whose execution raised; the others go on.

        So does one that wants to end the program: the process is not the bolt's, and the next wave
        would meet the same tuple again.
        """
        if isinstance(error, FailedException):
            reason = described(error)
        elif self._crash_on_error:
            raise BoltCrash(f"bolt {self._component!r} raised {told(error)}") from error
        else:
            reason = self.errors.add(error)
        given._origin.intake.reasons[given._index] = reason
        given._origin.done[given._index] = FAILED

    def _new_collector(self) -> None:
        port = Port(self._component, {}, task=self._task)
        basic = isinstance(self.bolt, BasicBolt)
        self.collector = BasicCollector(port) if basic else OutputCollector(port)
        self._intakes = []

    def _prepare(self) -> None:
        if isinstance(self.bolt, BasicBolt):
            self.bolt.prepare(self._conf, self._context)
        else:
            self.bolt._prepare_task(self._conf, self._context, self.collector)


class LiveTasks:
    """Bolts that stay alive in a worker process between waves, by run and task.

    Each is good for the one version it had after its last wave. A bolt is taken out while it works:
    one that a killed or failed wave has left half-done is never found again.
    """

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._runs: OrderedDict[str, dict[int, BoltTask]] = OrderedDict()

    @property
    def name(self) -> str:
        """Who keeps them; a process that was forked is another one."""
        return f"{self._name}.{os.getpid()}"

    def take(self, run: str, task: int) -> BoltTask | None:
        """Return the bolt if it is alive here, in whichever version."""
        return self._runs.get(run, {}).pop(task, None)

    def put(self, run: str, task: int, bolt: BoltTask) -> None:
        self._runs.setdefault(run, {})[task] = bolt
        self._runs.move_to_end(run)
        while len(self._runs) > _RUNS_MAX:
            self._runs.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that runs a shard: the bolts alive in it, the name of this try, its number."""

    live: LiveTasks = field(default_factory=LiveTasks)
    token: str = ""
    tries_before: int = 0


_Chunks = Iterator[tuple[int, int]]


def _chunks(total: int, deadline: float) -> Iterator[tuple[int, int]]:
    """Return where chunks begin and end, until the deadline: smaller ones where they take long."""
    done, chunk, began = 0, 1, time.monotonic()
    while done < total:
        stop = min(total, done + chunk)
        yield done, stop
        done, now = stop, time.monotonic()
        if now >= deadline:
            return
        chunk = max(1, chunk // 2) if now - began > _CHUNK_S else min(_CHUNK_MAX, 2 * chunk)
        began = now


def _containers(state: TaskState, earlier: BoltTask | None) -> dict[int, Container] | None:
    """Return a task's large containers as the state has them, from what was alive or from all."""
    containers: dict[int, Container] = {}
    steps = None if earlier is None else steps_since(earlier.version, state)
    if earlier is not None and steps is not None:
        containers = earlier._large
    elif state.partial:
        return None
    elif state.whole is not None:
        apply(containers, unpack(state.whole.data))
        steps = steps_since(state.whole.version, state)
    for step in steps or ():
        apply(containers, unpack(step.data))
    return containers
