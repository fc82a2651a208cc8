"""Emitting, acking and failing: what is refused, in which words, and what it does to others."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.waves.driving import Do, Driven, Record, seen
from waterspout.errors import AckError, EmitError
from waterspout.testing import FeederSpout
from waterspout.topology import BasicBolt, Direct, Spout, TopologyBuilder
from waterspout.topology._component import DEFAULT_STREAM


def told(name: str, deed):
    """A function for `Do` that notes what a deed returns or raises, and acks."""

    def execute(bolt, tuple):
        try:
            seen(name).append(deed(bolt, tuple))
        except (EmitError, AckError) as error:
            seen(name).append(f"{type(error).__name__}: {error}")
        if tuple._origin.done[tuple._index] == 0:
            bolt.collector.ack(tuple)

    return execute


STREAMS = {DEFAULT_STREAM: ("word", "n"), "to": Direct("word"), "unused": ("x",)}


def noted(name: str, deed, messages: int = 1) -> tuple[list, FeederSpout]:
    """Run one deed of a bolt for each message; return what was noted."""
    feeder = FeederSpout("a")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    bolt = builder.set_bolt("bolt", Do(told(name, deed), streams=STREAMS))
    bolt.shuffle_grouping("source")
    target = builder.set_bolt("target", Record(f"{name}, emitted"), 2)
    target.all_grouping("bolt").direct_grouping("bolt", "to")
    driven = Driven(builder.create_topology("t"))
    for n in range(messages):
        feeder.feed([n], msg_id=n)
    driven.until_idle()
    return seen(name), feeder


def test_emit_returns_the_tasks_that_get_the_tuple():
    notes, feeder = noted("tasks", lambda bolt, t: bolt.collector.emit(["the", 1], t))

    assert notes == [(3, 4)]
    assert seen("tasks, emitted") == [(3, ("the", 1)), (4, ("the", 1))]
    assert feeder.tracker.acks == {0: 1}


def test_a_stream_that_nobody_takes_goes_to_no_task():
    notes, feeder = noted("unused", lambda bolt, t: bolt.collector.emit([1], t, stream="unused"))

    assert notes == [()]
    assert feeder.tracker.acks == {0: 1}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["the"], "stream 'default' has 2 fields (word, n) but got 1 values: ('the',)"),
        (("a", 1, 2), "stream 'default' has 2 fields (word, n) but got 3 values: ('a', 1, 2)"),
        ([], "stream 'default' has 2 fields (word, n) but got 0 values: ()"),
        ("ab", "emit takes a list of values, not 'ab'; for one value write ['ab']"),
        (b"ab", "emit takes a list of values, not b'ab'; for one value write [b'ab']"),
        (5, "emit takes a list of values, not 5; for one value write [5]"),
        (None, "emit takes a list of values, not None; for one value write [None]"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, text):
    name = f"fit {values!r}"

    notes, feeder = noted(name, lambda bolt, t: bolt.collector.emit(values, t))

    assert notes == [f"EmitError: {text}"]
    assert seen(f"{name}, emitted") == []
    assert feeder.tracker.acks == {0: 1}


@pytest.mark.parametrize("values", [{"word": 1, "n": 2}, {"the", "a"}], ids=["dict", "set"])
def test_values_without_an_order_are_refused(values):
    name = f"order {type(values)}"

    notes, _ = noted(name, lambda bolt, t: bolt.collector.emit(values, t))

    assert str(notes[0]).startswith("EmitError: emit takes a list of values, in order, not ")
    assert seen(f"{name}, emitted") == []


def test_any_sequence_of_the_right_length_is_taken():
    notes, _ = noted("sequence", lambda bolt, t: bolt.collector.emit((x for x in ("the", 1)), t))

    assert notes == [(3, 4)]


def test_long_values_are_shown_shortened():
    notes, _ = noted("long", lambda bolt, t: bolt.collector.emit(["x" * 5000], t))

    assert len(notes[0]) < 350
    assert notes[0].endswith("...")


def test_an_unknown_stream_is_answered_with_those_there_are():
    notes, _ = noted("unknown", lambda bolt, t: bolt.collector.emit([1], t, stream="x"))

    assert notes == [
        "EmitError: unknown stream 'x' of 'bolt'; it has declared: default, to, unused"
    ]


def test_emit_on_a_direct_stream_is_refused():
    notes, _ = noted("direct", lambda bolt, t: bolt.collector.emit([1], t, stream="to"))

    assert notes == ["EmitError: stream 'to' of 'bolt' is direct: use emit_direct(task, values)"]


def test_emit_direct_on_another_stream_is_refused():
    notes, _ = noted("plain", lambda bolt, t: bolt.collector.emit_direct(3, ["a", 1], t))

    assert notes == [
        "EmitError: stream 'default' of 'bolt' is not direct: use emit, or declare its fields "
        "with Direct(...)"
    ]


def test_emit_direct_to_a_task_that_does_not_take_it_is_refused():
    notes, _ = noted("task", lambda bolt, t: bolt.collector.emit_direct(2, ["a"], t, stream="to"))

    assert notes == [
        "EmitError: task 2 does not take stream 'to' of 'bolt' by direct grouping; these do: 3, 4"
    ]


@pytest.mark.parametrize("anchors", [5, ["x"], object()], ids=["int", "list", "object"])
def test_an_anchor_is_a_tuple(anchors):
    name = f"anchor {type(anchors)}"

    try:
        notes, _ = noted(name, lambda bolt, t: bolt.collector.emit(["a", 1], anchors))
    except TypeError:
        pytest.fail("not a clear error")

    assert seen(f"{name}, emitted") == []
    assert notes == [] or notes[0].startswith("EmitError: an anchor is a tuple")


def twice(first: str, second: str):
    def deed(bolt, tuple):
        getattr(bolt.collector, first)(tuple)
        getattr(bolt.collector, second)(tuple)

    return deed


@pytest.mark.parametrize("first", ["ack", "fail"])
@pytest.mark.parametrize("second", ["ack", "fail"])
def test_a_tuple_is_acked_or_failed_once(first, second):
    notes, feeder = noted(f"{first} {second}", twice(first, second), messages=3)

    assert notes == [
        f"AckError: 'bolt' may not {second} Tuple(a={n} from source:default): it was acked or "
        "failed already, or another task got it"
        for n in range(3)
    ]
    # Only what came first counts.
    assert feeder.tracker.acks == ({0: 1, 1: 1, 2: 1} if first == "ack" else {})
    assert feeder.tracker.fails == ({0: 1, 1: 1, 2: 1} if first == "fail" else {})


@pytest.mark.parametrize("verb", ["ack", "fail"])
@pytest.mark.parametrize("thing", [None, 5, "a", ("a",)], ids=repr)
def test_what_is_no_tuple_cannot_be_acked(verb, thing):
    name = f"{verb} {thing!r}"

    notes, feeder = noted(name, lambda bolt, t: getattr(bolt.collector, verb)(thing))

    assert notes == [f"AckError: {verb} takes a tuple that this bolt has got, not {thing!r}"]
    assert feeder.tracker.acks == {0: 1}


def test_a_second_ack_in_a_later_wave_is_refused():
    def deed(bolt, tuple):
        earlier, bolt.earlier = getattr(bolt, "earlier", None), tuple
        if earlier is not None:
            bolt.collector.ack(earlier)

    feeder = FeederSpout("a")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", Do(told("later", deed))).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t"), keep_alive=False)
    for n in range(2):
        feeder.feed([n], msg_id=n)
        driven.until_idle()

    assert seen("later") == [
        None,
        "AckError: 'bolt' may not ack Tuple(a=0 from source:default): it was acked or failed "
        "already, or another task got it",
    ]
    assert feeder.tracker.acks == {0: 1, 1: 1}


@pytest.mark.parametrize("verb", ["ack", "fail"])
def test_a_tuple_of_another_task_can_be_neither_acked_nor_failed(verb):
    def keep(bolt, tuple):
        seen("stolen").append(tuple)
        bolt.collector.emit([1], tuple)

    seen("stolen").clear()
    feeder = FeederSpout("a")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("keeper", Do(keep, ["x"])).shuffle_grouping("source")
    thief = told(f"thief {verb}", lambda bolt, t: getattr(bolt.collector, verb)(seen("stolen")[0]))
    builder.set_bolt("thief", Do(thief)).shuffle_grouping("keeper")
    driven = Driven(builder.create_topology("t"))
    feeder.feed([1], msg_id=1)
    driven.step(5)

    assert seen(f"thief {verb}") == [
        f"AckError: 'thief' may not {verb} Tuple(a=1 from source:default): it was acked or failed "
        "already, or another task got it"
    ]
    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {})


def test_a_tuple_that_raises_after_its_ack_has_failed():
    def deed(bolt, tuple):
        bolt.collector.ack(tuple)
        raise ValueError("after all")

    feeder = FeederSpout("a")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", Do(deed)).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t"))
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {1: 1})


class Shows(BasicBolt):
    output_fields = ("x",)

    def execute(self, tuple, collector):
        seen("basic").append(collector.emit([1]))
        collector.report_error(RuntimeError("just so that you know"))


def test_a_basic_bolt_emits_returns_tasks_and_reports():
    feeder = FeederSpout("a")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("basic", Shows()).shuffle_grouping("source")
    builder.set_bolt("target", Record("basic target")).shuffle_grouping("basic")
    driven = Driven(builder.create_topology("t"))
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    assert seen("basic") == [(3,)]
    assert [(note.component, note.error) for note in driven.heard.errors] == [
        ("basic", "RuntimeError: just so that you know")
    ]
    assert feeder.tracker.acks == {1: 1}


class Points(BasicBolt):
    streams: ClassVar = {"to": Direct("n")}

    def execute(self, tuple, collector):
        collector.emit_direct(tuple["a"], [tuple["a"]], stream="to")


def test_a_basic_bolt_emits_directly_and_anchored():
    feeder = FeederSpout("a")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("points", Points()).shuffle_grouping("source")
    builder.set_bolt("target", Do(lambda bolt, t: bolt.collector.fail(t)), 2).direct_grouping(
        "points", "to"
    )
    driven = Driven(builder.create_topology("t"))
    feeder.feed([4], msg_id=4)
    feeder.feed([9], msg_id=9)
    driven.until_idle()

    assert feeder.tracker.fails == {4: 1, 9: 1}
    (note,) = driven.heard.errors
    assert note.error.startswith("EmitError: task 9 does not take stream 'to' of 'points'")


class Deeds(Spout):
    """Does one deed, and notes what comes of it."""

    streams: ClassVar = {DEFAULT_STREAM: ("word",), "to": Direct("word")}

    def __init__(self, name, deed):
        self._name, self._deed, self._is_done = name, deed, False

    def next_tuple(self):
        if self._is_done:
            return
        self._is_done = True
        try:
            seen(self._name).append(self._deed(self.collector))
        except EmitError as error:
            seen(self._name).append(f"EmitError: {error}")

    def ack(self, msg_id):
        seen(self._name).append(("ack", msg_id))

    def fail(self, msg_id):
        seen(self._name).append(("fail", msg_id))


def spout_notes(name, deed, **options):
    builder = TopologyBuilder()
    builder.set_spout("source", Deeds(name, deed))
    target = builder.set_bolt("target", Record(f"{name}, emitted"), 2)
    target.all_grouping("source").direct_grouping("source", "to")
    driven = Driven(builder.create_topology("t"), **options)
    driven.until_idle()
    return seen(name)


@pytest.mark.parametrize(
    ("deed", "text"),
    [
        (
            lambda c: c.emit("word", 1),
            "emit takes a list of values, not 'word'; for one value write ['word']",
        ),
        (lambda c: c.emit([1, 2], 1), "stream 'default' has 1 fields (word) but got 2 values"),
        (lambda c: c.emit([1], 1, stream="x"), "unknown stream 'x' of 'source'; it has declared"),
        (
            lambda c: c.emit([1], 1, stream="to"),
            "stream 'to' of 'source' is direct: use emit_direc",
        ),
        (lambda c: c.emit_direct(2, [1], 1), "stream 'default' of 'source' is not direct"),
        (lambda c: c.emit_direct(9, [1], 1, stream="to"), "task 9 does not take stream 'to'"),
        (lambda c: c.emit_direct(2, "w", 1, stream="to"), "emit takes a list of values, not 'w'"),
        (lambda c: c.emit([1], [1]), "a message id must be hashable, which [1] is not; a tuple"),
        (lambda c: c.emit([1], {}), "a message id must be hashable, which {} is not; a tuple"),
        (
            lambda c: c.emit_direct(2, [1], [1], stream="to"),
            "a message id must be hashable, which [1] is not",
        ),
    ],
)
def test_a_spout_is_told_what_is_wrong_and_nothing_is_emitted(deed, text):
    name = f"spout {text}"

    (note,) = spout_notes(name, deed)

    assert note.startswith(f"EmitError: {text}")
    assert seen(f"{name}, emitted") == []


def test_a_spout_is_told_the_tasks_and_then_of_its_ack():
    assert spout_notes("spout tasks", lambda c: c.emit(["a"], "m")) == [(2, 3), ("ack", "m")]


def test_a_direct_message_is_tracked():
    notes = spout_notes("spout direct", lambda c: c.emit_direct(3, ["a"], "m", stream="to"))

    assert notes == [None, ("ack", "m")]
    assert seen("spout direct, emitted") == [(3, ("a",))]


def test_without_an_id_nothing_is_told():
    assert spout_notes("no id", lambda c: c.emit(["a"])) == [(2, 3)]


@pytest.mark.parametrize("msg_id", [0, "", False, ()])
def test_an_id_may_be_false(msg_id):
    notes = spout_notes(f"false {msg_id!r}", lambda c: c.emit(["a"], msg_id))

    assert notes == [(2, 3), ("ack", msg_id)]


def test_without_ackers_a_message_is_acked_inside_emit():
    notes = spout_notes("no ackers", lambda c: c.emit(["a"], "m"), ackers=0)

    assert notes == [("ack", "m"), (2, 3)]
    assert seen("no ackers, emitted") == [(2, ("a",)), (3, ("a",))]
