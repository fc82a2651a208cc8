"""`join`: tuples of several streams with equal fields, within a batch."""

from __future__ import annotations

import math

import pytest

from tests.spark.operations.support import ran_once
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ORDERS = [(1, "tea"), (1, "cup"), (2, "pot"), (None, "lost")]
PEOPLE = [("Ann", 1), ("Bea", 3), ("Nil", None), ("Amy", 1)]
PLACES = [(1, "Rome"), (3, "Oslo"), (4, "Lima")]
LATER = [(9, "late")]


def build(look):
    topology = TridentTopology("operations")
    spouts = {
        "orders": FixedBatchSpout("id bigint, item string", 4, ORDERS + LATER),
        "people": FixedBatchSpout("name string, person bigint", 4, PEOPLE),
        "places": FixedBatchSpout("who bigint, city string", 4, PLACES),
    }
    orders, people, places = (topology.new_stream(name, s) for name, s in spouts.items())
    look("example", topology.join(orders, "id", people, "person", out="id, item, name"))
    for how in ("left", "right", "outer", ["inner", "outer"], ["outer", "inner"]):
        made = topology.join(orders, "id", people, "person", out="id, item, name", how=how)
        look(f"two {how}", made)
    kept = topology.join(
        orders, "id", people, "person", out="id, item, name, person", how="outer", mode="preserve"
    )
    look("preserve", kept)
    three = [orders, people, places], ["id", "person", "who"], "id, item, name, city"
    for how in ("inner", "outer", ["inner", "outer", "outer"], ["outer", "inner", "outer"],
                ["outer", "outer", "inner"], ["inner", "outer", "inner"]):  # fmt: skip
        look(f"three {how}", topology.join(*three, how=how))
    itself = topology.join(people, "person", people, "person", out="person, a, b")
    look("itself", itself.filter("person", lambda p: p == 1), "a", "b")
    nobody = people.filter("name", lambda n: n == "nobody")
    look("empty side", topology.join(orders, "id", nobody, "person", "id, item, name", how="left"))
    look("empty", topology.join(nobody, "person", nobody, "person", out="p, a, b"))
    same = topology.join(orders, ["id", "item"], orders, ["id", "item"], out="id, item")
    look("only keys", same.aggregate(Count(), out="c"))
    return topology


ran = ran_once(build)


def brute(how, *sides):
    """Join in nested loops: for each key there is, the choices of each side, or a null."""
    keys = {key for side in sides for key, _ in side}
    made = []
    for key in keys:
        found = [[value for k, value in side if k == key] for side in sides]
        if all(values or kind == "outer" for values, kind in zip(found, how, strict=True)):
            rows = [(key,)]
            for values in found:
                rows = [(*row, value) for row in rows for value in values or [None]]
            made += rows
    return sorted(made, key=repr)


SIDES = (ORDERS, [(person, name) for name, person in PEOPLE], PLACES)
HOW = {
    "inner": ["inner", "inner"],
    "left": ["inner", "outer"],
    "right": ["outer", "inner"],
    "outer": ["outer", "outer"],
}


def test_the_documented_example(ran):
    assert ran["example"] == [
        (1, "cup", "Amy"), (1, "cup", "Ann"), (1, "tea", "Amy"), (1, "tea", "Ann"),
        (None, "lost", "Nil"),
    ]  # fmt: skip


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_a_join_is_within_a_batch(ran):
    assert set(ran.batches("example")) == {1}
    assert ran.batches("two left")[2] == [(9, "late", None)]


@pytest.mark.parametrize("how", ["left", "right", "outer"])
def test_two_streams(ran, how):
    assert ran.batches(f"two {how}")[1] == brute(HOW[how], *SIDES[:2])


@pytest.mark.parametrize(
    ("how", "name"), [(["inner", "outer"], "left"), (["outer", "inner"], "right")]
)
def test_the_kind_can_be_given_for_each_stream(ran, how, name):
    assert ran[f"two {how}"] == ran[f"two {name}"]


@pytest.mark.parametrize(
    "how",
    [
        "inner",
        "outer",
        ["inner", "outer", "outer"],
        ["outer", "inner", "outer"],
        ["outer", "outer", "inner"],
        ["inner", "outer", "inner"],
    ],
    ids=str,
)
def test_three_streams(ran, how):
    kinds = [how] * 3 if isinstance(how, str) else how

    assert ran.batches(f"three {how}")[1] == brute(kinds, *SIDES)


def test_preserve_keeps_all_fields_of_all_streams(ran):
    expected = []
    for key, item, name in brute(["outer", "outer"], *SIDES[:2]):
        expected.append((key if item else None, item, name, key if name else None))

    assert ran.batches("preserve")[1] == sorted(expected, key=repr)


def test_a_stream_joins_with_itself(ran):
    assert ran["itself"] == [("Amy", "Amy"), ("Amy", "Ann"), ("Ann", "Amy"), ("Ann", "Ann")]


def test_an_empty_side(ran):
    assert ran.batches("empty side")[1] == sorted([(*order, None) for order in ORDERS], key=repr)
    assert ran["empty"] == []


def test_streams_of_nothing_but_keys(ran):
    assert ran.batches("only keys") == {1: [(4,)], 2: [(1,)]}


def odd_keys(look):
    topology = TridentTopology("operations")
    numbers = FixedBatchSpout("x double, a bigint", 9, [(0.0, 1), (math.nan, 2), (None, 3)])
    others = FixedBatchSpout("y double, b bigint", 9, [(-0.0, 10), (math.nan, 20), (None, 30)])
    left, right = topology.new_stream("a", numbers), topology.new_stream("b", others)
    look("equal", topology.join(left, "x", right, "y", out="x, a, b"), "a", "b")
    return topology


odd = ran_once(odd_keys)


def test_nulls_nans_and_both_zeros_are_equal_as_in_a_grouping(odd):
    assert odd["equal"] == [(1, 10), (2, 20), (3, 30)]
    assert odd.differences == {}
