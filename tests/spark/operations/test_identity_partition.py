"""`identity_partition`: every tuple stays on its partition, and so does their number."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import Where, placed, ran_once, stream_of
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [(f"k{i % 7}", i) for i in range(30)]


def build(look):
    topology, stream = stream_of("k string, n bigint", ROWS)
    look("content", stream.identity_partition())
    if look.on_spark:
        before = stream.partition_by("k").parallelism_hint(3).each("n", Where(), out="was, of_was")
        look("example", placed(before.identity_partition()), "was", "at", "of")
        hinted = stream.global_().shuffle().identity_partition().parallelism_hint(3)
        look("shared", hinted.partition_aggregate(Count(), out="c"))
        larger = (
            stream.global_().shuffle().parallelism_hint(2).identity_partition().parallelism_hint(3)
        )
        look("larger", larger.partition_aggregate(Count(), out="c"))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert len({at for _, at, _ in ran["example"]}) > 1
    assert all(was == at and of == 3 for was, at, of in ran["example"])


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_content_stays(ran):
    assert ran["content"] == sorted(ROWS, key=repr)


def test_both_sides_share_the_greatest_of_their_hints(ran):
    for name in ("shared", "larger"):
        assert ran[name] == [(10,), (10,), (10,)], name
