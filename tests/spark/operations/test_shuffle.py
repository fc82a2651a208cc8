"""`shuffle`: tuples dealt out evenly."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [("same", i // 2) for i in range(40)]


def build(look):
    topology, stream = stream_of("word string, n bigint", ROWS)
    look("content", stream.shuffle().parallelism_hint(4))
    look("unhinted", stream.shuffle())
    look("empty", stream.filter("n", lambda n: n < 0).shuffle().parallelism_hint(4))
    if look.on_spark:
        dealt = stream.global_().shuffle().parallelism_hint(4)
        look("example", dealt.partition_aggregate(Count(), out="count"))
        look("places", placed(dealt), "at", "of")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [(10,)] * 4


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_content_stays_equal_tuples_included(ran):
    assert ran["content"] == ran["unhinted"] == sorted(ROWS, key=repr)
    assert ran["empty"] == []


def test_every_partition_gets_as_many(ran):
    assert Counter(ran["places"]) == {(at, 4): 10 for at in range(4)}
