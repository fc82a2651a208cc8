"""`TupleCollectionGet`: every tuple that a state holds, for each tuple that asks."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import ran_once, stream_of
from waterspout.state import MemoryMapState
from waterspout.trident import Count, TupleCollectionGet

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("b", 2), ("a", 3), ("c", 4)]


def build(look):
    topology, stream = stream_of("word string, n bigint", ROWS, size=2)
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    look("example", stream.state_query(counts, TupleCollectionGet(), out="other, count"))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    """The first batch finds nothing, so that its tuples are gone."""
    assert ran.batches("example") == {
        2: [("a", 3, "a", 1), ("a", 3, "b", 1), ("c", 4, "a", 1), ("c", 4, "b", 1)]
    }


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}
