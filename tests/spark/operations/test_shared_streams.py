"""A stream that is used twice is computed once."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import stream_of
from tests.trident.support import capture, finish
from waterspout.state import MemoryMapState
from waterspout.trident import Count, MapGet, Sum, expr

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def counting_calls(path):
    def note(n):
        with open(path, "a") as file:
            file.write("x")
        return n

    return note


def test_a_stream_used_twice_is_computed_once(spark, tmp_path):
    calls = tmp_path / "calls"
    topology, numbers = stream_of("n bigint", range(7))
    shared = numbers.each("n", counting_calls(str(calls)), out="m bigint")
    first, second = capture(shared.filter("m", expr("m < 2")), "m"), capture(shared, "n")
    total = capture(shared.aggregate("m", Sum(), out="total"))
    joined = capture(topology.join(shared, "m", shared, "n", out="m, a, b"))
    merged = capture(topology.merge(shared, shared))

    finish(topology, spark, timeout=200)

    assert calls.read_text() == "x" * 7
    assert (first.rows, len(second.rows), total.rows) == ([(0,), (1,)], 7, [(21,)])
    assert (len(joined.rows), len(merged.rows)) == (7, 14)


def test_a_stream_used_in_both_phases_is_computed_once(spark, tmp_path):
    calls = tmp_path / "calls"
    topology, numbers = stream_of("n bigint", range(7))
    shared = numbers.each("n", counting_calls(str(calls)), out="m bigint")
    counts = shared.group_by("m").persistent_aggregate(MemoryMapState(), Count(), out="c")
    asked = capture(shared.state_query(counts, "m", MapGet(), out="c"), "m", "c")

    finish(topology, spark, timeout=200)

    assert calls.read_text() == "x" * 7
    assert asked.rows == [(n, None) for n in range(7)]
