"""`global_`: all tuples of all batches on one partition, the first."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [(f"k{i % 5}", i) for i in range(12)]


def build(look):
    topology, stream = stream_of("k string, n bigint", ROWS, size=6)
    one = stream.shuffle().parallelism_hint(3).global_()
    look("example", one.partition_aggregate(Count(), out="count"))
    look("content", one)
    look("nothing", one.filter("n", lambda n: n < 0).partition_aggregate(Count(), out="count"))
    if look.on_spark:
        look("places", placed(stream.global_().parallelism_hint(3)), "at", "of")
        counted = stream.global_().parallelism_hint(3).partition_aggregate(Count(), out="c")
        look("of three", placed(counted), "c", "at")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran.batches("example") == {1: [(6,)], 2: [(6,)]}


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_content_stays(ran):
    assert ran["content"] == sorted(ROWS, key=repr)


def test_an_empty_batch_is_aggregated_too(ran):
    assert ran.batches("nothing") == {1: [(0,)], 2: [(0,)]}


def test_of_several_partitions_it_is_the_first_in_every_batch(ran):
    assert set(ran["places"]) == {(0, 3)}
    assert ran.batches("of three") == {txid: [(0, 1), (0, 2), (6, 0)] for txid in (1, 2)}
