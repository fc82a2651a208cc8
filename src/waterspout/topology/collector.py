"""Collectors: `emit`, `ack` and `fail` as components see them.

The hot path of a topology: everything here runs once for each tuple. So an emit only notes the
values and, as a number, what they are anchored to; ids are drawn and combined for a whole wave at
once when it is sealed (`waterspout.waves.sealing`). The steps of an emit are written out in each
collector: a function for them would cost a tenth of its time.

An anchor is the index of the input in this wave's intake; -1: not anchored; -2 and below: an
entry of `specials`, the ids of several anchors, or of one kept from an earlier wave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

from waterspout.errors import AckError, EmitError
from waterspout.safe_repr import shown
from waterspout.topology.grouping import Route
from waterspout.tuples import Origin, Tuple

__all__ = [
    "ACKED",
    "FAILED",
    "OPEN",
    "UNANCHORED",
    "BasicCollector",
    "Box",
    "Emitter",
    "Outlet",
    "OutputCollector",
    "SpoutCollector",
    "restored_context",
    "restoring",
]

UNANCHORED = -1

# What `done` says of a tuple.
OPEN, ACKED, FAILED = 0, 1, 2


class Box:
    """Tuples of one stream from one task to another, as far as they were emitted."""

    __slots__ = ("anchors", "values")

    def __init__(self) -> None:
        self.values: list[tuple[Any, ...]] = []
        self.anchors: list[int] = []


class _Boxes(dict[int, Box]):
    def __missing__(self, task: int) -> Box:
        box = self[task] = Box()
        return box


class Outlet:
    """One output stream of one task: how its tuples must look, and where they go."""

    __slots__ = ("boxes", "direct_tasks", "names", "route", "size", "stream")

    def __init__(
        self,
        stream: str,
        names: Sequence[str],
        route: Route,
        direct_tasks: frozenset[int] | None = None,
    ) -> None:
        self.stream = stream
        self.names = tuple(names)
        self.size = len(self.names)
        self.route = route
        self.direct_tasks = direct_tasks
        """Who takes this stream by direct grouping; None: it is not a direct stream."""
        self.boxes: _Boxes = _Boxes()

    def send(self, targets: Sequence[int], values: tuple[Any, ...], anchor: int) -> None:
        """Put a tuple into the boxes of its targets."""
        boxes = self.boxes
        for task in targets:
            box = boxes[task]
            box.values.append(values)
            box.anchors.append(anchor)

    def fit(self, values: Sequence[Any]) -> tuple[Any, ...]:
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


# The collectors that those in a pickled bolt stand for; one, while a bolt is being restored.
_in_place: list[tuple[Any, Any]] = []


@contextmanager
def restoring(collector: Any, context: Any = None) -> Iterator[None]:
    """Let every pickled collector (and batch context) that is read meanwhile become this one."""
    _in_place.append((collector, context))
    try:
        yield
    finally:
        _in_place.pop()


def restored_context() -> Any:
    """Return the context of the task whose bolt is being restored."""
    return _in_place[-1][1]


def _restored() -> Any:
    return _in_place[-1][0]


class Emitter:
    """What all collectors do alike: find the stream, check the values."""

    __slots__ = ("_component", "_outlets", "_report")

    def __reduce__(self) -> tuple[object, ...]:
        # A bolt keeps its collector as an attribute, and travels; the collector does not.
        return (_restored, ())

    def __init__(self, component: str) -> None:
        self._component = component
        self._outlets: Mapping[str, Outlet] = {}
        self._report: Callable[[BaseException], None] = _nobody_listens

    def report_error(self, error: BaseException) -> None:
        """Show an error in the log and in `Run.errors` without failing anything."""
        self._report(error)

    def _outlet(self, stream: str, *, direct: bool) -> Outlet:
        try:
            outlet = self._outlets[stream]
        except KeyError:
            known = ", ".join(self._outlets) or "none"
            raise EmitError(
                f"unknown stream {stream!r} of {self._component!r}; it has declared: {known}"
            ) from None
        if (outlet.direct_tasks is not None) == direct:
            return outlet
        if direct:
            raise EmitError(
                f"stream {stream!r} of {self._component!r} is not direct: use emit, or declare "
                "its fields with Direct(...)"
            )
        raise EmitError(
            f"stream {stream!r} of {self._component!r} is direct: use emit_direct(task, values)"
        )

    def _send_directly(self, task: int, values: Sequence[Any], stream: str, anchor: int) -> None:
        outlet = self._outlet(stream, direct=True)
        fitting = outlet.fit(values)
        assert outlet.direct_tasks is not None
        if task not in outlet.direct_tasks:
            known = ", ".join(map(str, sorted(outlet.direct_tasks))) or "none"
            raise EmitError(
                f"task {task} does not take stream {stream!r} of {self._component!r} by direct "
                f"grouping; these do: {known}"
            )
        outlet.send((task,), fitting, anchor)


def _nobody_listens(error: BaseException) -> None:
    """Before a run has begun."""


class OutputCollector(Emitter):
    """A bolt's way out. Lives as long as the bolt; each wave gives it new outlets."""

    __slots__ = ("_done", "_specials", "_task")

    def __init__(self, component: str, task: int = -1) -> None:
        super().__init__(component)
        self._task = task
        self._done: Any = bytearray()
        self._specials: list[tuple[int, ...]] = []

    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Collection[Tuple] | None = None,
        stream: str = "default",
    ) -> tuple[int, ...]:
        """Emit a tuple, anchored to one tuple, to several, or to none; return its task ids."""
        outlet = self._outlets.get(stream)
        if outlet is None or outlet.direct_tasks is not None:
            outlet = self._outlet(stream, direct=False)
        if values.__class__ is list:
            values = tuple(values)
        if values.__class__ is not tuple or len(values) != outlet.size:
            values = outlet.fit(values)
        if anchors is None:
            anchor = -1
        elif anchors.__class__ is Tuple and anchors._origin.done is self._done:
            anchor = anchors._index
        else:
            anchor = self._special(anchors)
        targets = outlet.route(values)
        boxes = outlet.boxes
        for task in targets:
            box = boxes[task]
            box.values.append(values)
            box.anchors.append(anchor)
        return targets

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Collection[Tuple] | None = None,
        stream: str = "default",
    ) -> None:
        """Emit a tuple of a direct stream to one task."""
        self._send_directly(task, values, stream, self._anchor(anchors))

    def ack(self, tuple: Tuple) -> None:
        """Say that a tuple is done: once, and only for a tuple that this task got."""
        try:
            origin = tuple._origin
            done = origin.done
            index = tuple._index
            if done[index] == 0 and (done is self._done or self._has_got(origin)):
                done[index] = 1
                return
        except (AttributeError, KeyError, IndexError):
            pass
        raise self._not_open("ack", tuple)

    def fail(self, tuple: Tuple) -> None:
        """Say that a tuple cannot be processed: its message fails at the spout."""
        try:
            origin = tuple._origin
            done = origin.done
            if done[tuple._index] == OPEN and (done is self._done or self._has_got(origin)):
                done[tuple._index] = FAILED
                return
        except (AttributeError, KeyError, IndexError):
            pass
        raise self._not_open("fail", tuple)

    def _has_got(self, origin: Origin) -> bool:
        """Whether a tuple of an earlier wave was this task's; of one in no tree it is no matter."""
        return origin.intake.task == self._task or not origin.intake.is_tracked

    def reset_timeout(self, tuple: Tuple) -> None:
        """Let the time of this tuple's messages begin anew when the wave is over."""
        tuple._origin.intake.reset(tuple)

    def _not_open(self, verb: str, given: Any) -> AckError:
        if not isinstance(given, Tuple):
            return AckError(f"{verb} takes a tuple that this bolt has got, not {shown(given)}")
        return AckError(
            f"{self._component!r} may not {verb} {given!r}: it was acked or failed already, or "
            "another task got it"
        )

    def _anchor(self, anchors: Any) -> int:
        if anchors is None:
            return UNANCHORED
        if anchors.__class__ is Tuple and anchors._origin.done is self._done:
            index: int = anchors._index
            return index
        return self._special(anchors)

    def _special(self, anchors: Tuple | Collection[Tuple]) -> int:
        """Note the trees of several anchors, or of one kept from an earlier wave."""
        given = [anchors] if isinstance(anchors, Tuple) else list(anchors)
        roots: dict[int, None] = {}
        for anchor in given:
            if not isinstance(anchor, Tuple):
                raise EmitError(f"an anchor is a tuple that this bolt has got, not {shown(anchor)}")
            roots.update(dict.fromkeys(anchor._origin.intake.roots_of(anchor)))
        if not roots:
            return UNANCHORED
        self._specials.append(tuple(roots))
        return -1 - len(self._specials)


class BasicCollector(Emitter):
    """A basic bolt's way out: every emit is anchored to the tuple at hand."""

    __slots__ = ("_current",)

    def __init__(self, component: str) -> None:
        super().__init__(component)
        self._current = UNANCHORED

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple, anchored to the input; return its task ids."""
        outlet = self._outlets.get(stream)
        if outlet is None or outlet.direct_tasks is not None:
            outlet = self._outlet(stream, direct=False)
        if values.__class__ is list:
            values = tuple(values)
        if values.__class__ is not tuple or len(values) != outlet.size:
            values = outlet.fit(values)
        anchor = self._current
        targets = outlet.route(values)
        boxes = outlet.boxes
        for task in targets:
            box = boxes[task]
            box.values.append(values)
            box.anchors.append(anchor)
        return targets

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        """Emit a tuple of a direct stream to one task, anchored to the input."""
        self._send_directly(task, values, stream, self._current)

    def reset_timeout(self, tuple: Tuple) -> None:
        """Let the time of this tuple's messages begin anew when the wave is over."""
        tuple._origin.intake.reset(tuple)


class SpoutCollector(Emitter):
    """A spout's way out. A message id asks for tracking: `ack` or `fail` will follow."""

    __slots__ = ("_ack_at_once", "emitted", "messages")

    def __init__(self, component: str, ack_at_once: Callable[[Any], None] | None = None) -> None:
        super().__init__(component)
        self._ack_at_once = ack_at_once
        self.messages: list[tuple[Any, tuple[Any, ...], str, int | None]] = []
        """Of each tracked message since the last seal: id, values, stream, task if direct."""
        self.emitted = 0
        """Tuples emitted, tracked or not, since the last seal."""

    def emit(
        self, values: Sequence[Any], msg_id: Any = None, stream: str = "default"
    ) -> tuple[int, ...]:
        """Emit a tuple; return the tasks that get it."""
        outlet = self._outlets.get(stream)
        if outlet is None or outlet.direct_tasks is not None:
            outlet = self._outlet(stream, direct=False)
        values = outlet.fit(values)
        targets = outlet.route(values)
        outlet.send(targets, values, self._track(msg_id, values, stream))
        self.emitted += 1
        if msg_id is not None and self._ack_at_once is not None:
            self._ack_at_once(msg_id)
        return targets

    def emit_direct(
        self, task: int, values: Sequence[Any], msg_id: Any = None, stream: str = "default"
    ) -> None:
        """Emit a tuple of a direct stream to one task."""
        fitting = self._outlet(stream, direct=True).fit(values)
        anchor = len(self.messages) if self._tracks(msg_id) else UNANCHORED
        self._send_directly(task, fitting, stream, anchor)
        self._track(msg_id, fitting, stream, task)
        self.emitted += 1
        if msg_id is not None and self._ack_at_once is not None:
            self._ack_at_once(msg_id)

    def _tracks(self, msg_id: Any) -> bool:
        return msg_id is not None and self._ack_at_once is None

    def _track(
        self, msg_id: Any, values: tuple[Any, ...], stream: str, task: int | None = None
    ) -> int:
        if not self._tracks(msg_id):
            return UNANCHORED
        try:
            hash(msg_id)
        except TypeError:
            raise EmitError(
                f"a message id must be hashable, which {shown(msg_id)} is not; a tuple would be"
            ) from None
        self.messages.append((msg_id, values, stream, task))
        return len(self.messages) - 1
