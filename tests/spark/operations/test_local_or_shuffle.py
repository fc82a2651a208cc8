"""`local_or_shuffle`: tuples stay where they are, unless the number of partitions changes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.spark.operations.support import Where, placed, ran_once, stream_of
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [(f"k{i % 5}", i) for i in range(24)]


def build(look):
    topology, stream = stream_of("k string, n bigint", ROWS)
    look("content", stream.local_or_shuffle())
    look("spread", stream.local_or_shuffle().parallelism_hint(3))
    if look.on_spark:
        before = stream.partition_by("k").parallelism_hint(3).each("n", Where(), out="was, of_was")
        look("example", placed(before.local_or_shuffle()), "was", "at", "of")
        two = stream.global_().shuffle().parallelism_hint(2)
        four = two.local_or_shuffle().parallelism_hint(4)
        look("other number", four.partition_aggregate(Count(), out="c"))
        look("fewer", placed(four.local_or_shuffle().parallelism_hint(1)), "at", "of")
        unhinted = stream.shuffle().local_or_shuffle()
        look("groups", unhinted.group_by("k").partition_aggregate(Count(), out="c"))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert len({at for _, at, _ in ran["example"]}) > 1
    assert all(was == at and of == 3 for was, at, of in ran["example"])


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_content_stays(ran):
    assert ran["content"] == ran["spread"] == sorted(ROWS, key=repr)


def test_another_number_of_partitions_is_a_shuffle(ran):
    assert len(ran["other number"]) == 4
    assert sum(c for (c,) in ran["other number"]) == len(ROWS)
    assert Counter(ran["fewer"]) == {(0, 1): len(ROWS)}


def test_where_the_number_shows_and_nobody_gave_one_it_is_one(ran):
    assert ran["groups"] == [("k0", 5), ("k1", 5), ("k2", 5), ("k3", 5), ("k4", 4)]
