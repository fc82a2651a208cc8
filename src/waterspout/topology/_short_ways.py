"""`emit` and `ack` of one bolt task in one call: what does not change in a wave is known to them.

Most emits are of a list, on the default stream, anchored to the tuple at hand; most acks are for
that tuple. The collector of a task gets a class of its own whose methods do just that, and leave
everything else to those of its base class. For each way into an outlet there is one, written out,
for bolts and for basic bolts: this is the hot path of a topology, where each further call costs as
much as the work.

A class is made once for a task and told of the port of each wave. It does nothing by itself once a
wave is over: then no tuple is at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from waterspout.topology._collector import BasicCollector, OutputCollector
from waterspout.topology._grouping import OneFieldRoute
from waterspout.topology._ports import ACKED, NONE_GIVEN, OPEN, Outlet, Port, nobody

__all__ = ["bind"]

_STREAM = "default"

_emit_as_others = OutputCollector.emit
_emit_as_other_basic = BasicCollector.emit
_ack_as_others = OutputCollector.ack


@dataclass(frozen=True, slots=True)
class _Ways:
    """Two forms of `emit`, and what tells them of the port of a wave."""

    bind: Callable[[Port, Outlet], None]
    emit: Callable[..., tuple[int, ...]]
    basic_emit: Callable[..., tuple[int, ...]]


_Maker = Callable[[], _Ways]


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the class that a collector has got."""

    maker: _Maker | None
    bind_emit: Callable[[Port, Outlet], None] | None
    bind_ack: Callable[[Port], None]


def bind(collector: BasicCollector | OutputCollector, port: Port) -> None:
    """Connect a collector to the port of a wave, by the shortest ways that there are."""
    collector.port = port
    outlet = port.plain.get(_STREAM)
    maker = None if outlet is None else _maker(outlet)
    known: _Known | None = getattr(type(collector), "_known", None)
    if known is None or known.maker is not maker:
        known = _give_class(collector, maker)
    known.bind_ack(port)
    if known.bind_emit is not None and outlet is not None:
        known.bind_emit(port, outlet)


def _give_class(collector: BasicCollector | OutputCollector, maker: _Maker | None) -> _Known:
    """Give a collector a class of its own."""
    is_basic = isinstance(collector, BasicCollector)
    base: type[Any] = BasicCollector if is_basic else OutputCollector
    ack, bind_ack = _acking()
    ways = None if maker is None else maker()
    known = _Known(maker, None if ways is None else ways.bind, bind_ack)
    has: dict[str, Any] = {"__slots__": (), "_known": known}
    if not is_basic:
        has["ack"] = ack
    if ways is not None:
        has["emit"] = ways.basic_emit if is_basic else ways.emit
    collector.__class__ = type(base.__name__, (base,), has)
    return known


def _maker(outlet: Outlet) -> _Maker | None:
    """Return what makes the short ways into an outlet; None: it has none."""
    if outlet.copies is None:
        return _counting_only if outlet.route is nobody else None
    if outlet.dealt is not None:
        return _dealing
    if isinstance(outlet.route, OneFieldRoute):
        return _by_only_field if outlet.size == 1 else _by_one_field
    return None


def _acking() -> tuple[Callable[[OutputCollector, Any], None], Callable[[Port], None]]:
    port, done = Port("", {}), bytearray()

    def bind_to(new: Port) -> None:
        nonlocal port, done
        port, done = new, new.done

    def ack(self: OutputCollector, tuple: Any) -> None:
        if tuple is port.given:
            index = tuple._index
            if done[index] == OPEN:
                done[index] = ACKED
                return
        _ack_as_others(self, tuple)

    return ack, bind_to


def _dealing() -> _Ways:
    port, size = Port("", {}), 0
    deal: Any = None
    dealt_values: list[Any] = []
    dealt_anchors: list[int] = []

    def bind_to(new: Port, outlet: Outlet) -> None:
        nonlocal port, size, deal, dealt_values, dealt_anchors
        assert outlet.dealt is not None
        port, size, deal = new, outlet.size, outlet.dealt.route.deal
        dealt_values, dealt_anchors = outlet.dealt.values, outlet.dealt.anchors

    def emit(self: Any, values: Any, anchors: Any = None, stream: str = _STREAM) -> Any:
        if (
            anchors is port.given
            and stream == _STREAM
            and values.__class__ is list
            and len(values) == size
        ):
            dealt_values.append(values[0] if size == 1 else tuple(values))
            dealt_anchors.append(anchors._index)
            return deal()
        return _emit_as_others(self, values, anchors, stream)

    def basic_emit(self: Any, values: Any, stream: str = _STREAM) -> Any:
        if (
            stream == _STREAM
            and port.given is not NONE_GIVEN
            and values.__class__ is list
            and len(values) == size
        ):
            dealt_values.append(values[0] if size == 1 else tuple(values))
            dealt_anchors.append(port.current)
            return deal()
        return _emit_as_other_basic(self, values, stream)

    return _Ways(bind_to, emit, basic_emit)


def _by_only_field() -> _Ways:
    port = Port("", {})
    new_box: Any = None
    task_of: Any = None
    known: dict[Any, int] = {}
    boxes: dict[int, Any] = {}

    def bind_to(new: Port, outlet: Outlet) -> None:
        nonlocal port, known, boxes, new_box, task_of
        assert isinstance(outlet.route, OneFieldRoute)
        port, known, task_of = new, outlet.route.known, outlet.route.task_of
        boxes, new_box = outlet.own_boxes, outlet.box

    def emit(self: Any, values: Any, anchors: Any = None, stream: str = _STREAM) -> Any:
        if (
            anchors is port.given
            and stream == _STREAM
            and values.__class__ is list
            and len(values) == 1
        ):
            (value,) = values
            try:
                box = boxes[known[value]]
            except (KeyError, TypeError):
                box = new_box(task_of(value))
            box.values.append(value)
            box.anchors.append(anchors._index)
            return box.targets
        return _emit_as_others(self, values, anchors, stream)

    def basic_emit(self: Any, values: Any, stream: str = _STREAM) -> Any:
        if (
            stream == _STREAM
            and port.given is not NONE_GIVEN
            and values.__class__ is list
            and len(values) == 1
        ):
            (value,) = values
            try:
                box = boxes[known[value]]
            except (KeyError, TypeError):
                box = new_box(task_of(value))
            box.values.append(value)
            box.anchors.append(port.current)
            return box.targets
        return _emit_as_other_basic(self, values, stream)

    return _Ways(bind_to, emit, basic_emit)


def _by_one_field() -> _Ways:
    port = Port("", {})
    new_box: Any = None
    task_of: Any = None
    size = position = 0
    known: dict[Any, int] = {}
    boxes: dict[int, Any] = {}

    def bind_to(new: Port, outlet: Outlet) -> None:
        nonlocal port, size, position, known, boxes, new_box, task_of
        assert isinstance(outlet.route, OneFieldRoute)
        port, known, task_of = new, outlet.route.known, outlet.route.task_of
        size, position = outlet.size, outlet.route.position
        boxes, new_box = outlet.own_boxes, outlet.box

    def emit(self: Any, values: Any, anchors: Any = None, stream: str = _STREAM) -> Any:
        if (
            anchors is port.given
            and stream == _STREAM
            and values.__class__ is list
            and len(values) == size
        ):
            value = values[position]
            try:
                box = boxes[known[value]]
            except (KeyError, TypeError):
                box = new_box(task_of(value))
            box.values.append(tuple(values))
            box.anchors.append(anchors._index)
            return box.targets
        return _emit_as_others(self, values, anchors, stream)

    def basic_emit(self: Any, values: Any, stream: str = _STREAM) -> Any:
        if (
            stream == _STREAM
            and port.given is not NONE_GIVEN
            and values.__class__ is list
            and len(values) == size
        ):
            value = values[position]
            try:
                box = boxes[known[value]]
            except (KeyError, TypeError):
                box = new_box(task_of(value))
            box.values.append(tuple(values))
            box.anchors.append(port.current)
            return box.targets
        return _emit_as_other_basic(self, values, stream)

    return _Ways(bind_to, emit, basic_emit)


def _counting_only() -> _Ways:
    """Nobody takes the stream: its tuples are counted."""
    port, size = Port("", {}), 0
    counted: Any = None

    def bind_to(new: Port, outlet: Outlet) -> None:
        nonlocal port, size, counted
        port, size, counted = new, outlet.size, outlet

    def emit(self: Any, values: Any, anchors: Any = None, stream: str = _STREAM) -> Any:
        if (
            anchors is port.given
            and stream == _STREAM
            and values.__class__ is list
            and len(values) == size
        ):
            counted.calls += 1
            return ()
        return _emit_as_others(self, values, anchors, stream)

    def basic_emit(self: Any, values: Any, stream: str = _STREAM) -> Any:
        if (
            stream == _STREAM
            and port.given is not NONE_GIVEN
            and values.__class__ is list
            and len(values) == size
        ):
            counted.calls += 1
            return ()
        return _emit_as_other_basic(self, values, stream)

    return _Ways(bind_to, emit, basic_emit)
