"""`name`: what plans and errors call an operation."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import stream_of
from tests.trident.support import capture, finish
from waterspout import Config
from waterspout.errors import RunFailedError
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def test_the_documented_example(spark):
    topology, stream = stream_of("n bigint", [1, 0])
    named = stream.each("n", lambda n: "many", out="x bigint").name("inverse")
    kept = capture(named)

    assert "inverse" in topology.explain()
    with pytest.raises(RunFailedError, match="inverse gave 'many' for field 'x'"):
        finish(topology, spark, Config(max_retries=0), timeout=200)
    assert kept.rows == []


def test_a_grouped_stream_passes_its_name_on(spark):
    topology, stream = stream_of("n bigint", [1, 2, 1])
    kept = capture(stream.project("n").group_by("n").name("by number").aggregate(Count(), out="c"))

    finish(topology, spark, timeout=200)

    assert "by number" in topology.explain()
    assert kept.rows == [(1, 2), (2, 1)]
