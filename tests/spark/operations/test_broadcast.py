"""`broadcast`: every tuple on every partition."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("b", None)]


def build(look):
    topology, stream = stream_of("k string, n bigint", ROWS)
    look("content", stream.broadcast().parallelism_hint(3))
    look("one", stream.broadcast())
    look("empty", stream.filter("k", lambda k: k == "z").broadcast().parallelism_hint(3))
    if look.on_spark:
        everywhere = stream.broadcast().parallelism_hint(3)
        look("example", placed(everywhere), "k", "at", "of")
        look("counts", everywhere.partition_aggregate(Count(), out="c"))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [(k, at, 3) for k in "ab" for at in range(3)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_each_tuple_comes_once_for_each_partition(ran):
    assert ran["content"] == sorted(3 * ROWS, key=repr)
    assert ran["one"] == ROWS
    assert ran["empty"] == []


def test_each_partition_has_all_of_them(ran):
    assert ran["counts"] == [(2,), (2,), (2,)]
