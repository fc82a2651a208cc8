"""Bolts over many waves: state, transient attributes, errors; alive or made anew each time."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest

from tests.waves.driving import COLLAPSED, SPREAD, Do, Driven, Pass, Record, seen
from waterspout import FailedException
from waterspout.errors import NotPicklableError
from waterspout.testing import FeederSpout
from waterspout.topology import BasicBolt, Bolt, TopologyBuilder

both_lives = pytest.mark.parametrize("keep_alive", [True, False])


def fed(bolt: Any, tasks: int = 1, fields: Any = "n", **options: Any) -> tuple[Driven, FeederSpout]:
    feeder = FeederSpout(fields)
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", bolt, tasks).shuffle_grouping("source")
    if bolt.output_fields:
        builder.set_bolt("out", Record("out")).shuffle_grouping("bolt")
    return Driven(builder.create_topology("t"), **options), feeder


def wave_by_wave(driven: Driven, feeder: FeederSpout, *values: Any) -> None:
    for value in values:
        feeder.feed([value], msg_id=value)
        driven.until_idle()


def out() -> list[Any]:
    return [values for _, values in seen("out")]


class Count(BasicBolt):
    output_fields = ("word", "count")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def execute(self, tuple, collector):
        word = tuple[0]
        self._counts[word] = self._counts.get(word, 0) + 1
        collector.emit([word, self._counts[word]])


@both_lives
@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
def test_a_bolt_remembers_over_the_waves(keep_alive, shape):
    driven, feeder = fed(Count(), keep_alive=keep_alive, wave_collapse_tuples=shape)

    for n, word in enumerate("aabab"):
        feeder.feed([word], msg_id=n)
        driven.until_idle()

    assert out() == [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2)]


def test_waves_of_both_shapes_share_one_state():
    driven, feeder = fed(Count(), keep_alive=False, wave_collapse_tuples=3)
    for size in (2, 5, 1, 7):
        for n in range(size):
            feeder.feed(["a"], msg_id=(size, n))
        driven.until_idle()

    assert [facts["stages"] for facts in driven.heard.waves] == [1, 2, 1, 2]
    assert out() == [("a", n) for n in range(1, 16)]


def test_each_task_has_a_state_of_its_own():
    driven, feeder = fed(Count(), tasks=2, keep_alive=False)
    for n in range(10):
        feeder.feed(["a"], msg_id=n)
    driven.until_idle()

    assert sorted(out()) == sorted([("a", n) for n in range(1, 6)] * 2)


def test_the_object_that_was_given_is_not_touched():
    bolt = Count()
    driven, feeder = fed(bolt)
    wave_by_wave(driven, feeder, "a")

    assert bolt._counts == {}


@both_lives
def test_what_a_bolt_has_deleted_stays_deleted(keep_alive):
    def forget(bolt, tuple):
        seen("has").append(hasattr(bolt, "first"))
        if hasattr(bolt, "first"):
            del bolt.first
        bolt.collector.ack(tuple)

    bolt = Do(forget)
    bolt.first = True
    driven, feeder = fed(bolt, keep_alive=keep_alive)
    wave_by_wave(driven, feeder, 1, 2, 3)

    assert seen("has") == [True, False, False]


@both_lives
def test_one_object_under_two_names_stays_one(keep_alive):
    def share(bolt, tuple):
        if not hasattr(bolt, "one"):
            bolt.one = bolt.other = []
        bolt.one.append(tuple["n"])
        bolt.held = [*getattr(bolt, "held", []), tuple]
        bolt.twice = bolt.held[0]
        seen("shared").append((bolt.other is bolt.one, bolt.twice is bolt.held[0]))

    driven, feeder = fed(Do(share), keep_alive=keep_alive)
    for n in range(3):
        feeder.feed([n], msg_id=n)
        driven.step(3)

    assert seen("shared") == [(True, True)] * 3


@both_lives
def test_a_bolt_made_anew_emits_through_its_collector(keep_alive):
    def emit(bolt, tuple):
        bolt.alias = bolt.__dict__.get("alias", bolt.collector)
        assert bolt.alias is bolt.collector
        bolt.alias.emit([tuple["n"]], tuple)
        bolt.alias.ack(tuple)

    driven, feeder = fed(Do(emit, ["n"]), keep_alive=keep_alive)
    wave_by_wave(driven, feeder, 1, 2, 3)

    assert out() == [(1,), (2,), (3,)]
    assert feeder.tracker.acks == {1: 1, 2: 1, 3: 1}


@both_lives
def test_functions_and_local_classes_may_be_kept(keep_alive):
    def keep(bolt, tuple):
        if "add" not in bolt.__dict__:
            start = tuple["n"]

            class Local:
                value = start

            bolt.add = lambda n: n + start
            bolt.local = Local()
        seen("sums").append((bolt.add(tuple["n"]), bolt.local.value))
        bolt.collector.ack(tuple)

    driven, feeder = fed(Do(keep), keep_alive=keep_alive)
    wave_by_wave(driven, feeder, 10, 1, 2)

    assert seen("sums") == [(20, 10), (11, 10), (12, 10)]


class Connected(Bolt):
    """Has a lock that cannot be pickled, and a count that can."""

    transient: ClassVar = ("lock",)

    def __init__(self) -> None:
        self.count = 0

    def prepare(self, conf, context, collector):
        self.collector = collector
        self.lock = threading.Lock()
        self.count = 100
        seen("prepared").append((context.this_task_id, conf.get("my.option")))

    def execute(self, tuple):
        with self.lock:
            self.count += 1
        seen("counts").append(self.count)
        self.collector.ack(tuple)


@both_lives
def test_transient_attributes_are_made_by_prepare_where_they_are_missing(keep_alive):
    driven, feeder = fed(Connected(), keep_alive=keep_alive)
    wave_by_wave(driven, feeder, 1, 2, 3)

    # The other attributes are put back over what prepare has set.
    assert seen("counts") == [101, 102, 103]
    assert len(seen("prepared")) == (1 if keep_alive else 3)


@both_lives
def test_without_transient_attributes_prepare_runs_once(keep_alive):
    driven, feeder = fed(Prepared(), keep_alive=keep_alive)
    wave_by_wave(driven, feeder, 1, 2, 3)

    assert seen("prepared") == [2]


class Prepared(BasicBolt):
    def prepare(self, conf, context):
        seen("prepared").append(context.this_task_id)

    def execute(self, tuple, collector):
        """Nothing."""


def test_prepare_gets_the_options_of_the_run_and_of_the_component():
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", Connected()).shuffle_grouping("source").add_configuration(
        "my.option", 7
    )
    driven = Driven(builder.create_topology("t"))
    wave_by_wave(driven, feeder, 1)

    assert seen("prepared") == [(2, 7)]


def test_an_attribute_that_cannot_be_pickled_is_named_and_ends_the_run():
    def spoil(bolt, tuple):
        bolt.fine, bolt.connection = 1, threading.Lock()
        bolt.collector.ack(tuple)

    driven, feeder = fed(Do(spoil), max_retries=0)
    feeder.feed([1], msg_id=1)

    error = driven.until_error()

    assert isinstance(error, NotPicklableError)
    assert (error.component, error.attribute) == ("bolt 'bolt' after a wave", "connection")
    assert "transient = ('connection',)" in str(error)
    assert feeder.tracker.acks == {}


def raise_on_odd(bolt, tuple):
    bolt.collector.emit([tuple["n"]], tuple)
    if tuple["n"] % 2:
        raise ValueError(f"odd: {tuple['n']}")
    bolt.collector.ack(tuple)


def test_an_exception_fails_only_its_tuple():
    driven, feeder = fed(Do(raise_on_odd, ["n"]))
    for n in range(10):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert feeder.tracker.acks == dict.fromkeys(range(0, 10, 2), 1)
    assert feeder.tracker.fails == dict.fromkeys(range(1, 10, 2), 1)


def test_errors_of_one_kind_are_one_note_with_a_count():
    driven, feeder = fed(Do(raise_on_odd, ["n"]))
    for n in range(10):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    (note,) = driven.heard.errors
    assert (note.component, note.task, note.error, note.count) == (
        "bolt",
        2,
        "ValueError: odd: 1",
        5,
    )
    assert 'raise ValueError(f"odd' in note.traceback


class Picky(BasicBolt):
    output_fields = ("n",)

    def execute(self, tuple, collector):
        collector.emit([tuple["n"]])
        if tuple["n"] == 1:
            raise FailedException("again, please")
        if tuple["n"] == 2:
            raise KeyError("two")


def test_a_basic_bolt_acks_unless_it_raises():
    driven, feeder = fed(Picky())
    for n in range(4):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert feeder.tracker.acks == {0: 1, 3: 1}
    assert feeder.tracker.fails == {1: 1, 2: 1}
    # To ask for a replay is no error.
    assert [note.error for note in driven.heard.errors] == ["KeyError: 'two'"]


def test_a_bolt_whose_prepare_raises_ends_the_run_with_that():
    driven, feeder = fed(Unready(), max_retries=1)
    feeder.feed([1], msg_id=1)

    error = driven.until_error()

    assert "no database" in str(error)
    assert feeder.tracker.acks == {}


class Unready(Bolt):
    def prepare(self, conf, context, collector):
        raise ConnectionError("no database")

    def execute(self, tuple):
        """Never."""


def test_an_error_in_a_child_fails_the_message_once():
    def raise_always(bolt, tuple):
        raise ValueError("no")

    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("pass", Pass("n")).shuffle_grouping("source")
    builder.set_bolt("one", Do(raise_always)).shuffle_grouping("pass")
    builder.set_bolt("two", Do(raise_always), 3).all_grouping("pass")
    driven = Driven(builder.create_topology("t"))
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {1: 1})


class Join(Bolt):
    """Holds tuples until both sides of a key are there; emits anchored to both."""

    output_fields = ("key", "left", "right")

    def __init__(self) -> None:
        self._waiting: dict[Any, Any] = {}

    def execute(self, tuple):
        key, value = tuple.values
        other = self._waiting.pop(key, None)
        if other is None:
            self._waiting[key] = tuple
            return
        self.collector.emit([key, other[1], value], [other, tuple])
        self.collector.ack(other)
        self.collector.ack(tuple)


@both_lives
@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
def test_a_join_over_many_waves_acks_both_sides_when_the_result_is_done(keep_alive, shape):
    feeder = FeederSpout(["key", "value"])
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("join", Join(), 2).fields_grouping("source", "key")
    builder.set_bolt("out", Do(hold_until_told)).shuffle_grouping("join")
    options = {"keep_alive": keep_alive, "wave_collapse_tuples": shape}
    driven = Driven(builder.create_topology("t"), **options, tick_tuple_freq_secs=10)
    for key in "abc":
        feeder.feed([key, 1], msg_id=f"{key}1")
        driven.step(3)
    for key in "cab":
        feeder.feed([key, 2], msg_id=f"{key}2")
        driven.step(3)

    assert feeder.tracker.acks == {}

    seen("go").append(True)
    driven.clock.pass_by(10)
    driven.step(2)

    assert feeder.tracker.acks == {f"{key}{n}": 1 for key in "abc" for n in (1, 2)}


def hold_until_told(bolt, tuple):
    held = bolt.__dict__.setdefault("held", [])
    if not tuple.is_tick:
        held.append(tuple)
    if seen("go"):
        while held:
            bolt.collector.ack(held.pop())


@both_lives
def test_a_join_whose_result_fails_fails_both_sides(keep_alive):
    def refuse(bolt, tuple):
        bolt.collector.fail(tuple)

    feeder = FeederSpout(["key", "value"])
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("join", Join()).fields_grouping("source", "key")
    builder.set_bolt("out", Do(refuse)).shuffle_grouping("join")
    driven = Driven(builder.create_topology("t"), keep_alive=keep_alive)
    feeder.feed(["a", 1], msg_id=1)
    driven.step(3)
    feeder.feed(["a", 2], msg_id=2)
    driven.until_idle()

    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {1: 1, 2: 1})


def test_a_bolt_gets_only_ticks_and_tuples_of_several_trees_and_acks_no_tick():
    feeder = FeederSpout(["key", "value"])
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("join", Join()).fields_grouping("source", "key")
    builder.set_bolt("out", Do(ack_all_but_ticks)).shuffle_grouping("join").add_configuration(
        "topology.tick.tuple.freq.secs", 1
    )
    driven = Driven(builder.create_topology("t"))
    driven.clock.pass_by(1)
    feeder.feed(["a", 1], msg_id=1)
    feeder.feed(["a", 2], msg_id=2)
    driven.until_idle()

    assert feeder.tracker.acks == {1: 1, 2: 1}


def ack_all_but_ticks(bolt, tuple):
    if not tuple.is_tick:
        bolt.collector.ack(tuple)


@both_lives
def test_held_untracked_tuples_may_be_acked_and_anchored_to_later(keep_alive):
    def chain(bolt, tuple):
        earlier = bolt.__dict__.get("earlier")
        if earlier is not None:
            bolt.collector.emit([earlier["n"]], earlier)
            bolt.collector.ack(earlier)
        bolt.earlier = tuple

    driven, feeder = fed(Do(chain, ["n"]), keep_alive=keep_alive)
    for n in range(3):
        feeder.feed([n])
        driven.until_idle()

    assert out() == [(0,), (1,)]
    assert driven.heard.errors == []


@both_lives
def test_a_reset_gives_a_held_tuple_more_time(keep_alive):
    def hold(bolt, tuple):
        held = bolt.__dict__.setdefault("held", [])
        if tuple.is_tick:
            for each in held:
                if each["n"] == "reset":
                    bolt.collector.reset_timeout(each)
        else:
            held.append(tuple)

    driven, feeder = fed(
        Do(hold), keep_alive=keep_alive, tick_tuple_freq_secs=5, message_timeout_secs=30
    )
    feeder.feed(["reset"], msg_id="reset")
    feeder.feed(["not"], msg_id="not")
    for _ in range(200):
        driven.step()
        driven.clock.pass_by(1)

    assert feeder.tracker.fails == {"not": 1}


def test_a_late_ack_of_a_tree_that_timed_out_changes_nothing():
    driven, feeder = fed(Do(hold_until_told), tick_tuple_freq_secs=100, message_timeout_secs=10)
    feeder.feed([1], msg_id=1)
    for _ in range(30):
        driven.step()
        driven.clock.pass_by(1)
    assert feeder.tracker.fails == {1: 1}

    seen("go").append(True)
    driven.clock.pass_by(100)
    driven.step(3)

    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {1: 1})
