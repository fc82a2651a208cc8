"""Messages that cannot be sent, or that want to end the program: each fails alone."""

from __future__ import annotations

import re
import sys
import threading
from typing import Any, ClassVar

import pytest

from tests.waves.driving import COLLAPSED, SPREAD, Do, Driven, ListLog, Record, seen, seen_log
from waterspout.errors import BoltCrash
from waterspout.testing import FeederSpout
from waterspout.topology import BasicBolt, Spout, TopologyBuilder

both_shapes = pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])

LOCK = "cannot be sent to another process, <unlocked _thread.lock object at "
WHY = "TypeError: cannot pickle '_thread.lock' object"


def values_of(name: str) -> list[Any]:
    return sorted(values[0] for _, values in seen(name))


def fed(bolt: Any, **options: Any) -> tuple[Driven, FeederSpout]:
    feeder = FeederSpout("n", replay=True)
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", bolt, 2).shuffle_grouping("source")
    if bolt.output_fields or bolt.streams:
        stream = "default" if bolt.output_fields else "side"
        builder.set_bolt("out", Record("out"), 2).shuffle_grouping("bolt", stream)
    return Driven(builder.create_topology("t"), **options), feeder


@both_shapes
def test_a_message_that_cannot_be_sent_fails_alone(shape):
    driven, feeder = fed(Record("out"), wave_collapse_tuples=shape, max_replays=1)
    for n in range(6):
        feeder.feed([threading.Lock() if n == 3 else [n]], msg_id=n)
    driven.until_idle()

    assert values_of("out") == [[0], [1], [2], [4], [5]]
    assert feeder.tracker.acks == dict.fromkeys(range(6), 1)
    assert feeder.tracker.fails == {3: 1}
    (letter,) = driven.letters.all()
    assert (letter.message_id, letter.failed_in, letter.failures) == ("3", "source", 2)
    start = f"EmitError: 'source' emitted a value for field 'n' of stream 'default' that {LOCK}"
    assert letter.error.startswith(start)
    assert letter.error.endswith(WHY)
    assert [(e.component, e.error, e.count) for e in driven.heard.errors] == [
        ("source", letter.error, 1)
    ] * 2


def emit_or_lock(bolt, tuple):
    bolt.collector.emit(["x", threading.Lock() if tuple["n"] == 3 else tuple["n"]], tuple, "side")
    bolt.collector.ack(tuple)


@both_shapes
def test_a_bolt_that_emits_what_cannot_be_sent_fails_that_message_alone(shape):
    bolt = Do(emit_or_lock, streams={"side": ("name", "value")})
    driven, feeder = fed(bolt, wave_collapse_tuples=shape, max_replays=0)
    for n in range(6):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert sorted(values[1] for _, values in seen("out")) == [0, 1, 2, 4, 5]
    assert feeder.tracker.acks == dict.fromkeys(range(6), 1)
    (letter,) = driven.letters.all()
    assert (letter.values, letter.failed_in) == ((3,), "bolt")
    start = f"EmitError: 'bolt' emitted a value for field 'value' of stream 'side' that {LOCK}"
    assert letter.error.startswith(start)
    assert letter.error.endswith(WHY)


def test_what_cannot_be_sent_and_belongs_to_no_message_is_told():
    driven, feeder = fed(Record("out"), ackers=0)
    feeder.feed([threading.Lock()], msg_id=1)
    feeder.feed([2], msg_id=2)
    driven.until_idle()

    assert values_of("out") == [2]
    assert [(e.component, e.count) for e in driven.heard.errors] == [("source", 1)]


def test_a_bolt_that_emits_what_cannot_be_sent_may_end_the_run():
    bolt = Do(emit_or_lock, streams={"side": ("name", "value")})
    driven, feeder = fed(bolt, bolt_errors="crash")
    feeder.feed([3], msg_id=3)

    error = driven.until_error()

    assert isinstance(error, BoltCrash)
    assert str(error).startswith("'bolt' emitted a value for field 'value' of stream 'side'")


class LocksInLog(ListLog):
    def read(self, partition, start, end):
        for offset, (value,) in super().read(partition, start, end):
            yield offset, [threading.Lock() if value == 3 else value]


@both_shapes
def test_a_message_of_a_log_that_cannot_be_sent_fails_alone(shape):
    seen_log("log")[0] = list(range(6))
    builder = TopologyBuilder()
    builder.set_spout("log", LocksInLog("log"))
    builder.set_bolt("bolt", Record("out")).shuffle_grouping("log")
    driven = Driven(builder.create_topology("t"), wave_collapse_tuples=shape, max_replays=1)
    driven.until_idle()

    assert values_of("out") == [0, 1, 2, 4, 5]
    (letter,) = driven.letters.all()
    assert (letter.message_id, letter.failed_in, letter.failures) == ("(0, 3)", "log", 2)
    assert letter.error.endswith(WHY)


class ExitsBasic(BasicBolt):
    def execute(self, tuple, collector):
        if tuple["n"] == 3:
            sys.exit("no more")
        seen("done").append(tuple["n"])


def exit_or_note(bolt, tuple):
    if tuple["n"] == 3:
        sys.exit("no more")
    seen("done").append(tuple["n"])
    bolt.collector.ack(tuple)


@both_shapes
@pytest.mark.parametrize("bolt", [ExitsBasic(), Do(exit_or_note)], ids=["basic", "rich"])
def test_a_bolt_that_wants_to_end_the_program_fails_that_message_alone(bolt, shape):
    driven, feeder = fed(bolt, wave_collapse_tuples=shape, max_replays=1)
    for n in range(6):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert sorted(seen("done")) == [0, 1, 2, 4, 5]
    assert feeder.tracker.acks == dict.fromkeys(range(6), 1)
    (letter,) = driven.letters.all()
    assert (letter.values, letter.failed_in) == ((3,), "bolt")
    assert (letter.error, letter.failures) == ("SystemExit: no more", 2)


def test_ending_the_program_is_an_error_like_others_where_errors_end_the_run():
    driven, feeder = fed(ExitsBasic(), bolt_errors="crash")
    feeder.feed([3], msg_id=3)

    place = r"\(.*test_bad_messages\.py, line \d+, in execute\)"
    told = rf"bolt 'bolt' raised SystemExit: no more {place}"
    assert re.fullmatch(told, str(driven.until_error()))


class ExitsOnce(Spout):
    output_fields: ClassVar = ("n",)

    def open(self, conf, context, collector):
        self._collector = collector

    def next_tuple(self):
        if not seen("exited"):
            seen("exited").append(True)
            sys.exit("not now")
        if not seen("emitted"):
            seen("emitted").append(True)
            self._collector.emit([1], msg_id=1)


def test_a_spout_that_wants_to_end_the_program_is_started_anew():
    builder = TopologyBuilder()
    builder.set_spout("source", ExitsOnce())
    builder.set_bolt("bolt", Record("out")).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t")).until_idle()

    assert values_of("out") == [1]
    (error,) = driven.heard.errors
    assert error.error == "spout 'source' (task 1) raised in next_tuple: SystemExit: not now"
