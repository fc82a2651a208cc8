"""A stream that is used twice is computed once."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import stream_of
from tests.trident.support import Capture, Keep, capture, finish
from waterspout import Config
from waterspout._schema import Schema
from waterspout.state import MemoryMapState
from waterspout.trident import Count, MapGet, Sum, expr
from waterspout.trident.plan.nodes import UpdateWith
from waterspout.trident.plan.plan import Shape

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


@pytest.mark.parametrize("fits", [True, False], ids=["collected", "kept on the executors"])
def test_rows_that_only_keep_partitions_from_being_empty_do_not_reach_other_readers(spark, fits):
    """An update that is called without tuples, too, gets a row that is not real."""
    topology, numbers = stream_of("n bigint", range(6), size=2)
    shared = numbers.each("n", lambda n: n, out="m bigint")
    own, nothing = Capture(), Schema(())
    updating = UpdateWith(("n", "m"), Keep(), every_batch=True)
    shared.update(own, Shape.OWN, shared.schema, nothing, nothing, updating)
    other = capture(shared.filter("m", expr("m is null or m >= 0")), "n", "m")

    # Results go where those of the batches before would have fitted: the first is collected.
    limit = 10_000 if fits else 1
    finish(topology, spark, Config(retry_backoff_millis=1, collect_max_rows=limit), timeout=200)

    assert own.rows == other.rows == [(n, n) for n in range(6)]
