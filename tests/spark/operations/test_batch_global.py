"""`batch_global`: all tuples of a batch on one partition, chosen by the batch."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [(f"k{i % 5}", i) for i in range(12)]


def build(look):
    topology, stream = stream_of("k string, n bigint", ROWS, size=4)
    together = stream.shuffle().parallelism_hint(2).batch_global()
    look("example", together.partition_aggregate(Count(), out="count"))
    look("content", together)
    if look.on_spark:
        look("places", placed(stream.batch_global().parallelism_hint(3)), "at", "of")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran.batches("example") == {1: [(4,)], 2: [(4,)], 3: [(4,)]}


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_content_stays(ran):
    assert ran["content"] == sorted(ROWS, key=repr)


def test_each_batch_is_on_one_partition_and_the_next_on_another(ran):
    places = {txid: set(rows) for txid, rows in ran.batches("places").items()}

    assert [len(found) for found in places.values()] == [1, 1, 1]
    assert set.union(*places.values()) == {(0, 3), (1, 3), (2, 3)}
