"""`Port`: what a collector is connected to while its task runs, and the outlets behind it.

Whoever runs a task makes a port for each wave (or attempt, or batch) and binds the task's collector
to it, as `collector.port`. Collectors do nothing but through their port.

An anchor is the index of the input in this wave's intake; -1: not anchored; -2 and below: an
entry of `specials`, the ids of several anchors, or of one kept from an earlier wave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa

from waterspout._safe_repr import described, shown
from waterspout._tuples import Tuple
from waterspout.errors import AckError, EmitError
from waterspout.topology._column_batches import BatchRoute, ColumnBox, Indices, as_batch
from waterspout.topology._grouping import DealtRoute, OneFieldRoute, Route

__all__ = [
    "ACKED",
    "FAILED",
    "NONE_GIVEN",
    "OPEN",
    "UNANCHORED",
    "Box",
    "Outlet",
    "Port",
    "nobody",
]

log = logging.getLogger(__name__)

UNANCHORED = -1

# What `done` says of a tuple.
OPEN, ACKED, FAILED = 0, 1, 2


class Box:
    """Tuples of one stream from one task to another, as far as they were emitted."""

    __slots__ = ("anchors", "is_bare", "targets", "values")

    def __init__(self, task: int, *, is_bare: bool) -> None:
        self.values: list[Any] = []
        """Rows; where the stream has one field only, its values alone."""
        self.anchors: list[int] = []
        """One for each; none, if nothing of this task is ever anchored."""
        self.is_bare = is_bare
        self.targets = (task,)
        """What `emit` returns of a tuple that goes here only."""

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The values of each tuple."""
        return list(zip(self.values, strict=True)) if self.is_bare else self.values


class _Dealt:
    """Tuples that are dealt in turn: together, until somebody asks who got which."""

    __slots__ = ("_first", "anchors", "route", "values")

    def __init__(self, route: DealtRoute) -> None:
        self.route = route
        self.values: list[Any] = []
        self.anchors: list[int] = []
        self._first = 0
        """Whose turn the first of them was."""

    def boxes(self, *, is_bare: bool) -> dict[int, Box]:
        """Return every n-th of them to each of n tasks."""
        tasks, found = self.route.tasks, {}
        for number in range(min(len(tasks), len(self.values))):
            task = tasks[(self._first + number) % len(tasks)]
            box = found[task] = Box(task, is_bare=is_bare)
            box.values = self.values[number :: len(tasks)]
            box.anchors = self.anchors[number :: len(tasks)]
        return found

    def clear(self) -> None:
        """Go on with whose turn it is next."""
        self._first += len(self.values)
        self.values.clear()
        self.anchors.clear()


Put = Callable[[Sequence[Any], int], tuple[int, ...]]
"""Takes the values of a tuple and the number of its anchor; returns the tasks that get it."""

Fit = Callable[["Outlet", Any], tuple[Any, ...]]
"""Returns what was emitted as a tuple that fits, or raises what is wrong with it."""


class Outlet:
    """One output stream of one task: how its tuples must look, and where they go."""

    __slots__ = (
        "_batched",
        "_spread",
        "calls",
        "chunks",
        "copies",
        "dealt",
        "direct_tasks",
        "names",
        "own_boxes",
        "put",
        "route",
        "size",
        "stream",
    )

    def __init__(
        self,
        stream: str,
        names: Sequence[str],
        route: Route,
        direct_tasks: frozenset[int] | None = None,
        *,
        copies: int | None = 1,
        spread: Sequence[BatchRoute] = (),
    ) -> None:
        self.stream = stream
        self.names = tuple(names)
        self.size = len(self.names)
        self.route = route
        self.direct_tasks = direct_tasks
        """Who takes this stream by direct grouping; None: it is not a direct stream."""
        self.own_boxes: dict[int, Box] = {}
        """By task, without what is dealt in turn; the same dict as long as the outlet lives."""
        self.dealt = _Dealt(route) if isinstance(route, DealtRoute) else None
        self.chunks: dict[int, list[ColumnBox]] = {}
        """What was emitted by column, by task."""
        self._spread = spread
        self._batched = 0
        self.copies = copies
        """To how many tasks each tuple goes; None: that differs, and calls are counted."""
        self.calls = 0
        """Calls of `put`, where they are counted."""
        self.put: Put
        """Puts a tuple into the boxes of the tasks that get it: the hot path of a topology."""
        if copies is None and route is nobody:
            self.put = _counting_only(self)
        elif copies is None:
            self.put = _counting(self, _putting(self))
        else:
            self.put = _putting(self)

    def unanchored(self, first: object, fit: Fit) -> Callable[[Sequence[Any]], tuple[int, ...]]:
        """Return the way in for tuples that have no anchor, and all the same first value.

        `fit` takes what is not a list of the right size that begins with the very object.
        """
        put, size = self.put, self.size
        if self.dealt is not None:
            return _dealing_unanchored(self.dealt, self, first, fit)

        def put_one(values: Sequence[Any]) -> tuple[int, ...]:
            if values.__class__ is not list or len(values) != size or values[0] is not first:
                values = fit(self, values)
            return put(values, UNANCHORED)

        return put_one

    def take_counts(self) -> tuple[int, int]:
        """Return how many tuples were emitted and how many copies sent, before it is emptied.

        Where each goes to as many tasks, the one follows from the other: an emit, which is the
        hot path, need not count.
        """
        sent = sum(len(box.values) for box in self.own_boxes.values())
        if self.dealt is not None:
            sent += len(self.dealt.values)
        batched, self._batched = self._batched, 0
        rows = sum(len(chunk) for chunks in self.chunks.values() for chunk in chunks)
        calls, self.calls = self.calls, 0
        if self.copies is not None:
            calls = sent // self.copies
        return calls + batched, sent + rows

    @property
    def boxes(self) -> Mapping[int, Box]:
        """What was emitted tuple by tuple, by task."""
        if self.dealt is None:
            return self.own_boxes
        return {**self.own_boxes, **self.dealt.boxes(is_bare=self.size == 1)}

    def clear(self) -> None:
        """Forget what was emitted: it is on its way."""
        self.own_boxes.clear()
        self.chunks.clear()
        if self.dealt is not None:
            self.dealt.clear()

    def batch(self, columns: Any) -> pa.RecordBatch:
        """Return columns as a batch of this stream, or raise what is wrong with them."""
        return as_batch(columns, self.names, self.stream)

    def send_batch(self, batch: pa.RecordBatch, anchors: Indices) -> None:
        """Deal the rows of a batch to their targets; `anchors` has one number for each row."""
        self._batched += batch.num_rows
        if not batch.num_rows:
            return
        for spread in self._spread:
            for task, rows in spread(batch):
                chunk = ColumnBox(batch, anchors)
                if rows is not None:
                    chunk = ColumnBox(batch.take(pa.array(rows)), anchors[rows])
                self.chunks.setdefault(task, []).append(chunk)

    def mark(self) -> tuple[int, dict[int, int]]:
        """Return how much was emitted by column so far, for `take_back`."""
        return self._batched, {task: len(chunks) for task, chunks in self.chunks.items()}

    def take_back(self, mark: tuple[int, dict[int, int]]) -> None:
        """Forget what was emitted by column since it was marked."""
        self._batched, counts = mark
        for task, chunks in self.chunks.items():
            del chunks[counts.get(task, 0) :]
        self.chunks = {task: chunks for task, chunks in self.chunks.items() if chunks}

    def box(self, task: int) -> Box:
        """Return the box of a task, a new one if it has none."""
        box = self.own_boxes.get(task)
        if box is None:
            box = self.own_boxes[task] = Box(task, is_bare=self.size == 1)
        return box

    def send(self, task: int, values: tuple[Any, ...], anchor: int) -> None:
        """Put a tuple that fits into the box of one task, wherever others of its stream go."""
        box = self.box(task)
        box.values.append(values[0] if box.is_bare else values)
        box.anchors.append(anchor)

    def fit(self, values: object) -> tuple[Any, ...]:
        """Return the values as a tuple of the right size, or raise what is wrong with them."""
        if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
            raise EmitError(
                f"emit takes a list of values, not {shown(values)}; for one value write "
                f"[{shown(values)}]"
            )
        if isinstance(values, Mapping | Set):
            raise EmitError(f"emit takes a list of values, in order, not {shown(values)}")
        fitting = tuple(values)
        if len(fitting) != self.size:
            raise EmitError(
                f"stream {self.stream!r} has {self.size} fields ({', '.join(self.names)}) but "
                f"got {len(fitting)} values: {shown(fitting)}"
            )
        return fitting


def nobody(values: tuple[Any, ...]) -> tuple[int, ...]:
    """Choose no task: the route of a stream that nobody takes."""
    return ()


# Each of the following is called once for each tuple. A list or tuple of the right size is what
# people emit; `fit` takes the rest, and says what is wrong with what cannot be taken.


def _putting(outlet: Outlet) -> Put:
    """Return the way into an outlet's boxes that is the shortest for its grouping."""
    if outlet.dealt is not None:
        return _dealing(outlet, outlet.dealt)
    if isinstance(outlet.route, OneFieldRoute):
        only = outlet.size == 1
        return (_by_only_field if only else _by_one_field)(outlet, outlet.route)
    return _by_route(outlet)


def _dealing(outlet: Outlet, dealt: _Dealt) -> Put:
    deal, add_value, add_anchor = dealt.route.deal, dealt.values.append, dealt.anchors.append
    size, fit, is_bare = outlet.size, outlet.fit, outlet.size == 1

    def put(values: Sequence[Any], anchor: int) -> tuple[int, ...]:
        kind = values.__class__
        if (kind is not list and kind is not tuple) or len(values) != size:
            values = fit(values)
        add_value(values[0] if is_bare else tuple(values))
        add_anchor(anchor)
        return deal()

    return put


def _dealing_unanchored(
    dealt: _Dealt, outlet: Outlet, first: object, fit: Fit
) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    deal, add, size = dealt.route.deal, dealt.values.append, outlet.size
    is_bare = size == 1

    def put(values: Sequence[Any]) -> tuple[int, ...]:
        if values.__class__ is not list or len(values) != size or values[0] is not first:
            values = fit(outlet, values)
        add(values[0] if is_bare else tuple(values))
        return deal()

    return put


def _by_route(outlet: Outlet) -> Put:
    route, boxes, new_box = outlet.route, outlet.own_boxes, outlet.box
    size, fit, is_bare = outlet.size, outlet.fit, outlet.size == 1

    def put(values: Sequence[Any], anchor: int) -> tuple[int, ...]:
        kind = values.__class__
        if (kind is not list and kind is not tuple) or len(values) != size:
            values = fit(values)
        row = tuple(values)
        targets = route(row)
        for task in targets:
            try:
                box = boxes[task]
            except KeyError:
                box = new_box(task)
            box.values.append(row[0] if is_bare else row)
            box.anchors.append(anchor)
        return targets

    return put


def _by_one_field(outlet: Outlet, route: OneFieldRoute) -> Put:
    """Group by one of several fields."""
    known, position, task_of = route.known, route.position, route.task_of
    boxes, new_box, size, fit = outlet.own_boxes, outlet.box, outlet.size, outlet.fit

    def put(values: Sequence[Any], anchor: int) -> tuple[int, ...]:
        kind = values.__class__
        if (kind is not list and kind is not tuple) or len(values) != size:
            values = fit(values)
        row = tuple(values)
        try:
            box = boxes[known[row[position]]]
        except (KeyError, TypeError):
            box = new_box(task_of(row[position]))
        box.values.append(row)
        box.anchors.append(anchor)
        return box.targets

    return put


def _by_only_field(outlet: Outlet, route: OneFieldRoute) -> Put:
    """Group by the only field there is: nobody needs a row of one value."""
    known, task_of = route.known, route.task_of
    boxes, new_box, fit = outlet.own_boxes, outlet.box, outlet.fit

    def put(values: Sequence[Any], anchor: int) -> tuple[int, ...]:
        kind = values.__class__
        if (kind is not list and kind is not tuple) or len(values) != 1:
            values = fit(values)
        (value,) = values
        try:
            box = boxes[known[value]]
        except (KeyError, TypeError):
            box = new_box(task_of(value))
        box.values.append(value)
        box.anchors.append(anchor)
        return box.targets

    return put


def _counting(outlet: Outlet, put: Put) -> Put:
    """Return a way that counts its calls."""

    def counted(values: Sequence[Any], anchor: int) -> tuple[int, ...]:
        targets = put(values, anchor)
        outlet.calls += 1
        return targets

    return counted


def _counting_only(outlet: Outlet) -> Put:
    """Return the same where nobody takes the stream: a bolt at the end of a topology."""
    size, fit = outlet.size, outlet.fit

    def counted(values: Sequence[Any], anchor: int) -> tuple[int, ...]:
        kind = values.__class__
        if (kind is not list and kind is not tuple) or len(values) != size:
            fit(values)
        outlet.calls += 1
        return ()

    return counted


NONE_GIVEN: Any = object()
"""The tuple at hand where there is none; None is what an emit without anchors is given."""


class Port:
    """One task's way out, and the tuples that it has got."""

    __slots__ = (
        *("_report", "component", "current", "done", "given", "outlets", "plain", "puts"),
        *("specials", "task"),
    )

    def __init__(
        self,
        component: str,
        outlets: Mapping[str, Outlet],
        *,
        task: int = -1,
        done: Any = None,
        report: Callable[[BaseException], object] | None = None,
    ) -> None:
        self.component = component
        self.task = task
        self.outlets = outlets
        self.plain = {name: each for name, each in outlets.items() if each.direct_tasks is None}
        """The outlets that are not direct, by stream."""
        self.puts = {name: each.put for name, each in self.plain.items()}
        """How a tuple gets into each of them."""
        self.done = done
        """What has become of the tuples of this wave, by index; shared with their `Origin`."""
        self.current = UNANCHORED
        """The anchor of a basic bolt's emits: the tuple at hand."""
        self.given = NONE_GIVEN
        """The tuple at hand: what most emits are anchored to, and most acks are for."""
        self.specials: list[tuple[int, ...]] = []
        self._report = report

    def outlet(self, stream: str) -> Outlet:
        """Return the outlet of a stream that is not direct, or raise what is wrong with it."""
        outlet = self._known(stream)
        if outlet.direct_tasks is not None:
            raise EmitError(
                f"stream {stream!r} of {self.component!r} is direct: use emit_direct(task, values)"
            )
        return outlet

    def direct_outlet(self, stream: str) -> Outlet:
        """Return the outlet of a direct stream, or raise what is wrong with it."""
        outlet = self._known(stream)
        if outlet.direct_tasks is None:
            raise EmitError(
                f"stream {stream!r} of {self.component!r} is not direct: use emit, or declare "
                "its fields with Direct(...)"
            )
        return outlet

    def _known(self, stream: str) -> Outlet:
        try:
            return self.outlets[stream]
        except KeyError:
            known = ", ".join(self.outlets) or "none"
            raise EmitError(
                f"unknown stream {stream!r} of {self.component!r}; it has declared: {known}"
            ) from None

    def emit_direct(self, task: int, values: object, stream: str, anchor: int) -> None:
        """Put a tuple into the box of the one task that its emitter has named."""
        outlet, fitting = self.directed(task, values, stream)
        outlet.send(task, fitting, anchor)

    def directed(self, task: int, values: object, stream: str) -> tuple[Outlet, tuple[Any, ...]]:
        """Return a direct stream's outlet and the values that fit it, if this task takes it."""
        outlet = self.direct_outlet(stream)
        fitting = outlet.fit(values)
        takers = outlet.direct_tasks or frozenset()
        if task not in takers:
            known = ", ".join(map(str, sorted(takers))) or "none"
            raise EmitError(
                f"task {task} does not take stream {stream!r} of {self.component!r} by direct "
                f"grouping; these do: {known}"
            )
        return outlet, fitting

    def anchor(self, anchors: Tuple | Collection[Tuple] | None) -> int:
        """Return the number of what an emit is anchored to: one tuple, several, or none."""
        if anchors is None:
            return UNANCHORED
        if anchors.__class__ is Tuple and anchors._origin.done is self.done:
            index: int = anchors._index
            return index
        if isinstance(anchors, str):
            raise EmitError(f"a stream is named as emit(values, stream={anchors!r})")
        given = [anchors] if isinstance(anchors, Tuple) else list(anchors)
        roots: dict[int, None] = {}
        for each in given:
            if not isinstance(each, Tuple):
                raise EmitError(
                    f"an anchor is a tuple that this bolt has got, not {shown(each)}; the values "
                    "come first: emit(values, anchors)"
                )
            roots.update(dict.fromkeys(self.roots_of(each)))
        if not roots:
            return UNANCHORED
        self.specials.append(tuple(roots))
        return -1 - len(self.specials)

    def roots_of(self, given: Tuple) -> Sequence[int]:
        """Return the roots of the trees that a tuple is in."""
        roots: Sequence[int] = given._origin.intake.roots_of(given)
        return roots

    def mark(self, verb: str, code: int, given: Tuple) -> None:
        """Note that a tuple is acked or failed: once, and only one that this task got."""
        try:
            origin = given._origin
            done = origin.done
            # Whose tuple of an earlier wave it was does not matter where no tree waits for it.
            mine = done is self.done or origin.intake.task == self.task
            if done[given._index] == OPEN and (mine or not origin.intake.is_tracked):
                done[given._index] = code
                return
        except (AttributeError, KeyError, IndexError):
            pass  # told below, by what it is
        if not isinstance(given, Tuple):
            raise AckError(f"{verb} takes a tuple that this bolt has got, not {shown(given)}")
        raise AckError(
            f"{self.component!r} may not {verb} {given!r}: it was acked or failed already, or "
            "another task got it"
        )

    def fail(self, given: Tuple, why: str | None = None) -> None:
        """Note that a tuple cannot be processed, and why."""
        self.mark("fail", FAILED, given)
        if why is not None:
            given._origin.intake.reasons[given._index] = why

    def report_error(self, error: BaseException) -> None:
        """Show an error to people; to the log, where nobody else listens."""
        if self._report is None:
            log.warning("%s: %s", self.component, described(error))
        else:
            self._report(error)
