"""Which task gets a tuple, for every grouping."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waves.driving import COLLAPSED, SPREAD, Do, Driven, Pass, Record, seen
from waterspout.errors import EmitError
from waterspout.testing import FeederSpout
from waterspout.topology import CustomGrouping, Direct, Spout, TopologyBuilder
from waterspout.topology._grouping import stable_hash
from waterspout.waves.outlets import make_outlets


class Colour(StrEnum):
    THE = "the"


class Level(IntEnum):
    ONE = 1


class Text(str):
    """A string of somebody's own."""

    __slots__ = ()


def route(declare, fields=("key", "n"), tasks: int = 4, turn: int = 0):
    """The way from a spout's only task to the tasks 2, 3, ... of a bolt."""
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout(fields))
    declare(builder.set_bolt("target", Pass("x"), tasks))
    topology = builder.create_topology("t")
    return make_outlets(topology, 1, turn)["default"].route


@pytest.mark.parametrize("grouping", ["shuffle_grouping", "local_or_shuffle_grouping"])
@pytest.mark.parametrize("turn", [0, 1, 7])
def test_a_shuffle_is_even_within_a_wave(grouping, turn):
    deal = route(lambda bolt: getattr(bolt, grouping)("source"), turn=turn)

    counts = Counter(task for n in range(1001) for task in deal(("k", n)))

    assert sorted(counts) == [2, 3, 4, 5]
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_shuffle_is_even_over_many_small_waves(size):
    name = f"shuffle {size}"
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("pass", Pass("n")).shuffle_grouping("source")
    builder.set_bolt("target", Record(name), 4).shuffle_grouping("pass")
    driven = Driven(builder.create_topology("t"))

    for wave in range(80):
        for n in range(size):
            feeder.feed([(wave, n)], msg_id=(wave, n))
        driven.until_idle()

    counts = Counter(task for task, _ in seen(name))
    assert len(seen(name)) == 80 * size
    assert max(counts.values()) - min(counts.values()) <= 40 * size / 4


def test_a_shuffle_is_even_for_a_bolt_that_emits_in_every_second_wave():
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("odd", Do(emit_odd, ["n"])).shuffle_grouping("source")
    builder.set_bolt("target", Record("odd"), 2).shuffle_grouping("odd")
    driven = Driven(builder.create_topology("t"))

    for n in range(80):
        feeder.feed([n], msg_id=n)
        driven.until_idle()

    counts = Counter(task for task, _ in seen("odd"))
    assert sum(counts.values()) == 40
    assert min(counts.values()) >= 10
    assert len(counts) == 2


def emit_odd(bolt, tuple):
    if tuple["n"] % 2:
        bolt.collector.emit([tuple["n"]], tuple)
    bolt.collector.ack(tuple)


@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
def test_several_producers_together_are_even(shape):
    name = f"producers {shape}"
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("pass", Pass("n"), 4).shuffle_grouping("source")
    builder.set_bolt("target", Record(name), 4).shuffle_grouping("pass")
    driven = Driven(builder.create_topology("t"), wave_collapse_tuples=shape)
    for n in range(800):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert Counter(task for task, _ in seen(name)) == {6: 200, 7: 200, 8: 200, 9: 200}


def test_none_sends_each_tuple_to_one_task_and_uses_all():
    choose = route(lambda bolt: bolt.none_grouping("source"))

    chosen = [choose(("k", n)) for n in range(400)]

    assert {len(tasks) for tasks in chosen} == {1}
    counts = Counter(task for (task,) in chosen)
    assert sorted(counts) == [2, 3, 4, 5]
    assert min(counts.values()) > 50


def test_none_repeats_its_choices_in_a_task_that_is_retried():
    first = route(lambda bolt: bolt.none_grouping("source"), turn=3)
    again = route(lambda bolt: bolt.none_grouping("source"), turn=3)

    assert [first(("k", n)) for n in range(50)] == [again(("k", n)) for n in range(50)]


SAMPLES = ["the", "", "größe", "\U0001f32a", 0, -5, 10**30, 2.5, None, b"raw", ("a", 1), [1, [2]]]


def test_equal_values_go_to_one_task_and_others_do_not_all():
    choose = route(lambda bolt: bolt.fields_grouping("source", "key"))

    assert choose(("the", 1)) == choose(("the", 2))
    assert len({choose((f"word {n}", 0)) for n in range(200)}) == 4


def test_fields_are_spread_evenly_enough():
    choose = route(lambda bolt: bolt.fields_grouping("source", "key"))

    counts = Counter(choose((f"word {n}", 0)) for n in range(4000))

    assert min(counts.values()) > 850


@given(st.data())
def test_only_the_chosen_fields_matter(data):
    key = data.draw(st.one_of(st.text(), st.integers(), st.none(), st.floats(), st.binary()))
    by_one = route(lambda bolt: bolt.fields_grouping("source", "key"))
    by_both = route(lambda bolt: bolt.fields_grouping("source", "key", "n"))

    assert by_one((key, 1)) == by_one((key, 2))
    assert by_both((key, 1)) == by_both((key, 1))


def chosen_tasks() -> list[tuple[int, ...]]:
    """The tasks of all samples, grouped by one field, by both, and by both the other way round."""
    routes = [
        route(lambda bolt, names=names: bolt.fields_grouping("source", *names), tasks=97)
        for names in (("key",), ("key", "n"), ("n", "key"))
    ]
    return [choose((value, 5)) for choose in routes for value in SAMPLES]


def test_fields_are_stable_across_processes():
    code = "from tests.topology.test_groupings import chosen_tasks\nprint(chosen_tasks())"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert printed == {str(chosen_tasks())}


def test_the_hash_never_changes():
    """Stored state is kept by task: another hash in another version would look elsewhere."""
    assert stable_hash(["the"]) == 15062926953215060342
    assert stable_hash([1, None, "x"]) == 1405301115992080059


@pytest.mark.parametrize(
    "alike",
    [
        [1, 1.0, True, Decimal(1), Decimal("1.000"), np.int64(1), np.float32(1), np.bool_(True)],
        [0, -0.0, 0.0, False, Decimal("-0")],
        [1.5, Decimal("1.5"), Decimal("1.50"), np.float64(1.5), Fraction(3, 2)],
        [2**70, float(2**70), Decimal(2**70)],
        [10**400, Decimal("1E+400"), Fraction(10**400)],
        ["the", np.str_("the"), Colour.THE, Text("the")],
        [1, Level.ONE],
        [b"raw", bytearray(b"raw"), np.bytes_(b"raw")],
        [(1, "a"), [1, "a"], (1.0, "a"), [True, "a"]],
        [float("nan"), np.float64("nan"), -float("nan"), Decimal("nan")],
        [float("inf"), Decimal("inf"), np.float32("inf")],
        [
            datetime(2026, 1, 1, 12, tzinfo=UTC),
            datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))),
        ],
    ],
    ids=lambda alike: repr(alike[-1]),
)
@pytest.mark.parametrize("fields", [("key",), ("key", "n")])
def test_values_that_python_holds_equal_meet_at_one_task(alike, fields):
    choices = set()
    for value in alike:
        choose = route(lambda bolt: bolt.fields_grouping("source", *fields), tasks=97)
        choices.add(choose((value, 1)))

    assert len(choices) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("1", 1), (None, "None"), (b"a", "a"), ((1,), 1), (date(2026, 1, 1), "x")]
)
def test_values_that_differ_have_different_hashes(one, other):
    assert stable_hash([one]) != stable_hash([other])


@pytest.mark.parametrize(
    "value",
    [{1}, {"a": 1}, object(), Spout, 1j, [object()], [{"deep": 1}]],
    ids=["set", "dict", "object", "class", "complex", "list of an object", "list of a dict"],
)
@pytest.mark.parametrize("fields", [("key",), ("key", "n")])
def test_what_cannot_be_encoded_is_a_clear_error(value, fields):
    choose = route(lambda bolt: bolt.fields_grouping("source", *fields))

    with pytest.raises(EmitError, match=r"^fields to group by: "):
        choose((value, 1))


@pytest.mark.parametrize(
    "value", [Decimal("1E-5000"), Decimal("1E+5000"), Decimal("sNaN"), 10**5000], ids=range(4)
)
def test_a_number_without_an_end_is_a_clear_error(value):
    choose = route(lambda bolt: bolt.fields_grouping("source", "key"))

    with pytest.raises(EmitError, match=r"^fields to group by: "):
        choose((value, 1))


def test_an_error_leaves_the_other_values_alone():
    choose = route(lambda bolt: bolt.fields_grouping("source", "key"))
    before = choose(("the", 1))

    with pytest.raises(EmitError):
        choose((object(), 1))

    assert choose(("the", 1)) == before


def test_all_sends_a_copy_to_every_task():
    assert route(lambda bolt: bolt.all_grouping("source"))(("k", 1)) == (2, 3, 4, 5)


def test_global_sends_everything_to_the_lowest_task():
    choose = route(lambda bolt: bolt.global_grouping("source"), turn=3)

    assert {choose((n, n)) for n in range(20)} == {(2,)}


def test_partial_keys_go_to_two_tasks_at_most():
    choose = route(lambda bolt: bolt.partial_key_grouping("source", "key"), tasks=10)

    for key in range(50):
        assert len({choose((f"key {key}", n)) for n in range(40)}) <= 2


def test_a_hot_key_is_halved():
    choose = route(lambda bolt: bolt.partial_key_grouping("source", "key"), tasks=10)

    counts = Counter(choose(("hot", n)) for n in range(1000))

    assert sorted(counts.values()) == [500, 500]


def test_partial_keys_use_the_same_two_tasks_in_every_wave():
    both = {
        route(lambda bolt: bolt.partial_key_grouping("source", "key"), tasks=10, turn=turn)(
            ("hot", n)
        )
        for turn in range(10)
        for n in range(5)
    }

    assert len(both) <= 2


def test_a_hot_key_is_halved_over_small_waves_too():
    feeder = FeederSpout("key")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("target", Record("hot"), 4).partial_key_grouping("source", "key")
    driven = Driven(builder.create_topology("t"))
    for n in range(40):
        feeder.feed(["hot"], msg_id=n)
        driven.until_idle()

    counts = Counter(task for task, _ in seen("hot"))
    assert len(counts) == 2
    assert min(counts.values()) >= 10


@pytest.mark.parametrize("grouping", ["fields_grouping", "partial_key_grouping"])
def test_one_task_takes_all_keys(grouping):
    choose = route(lambda bolt: getattr(bolt, grouping)("source", "key"), tasks=1)

    assert {choose((n, n)) for n in range(20)} == {(2,)}


class Chosen(CustomGrouping):
    """Sends a tuple to the tasks that its first value names, by their position."""

    def prepare(self, context, stream, target_tasks):
        self.tasks = target_tasks
        self.known = (context.this_component_id, stream)

    def choose_tasks(self, task_id, values):
        return [self.tasks[n] for n in values[0]]


class Wrong(CustomGrouping):
    def choose_tasks(self, task_id, values):
        return [99]


def test_a_custom_grouping_chooses_any_tasks():
    choose = route(lambda bolt: bolt.custom_grouping("source", Chosen()))

    assert choose(([0, 3], 1)) == (2, 5)
    assert choose(([], 1)) == ()


def test_a_custom_grouping_that_chooses_a_stranger_is_refused():
    choose = route(lambda bolt: bolt.custom_grouping("source", Wrong()), tasks=2)

    with pytest.raises(
        EmitError,
        match=r"^the grouping Wrong of stream 'default' chose task 99, which is not one of 2, 3$",
    ):
        choose(("k", 1))


def test_one_custom_grouping_may_serve_two_bolts():
    grouping = Chosen()
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout("a"))
    builder.set_bolt("one", Pass("x"), 2).custom_grouping("source", grouping)
    builder.set_bolt("two", Pass("x"), 2).custom_grouping("source", grouping)
    choose = make_outlets(builder.create_topology("t"), 1, 0)["default"].route

    assert choose(([0],)) == (2, 4)


def test_several_groupings_of_one_stream_each_send_a_copy():
    choose = route(lambda bolt: bolt.global_grouping("source").all_grouping("source"), tasks=2)

    assert choose(("k", 1)) == (2, 2, 3)


def test_every_copy_of_several_groupings_must_be_acked():
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    bolt = builder.set_bolt("target", Record("copies"), 2)
    bolt.global_grouping("source").all_grouping("source")
    driven = Driven(builder.create_topology("t"))
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    assert sorted(seen("copies")) == [(2, (1,)), (2, (1,)), (3, (1,))]
    assert feeder.tracker.acks == {1: 1}


def test_a_direct_stream_goes_where_its_emitter_says():
    builder = TopologyBuilder()
    feeder = FeederSpout("n")
    builder.set_spout("source", feeder)
    builder.set_bolt("route", Do(to_task, streams={"to": Direct("n")})).shuffle_grouping("source")
    builder.set_bolt("target", Record("direct"), 3).direct_grouping("route", "to")
    driven = Driven(builder.create_topology("t"))
    for n in (5, 3, 4, 4):
        feeder.feed([n], msg_id=f"{n}")
    feeder.feed([1], msg_id="wrong")
    driven.until_idle()

    assert sorted(seen("direct")) == [(3, (3,)), (4, (4,)), (4, (4,)), (5, (5,))]
    assert feeder.tracker.fails == {"wrong": 1}
    (note,) = driven.heard.errors
    assert note.error == (
        "EmitError: task 1 does not take stream 'to' of 'route' by direct grouping; "
        "these do: 3, 4, 5"
    )


def to_task(bolt, tuple):
    bolt.collector.emit_direct(tuple["n"], [tuple["n"]], tuple, stream="to")
    bolt.collector.ack(tuple)
