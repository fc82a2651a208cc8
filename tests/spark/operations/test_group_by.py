"""`group_by`: the groups of each batch, for what follows."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from waterspout.state import MemoryMapState
from waterspout.trident import Count, MapGet, Sum

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [
    ("a", "x", 1),
    ("b", "x", 2),
    ("a", "y", 4),
    ("a", "x", 8),
    (None, None, 16),
    (None, "x", 32),
]


def build(look):
    topology, stream = stream_of("k string, l string, n bigint", ROWS, size=5)
    stream = stream.parallelism_hint(2)
    look("example", stream.group_by("k").aggregate("n", Sum(), out="total"))
    look("two fields", stream.group_by(["l", "k"]).aggregate("n", Sum(), out="total"))
    grouped = stream.group_by("k").each("n", lambda n: n * 10, out="tens bigint")
    look("each", grouped.aggregate("tens", Sum(), out="total"))
    look("filtered", stream.group_by("k").each("n", lambda n: n > 2).aggregate(Count(), out="c"))
    look("stream", stream.group_by("k").to_stream())
    counts = stream.group_by("k").persistent_aggregate(MemoryMapState(), Count(), out="c")
    look("asked", stream.group_by("k").state_query(counts, "k", MapGet(), out="c"), "n", "c")
    if look.on_spark:
        asked = stream.group_by("k").state_query(counts, "k", MapGet(), out="c")
        look("placed", placed(asked.parallelism_hint(3)), "k", "at", "of")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran.batches("example") == {
        1: [("a", 13), ("b", 2), (None, 16)],
        2: [(None, 32)],
    }


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_the_group_fields_come_first_in_the_order_asked_for(ran):
    assert ran["two fields"] == [
        ("x", "a", 9), ("x", "b", 2), ("x", None, 32), ("y", "a", 4), (None, None, 16),
    ]  # fmt: skip


def test_the_groups_stay_behind_a_function_or_filter(ran):
    assert ran["each"] == [("a", 130), ("b", 20), (None, 160), (None, 320)]
    assert ran["filtered"] == [("a", 2), (None, 1), (None, 1)]


def test_the_stream_can_be_had_back(ran):
    assert ran["stream"] == sorted(ROWS, key=repr)


def test_a_query_of_groups_sees_the_batches_before(ran):
    assert ran["asked"] == sorted(
        [(1, None), (2, None), (4, None), (8, None), (16, None), (32, 1)], key=repr
    )


def test_a_query_of_groups_runs_where_its_group_is(ran):
    at = {}
    for key, place, of in ran["placed"]:
        at.setdefault(key, set()).add((place, of))

    assert set(at) == {"a", "b", None}
    assert all(len(found) == 1 and {of for _, of in found} == {3} for found in at.values())
